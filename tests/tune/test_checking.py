"""Which ways are checked, and how predictions and measurements are compared."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.support import Formula, Worlds, chains, row
from vocabforge.evaluate.results.schema import Figure
from vocabforge.tune.search.check import choose, compare
from vocabforge.tune.search.predict import Prediction, predict_plain
from vocabforge.tune.search.search import Entry, Halving, search
from vocabforge.tune.types import Seconds


def entries_of(count: int) -> list[Entry]:
    lengths = {one.name: 1 + 0.9 * one.tree.levels**0.5 for one in chains(count)}
    return search(chains(count), Worlds(lengths, Formula(node=1e-4)), Halving(4, first=4))


def prediction(value: float, off: float = 0.05) -> Prediction:
    speed = Figure(value=value, low=value * (1 - off), high=value * (1 + off))
    return Prediction(speed, Figure(value=2.0), Seconds(0.01, 0.01, 0.01), 4)


def results_of(speeds: dict[str, float], off: float = 0.02) -> Any:
    def method(name: str, value: float) -> Any:
        speed = Figure(value=value, low=value * (1 - off), high=value * (1 + off))
        overall = SimpleNamespace(tokens_per_s=speed, accepted_length=Figure(value=2.1))
        return SimpleNamespace(name=name, summary=SimpleNamespace(overall=overall))

    methods = [method(name, value) for name, value in speeds.items()]
    return SimpleNamespace(methods=methods, benchmark=SimpleNamespace(questions=20))


def test_the_best_and_the_worst_and_even_steps_between_are_checked() -> None:
    entries = entries_of(30)
    order = sorted(entries, key=lambda entry: -entry.value(1))
    found = choose(entries, 8)
    assert len({entry.name for entry in found}) == 8
    assert found[0] is order[0]
    assert found[-1] is order[-1]
    values = [entry.value(1) for entry in found]
    assert values == sorted(values, reverse=True)
    whole = values[0] - values[-1]
    assert max(a - b for a, b in itertools.pairwise(values)) < 0.45 * whole


def test_what_few_prompts_put_at_the_top_is_not_the_best() -> None:
    entries = entries_of(30)
    order = sorted(entries, key=lambda entry: -entry.value(1))
    order[0].rows = order[0].rows[:2]
    assert choose(entries, 8)[0] is order[1]


def test_what_was_not_decoded_fills_the_gaps() -> None:
    entries = [Entry(one) for one in chains(9)]
    assert [entry.candidate.tree.levels for entry in choose(entries, 3)] == [1, 4, 7]
    assert len(choose(entries[:2], 3)) == 2


def test_errors_and_ranks_are_those_of_eval() -> None:
    predicted = {"a": prediction(100), "b": prediction(90), "c": prediction(80), "d": prediction(50)}
    plain = predict_plain([row(41, 40)] * 2, Formula())
    results = results_of({"plain": 99.0, "a": 104.0, "b": 80.0, "c": 85.0, "d": 50.0})
    check = compare({**predicted, "plain": plain}, results, "check-x")
    assert [one.name for one in check.rows] == ["a", "b", "c", "d"]
    assert [one.measured_rank for one in check.rows] == [1, 3, 2, 4]
    errors = [100 / 104 - 1, 90 / 80 - 1, 80 / 85 - 1, 0.0]
    assert [one.error for one in check.rows] == pytest.approx(errors)
    assert check.worst_error == pytest.approx(0.125)
    assert check.mean_error == pytest.approx(sum(map(abs, errors)) / 4)
    assert check.same_top
    assert not check.same_order
    assert check.measured_top == ["a", "c", "b"]
    assert [one.inside for one in check.rows] == [True, False, True, True]
    assert check.plain.error == pytest.approx(plain.value / 99 - 1)
    assert check.questions == 20
    ratios = [(1 + error) / (plain.value / 99) - 1 for error in errors]
    assert check.speedup_error == pytest.approx(sum(map(abs, ratios)) / 4)
