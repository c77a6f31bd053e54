"""Which methods are checked, and how predictions and measurements are compared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.tune.support import Formula, Worlds, chains, row
from vocabforge.evaluate.results.schema import Figure
from vocabforge.tune.search.check import choose, compare
from vocabforge.tune.search.predict import Prediction, predict_plain
from vocabforge.tune.search.search import Entry, search
from vocabforge.tune.types import Seconds


def entries_of(count: int) -> list[Entry]:
    lengths = {one.name: 1 + 0.9 * one.tree.levels**0.5 for one in chains(count)}
    return search(chains(count), Worlds(lengths, Formula(node=1e-4)), 4, least=99)


def prediction(value: float, off: float = 0.05) -> Prediction:
    speed = Figure(value=value, low=value * (1 - off), high=value * (1 + off))
    return Prediction(speed, Figure(value=2.0), Seconds(0.01, 0.01, 0.01))


def results_of(speeds: dict[str, float], off: float = 0.02) -> Any:
    def method(name: str, value: float) -> Any:
        speed = Figure(value=value, low=value * (1 - off), high=value * (1 + off))
        return SimpleNamespace(
            name=name, summary=SimpleNamespace(overall=SimpleNamespace(tokens_per_s=speed))
        )

    methods = [method(name, value) for name, value in speeds.items()]
    return SimpleNamespace(methods=methods, benchmark=SimpleNamespace(questions=20))


def test_the_best_and_the_worst_and_even_ranks_between_are_checked() -> None:
    entries = entries_of(29)
    order = sorted(entries, key=lambda entry: -entry.value(1))
    assert choose(entries, 8) == order[::4]
    assert choose(entries[:2], 8) == sorted(entries[:2], key=lambda entry: -entry.value(1))
    assert choose(entries, 1) == order[:1]


def test_errors_and_ranks_are_those_of_eval() -> None:
    predicted = {"a": prediction(100), "b": prediction(90), "c": prediction(80), "d": prediction(50)}
    plain = predict_plain([row(41, 40)] * 2, Formula())
    results = results_of({"plain": 99.0, "a": 104.0, "b": 80.0, "c": 85.0, "d": 50.0})
    check = compare({**predicted, "plain": plain}, results, "check-x")
    assert [one.name for one in check.rows] == ["a", "b", "c", "d", "plain"]
    assert [one.measured_rank for one in check.rows] == [1, 3, 2, 4, 0]
    errors = [100 / 104 - 1, 90 / 80 - 1, 80 / 85 - 1, 0.0, plain.value / 99 - 1]
    assert [one.error for one in check.rows] == pytest.approx(errors)
    assert check.mean_error == pytest.approx(sum(map(abs, errors[:4])) / 4)
    assert check.questions == 20
