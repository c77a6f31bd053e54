"""What is recommended, and what is said of the others."""

from __future__ import annotations

from tests.tune.support import Worlds, chains, speedups_of
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.tune.results import recommend
from vocabforge.tune.search import Entry, search


def entries_of(
    *worlds: tuple[str, float], node: float = 0.1, noise: tuple[float, ...] = (1.0,)
) -> list[Entry]:
    found = [one for head, _ in worlds for one in chains(6, head)]
    speedups = {
        k: v for head, acceptance in worlds for k, v in speedups_of(acceptance, 6, head, node).items()
    }
    return search(found, Worlds(speedups, noise=noise), 8, least=99)


def test_the_fastest_is_recommended_beside_the_best_of_each_head() -> None:
    entries = entries_of(("good", 0.8), ("poor", 0.5))
    found = recommend(entries, 1)
    best = max(entries, key=lambda entry: entry.value(1))
    assert found.method == best.name
    assert found.method.startswith("good")
    assert found.speedup.value == best.value(1)
    assert [name.partition("+")[0] for name in found.others] == ["good", "poor"]
    assert "told from" not in " ".join(found.why)


def test_plain_decoding_wins_where_nothing_pays() -> None:
    entries = entries_of(("full", 0.3), node=2.0)
    found = recommend(entries, 1)
    best = max(entries, key=lambda entry: entry.value(1))
    assert (found.method, found.speedup.value) == (PLAIN, 1.0)
    assert "do without the drafter" in found.why[0]
    assert best.name in found.why[1]
    assert found.others == [best.name]
    assert "told from" not in " ".join(found.why)


def test_plain_decoding_is_not_called_faster_within_the_intervals() -> None:
    """A speed-up a little below 1 that varies much from prompt to prompt decides nothing."""
    found = recommend(entries_of(("full", 0.3), node=0.4, noise=(0.6, 3.0)), 1)
    assert found.method == PLAIN
    assert "is faster" not in found.why[0].replace("No draft head and tree is faster", "")
    assert "do not distinguish it from full" in " ".join(found.why)


def test_a_recommendation_that_may_be_no_faster_than_plain_decoding_says_so_first() -> None:
    found = recommend(entries_of(*((head, 0.8) for head in "abcdef"), noise=(0.6, 3.0), node=0.6), 1)
    assert found.method != PLAIN
    assert f"do not distinguish it from {PLAIN}, " in found.why[-1]


def test_only_ways_known_on_the_most_prompts_are_recommended() -> None:
    entries = entries_of(("full", 0.8))
    order = sorted(entries, key=lambda entry: -entry.value(1))
    few = Worlds({order[0].name: 9.0})
    order[0].by_batch = few.figures(order[0].candidate, 2)
    assert recommend(entries, 1).method == order[1].name
