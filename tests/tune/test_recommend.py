"""What is recommended, and what is said of the others."""

from __future__ import annotations

import pytest

from tests.tune.support import Formula, Worlds, chains, row
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.tune.search.predict import predict_plain
from vocabforge.tune.search.recommend import recommend
from vocabforge.tune.search.search import search


def entries_of(world: Worlds, heads: tuple[str, ...] = ("full",), prompts: int = 8):
    found = [one for head in heads for one in chains(6, head)]
    return search(found, world, prompts, least=99)


def world_of(*acceptances: tuple[str, float], formula: Formula, noise: tuple[float, ...] = (0.0,)) -> Worlds:
    lengths = {
        one.name: sum(acceptance**j for j in range(one.tree.levels + 1))
        for head, acceptance in acceptances
        for one in chains(6, head)
    }
    return Worlds(lengths, formula, noise=noise)


def plain_of(formula: Formula) -> dict:
    return {1: predict_plain([row(61, 60)] * 8, formula)}


def test_the_fastest_is_recommended_beside_the_best_of_each_head() -> None:
    formula = Formula(node=1e-4)
    world = world_of(("good", 0.8), ("poor", 0.5), formula=formula)
    entries = entries_of(world, ("good", "poor"))
    found = recommend(entries, plain_of(formula), 1)
    best = max(entries, key=lambda entry: entry.value(1))
    assert found.method == best.name
    assert found.method.startswith("good")
    assert found.speedup == pytest.approx(best.value(1) / plain_of(formula)[1].value)
    assert [name.partition("+")[0] for name in found.others] == ["good", "poor"]
    assert "told from" not in " ".join(found.why)


def test_plain_decoding_wins_where_nothing_pays() -> None:
    formula = Formula(node=2e-2)
    entries = entries_of(world_of(("full", 0.3), formula=formula))
    found = recommend(entries, plain_of(formula), 1)
    assert found.method == PLAIN
    assert found.speedup == 1.0
    best = max(entries, key=lambda entry: entry.value(1))
    assert "do without the drafter" in found.why[0]
    assert best.name in found.why[1]
    assert found.others == [best.name]
    assert "told from" not in " ".join(found.why)


def test_plain_decoding_is_not_called_faster_within_the_intervals() -> None:
    """A predicted rate a little below plain decoding's, with wide intervals, decides nothing."""
    formula = Formula(node=2e-2, off=0.9)
    found = recommend(entries_of(world_of(("full", 0.3), formula=formula)), plain_of(formula), 1)
    assert found.method == PLAIN
    assert "is faster" not in " ".join(found.why)
    assert "cannot be told from full" in " ".join(found.why)


def test_what_cannot_be_told_apart_is_said() -> None:
    formula = Formula(node=1e-4, off=0.3)
    entries = entries_of(world_of(("full", 0.8), ("same", 0.79), formula=formula), ("full", "same"))
    found = recommend(entries, plain_of(formula), 1)
    close = next(name for name in found.others if name.startswith("same"))
    assert close in " ".join(found.why)


def test_a_recommendation_that_may_be_no_faster_than_plain_decoding_says_so_first() -> None:
    formula = Formula(node=1e-4, off=0.9)
    world = world_of(*((head, 0.8) for head in "abcdef"), formula=formula)
    found = recommend(entries_of(world, tuple("abcdef")), plain_of(formula), 1)
    assert found.method != PLAIN
    assert f"cannot be told from {PLAIN}, " in found.why[-1]


def test_only_ways_known_on_the_most_prompts_are_recommended() -> None:
    formula = Formula(node=1e-4)
    entries = entries_of(world_of(("full", 0.8), formula=formula))
    order = sorted(entries, key=lambda entry: -entry.value(1))
    order[0].rows = order[0].rows[:2]
    assert recommend(entries, plain_of(formula), 1).method == order[1].name
