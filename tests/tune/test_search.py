"""Successive halving finds the best way, decodes little, and throws nothing away that could win."""

from __future__ import annotations

import pytest

from tests.tune.support import Formula, Worlds, chains
from vocabforge.tune.search.search import finalists, ranked, search


def lengths_of(acceptance: float, count: int, head: str = "full") -> dict[str, float]:
    return {one.name: sum(acceptance**j for j in range(one.tree.levels + 1)) for one in chains(count, head)}


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
def test_the_best_is_found_and_measured_on_all_prompts(acceptance: float) -> None:
    found = chains(24)
    world = Worlds(lengths_of(acceptance, 24), Formula())
    entries = search(found, world, 16, least=4)
    true = {one.name: world.predict(one, world.rows(one, 16))[1].value for one in found}
    best = finalists(entries, 1)[0]
    assert best.value(1) == pytest.approx(max(true.values()))
    assert best.state == "measured"
    assert len(best.rows) == 16
    assert [entry.name for entry in entries] == [one.name for one in found]


def test_later_rounds_decode_the_better_half_alone() -> None:
    world = Worlds(lengths_of(0.9, 32), Formula(node=1e-4, token=0.0))
    search(chains(32), world, 16, least=4)
    by_prompts = [sum(prompts >= size for prompts in world.decoded.values()) for size in (2, 4, 8, 16)]
    assert by_prompts == [32, 16, 8, 4]


def test_each_head_has_its_best_way_in_the_end() -> None:
    found = [*chains(12, "good"), *chains(12, "poor")]
    world = Worlds({**lengths_of(0.8, 12, "good"), **lengths_of(0.3, 12, "poor")}, Formula(node=1e-4))
    entries = search(found, world, 8, least=2)
    last = {entry.candidate.head.name for entry in finalists(entries, 1)}
    assert last == {"good", "poor"}
    assert finalists(entries, 1)[0].candidate.head.name == "good"


def test_when_the_time_is_up_what_is_known_is_kept() -> None:
    spent = [0]

    def left(number: int) -> float:
        spent[0] += 1
        return 1.0 if spent[0] < 6 else 0.0

    world = Worlds(lengths_of(0.8, 20), Formula(node=1e-5))
    entries = search(chains(20), world, 8, left=left)
    states = [entry.state for entry in entries]
    assert states.count("not reached") >= 10
    assert "measured" not in states
    assert 1 <= len(ranked(entries, 1)) == len(world.decoded) <= 6
    # nothing at all left: still one is measured
    world = Worlds(lengths_of(0.8, 20), Formula())
    assert len(ranked(search(chains(20), world, 8, left=lambda number: 0.0), 1)) == 1


def test_a_way_that_is_best_for_one_batch_size_only_survives() -> None:
    # A node costs nothing alone and a lot side by side: long chains win alone, short ones in a batch.
    world = Worlds(lengths_of(0.9, 16), Formula(node=3e-4, token=0.0), batches=(1, 64))
    entries = search(chains(16), world, 8, least=1)
    best = {batch: finalists(entries, batch)[0].candidate.tree.levels for batch in (1, 64)}
    assert best[1] > best[64]
