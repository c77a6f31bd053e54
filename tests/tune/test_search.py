"""Successive halving finds the best way, decodes little, and throws nothing away that could win."""

from __future__ import annotations

import pytest

from tests.tune.support import Worlds, chains, speedups_of
from vocabforge.tune.search import finalists, ranked, search


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
def test_the_best_is_found_and_measured_on_all_prompts(acceptance: float) -> None:
    found = chains(24)
    world = Worlds(speedups_of(acceptance, 24))
    entries = search(found, world, 16, least=4)
    best = finalists(entries, 1)[0]
    assert best.value(1) == pytest.approx(max(world.speedups.values()))
    assert best.state == "measured"
    assert best.by_batch[1].rows == 16
    assert [entry.name for entry in entries] == [one.name for one in found]


def test_later_rounds_decode_the_better_half_alone() -> None:
    world = Worlds(speedups_of(0.9, 32, node=0.01))
    search(chains(32), world, 16, least=4)
    by_prompts = [sum(prompts >= size for prompts in world.decoded.values()) for size in (2, 4, 8, 16)]
    assert by_prompts == [32, 16, 8, 4]


def test_each_head_has_its_best_way_in_the_end() -> None:
    found = [*chains(12, "good"), *chains(12, "poor")]
    world = Worlds({**speedups_of(0.8, 12, "good"), **speedups_of(0.3, 12, "poor")})
    entries = search(found, world, 8, least=2)
    last = {entry.candidate.head.name for entry in finalists(entries, 1)}
    assert last == {"good", "poor"}
    assert finalists(entries, 1)[0].candidate.head.name == "good"


def test_when_the_time_is_up_what_is_known_is_kept() -> None:
    spent = [0]

    def left(number: int) -> float:
        spent[0] += 1
        return 1.0 if spent[0] < 6 else 0.0

    world = Worlds(speedups_of(0.8, 20))
    entries = search(chains(20), world, 8, left=left)
    states = [entry.state for entry in entries]
    assert states.count("not reached") >= 10
    assert "measured" not in states
    assert 1 <= len(ranked(entries, 1)) == len(world.decoded) <= 6
    # Nothing at all is left: one is measured still.
    world = Worlds(speedups_of(0.8, 20))
    assert len(ranked(search(chains(20), world, 8, left=lambda number: 0.0), 1)) == 1


def test_a_way_that_is_best_for_one_batch_size_only_survives() -> None:
    # Side by side every draft token costs more: long chains win alone, short ones in a batch.
    batches = {1: lambda one, speedup: speedup, 64: lambda one, speedup: speedup / (1 + one.tree.levels)}
    world = Worlds(speedups_of(0.9, 16, node=0.02), batches=batches)
    entries = search(chains(16), world, 8, least=1)
    best = {batch: finalists(entries, batch)[0].candidate.tree.levels for batch in (1, 64)}
    assert best[1] > best[64]


def test_a_round_that_ends_early_does_not_pass_for_whole() -> None:
    """The last round is cut: what was measured before stays, and only candidates with the same prompts compete."""
    world = Worlds(speedups_of(0.8, 12))
    rounds: list[int] = []

    def left(number: int) -> float:
        rounds.append(number)
        return 1.0 if number < 3 or rounds.count(3) < 4 else 0.0

    entries = search(chains(12), world, 8, least=12, left=left)
    states = {entry.name: entry.state for entry in entries}
    measured = [name for name, state in states.items() if state == "measured"]
    assert 0 < len(measured) < 12
    assert set(states.values()) == {"measured", "stopped"}
    assert {entry.name for entry in finalists(entries, 1)} == set(measured)
