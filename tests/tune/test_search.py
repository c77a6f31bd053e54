"""Successive halving finds the best method, and what is recommended of what it found."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.progress_support import Clock, Forecasts, fake_clock
from tests.tune.support import Worlds, chains, levels_of, speedups_of
from vocabforge.decode.build.recipe import PLAIN
from vocabforge.tune.results import recommend
from vocabforge.tune.run import run_search
from vocabforge.tune.search import Candidate, finalists, ranked, search


@pytest.mark.parametrize("acceptance", [0.2, 0.5, 0.8, 0.95])
def test_the_best_is_found_and_measured_on_all_prompts(acceptance: float) -> None:
    found, world = chains(24), Worlds(speedups_of(acceptance, 24))
    search(found, world.measure, 16, least=4)
    best = finalists(found)[0]
    assert best.value == pytest.approx(max(world.speedups.values()))
    assert (best.state, best.measured and best.measured.groups) == ("measured", 16)


def test_later_rounds_decode_the_better_half_alone() -> None:
    world = Worlds(speedups_of(0.9, 32, node=0.01))
    search(chains(32), world.measure, 16, least=4)
    by_groups = [sum(groups >= size for groups in world.decoded.values()) for size in (2, 4, 8, 16)]
    assert by_groups == [32, 16, 8, 4]


def test_each_head_has_its_best_method_in_the_end() -> None:
    found = [*chains(12, "good"), *chains(12, "poor")]
    world = Worlds({**speedups_of(0.8, 12, "good"), **speedups_of(0.3, 12, "poor")})
    search(found, world.measure, 8, least=2)
    assert {one.head for one in finalists(found)} == {"good", "poor"}
    assert finalists(found)[0].head == "good"


def test_when_the_time_is_up_what_is_known_is_kept() -> None:
    spent = [0]

    def left(number: int) -> float:
        spent[0] += 1
        return 1.0 if spent[0] < 6 else 0.0

    found, world = chains(20), Worlds(speedups_of(0.8, 20))
    search(found, world.measure, 8, left=left)
    states = [one.state for one in found]
    assert states.count("not reached") >= 10
    assert "measured" not in states
    assert 1 <= len(ranked(found)) == len(world.decoded) <= 6
    # Nothing at all is left: one is measured still.
    found = chains(20)
    search(found, Worlds(speedups_of(0.8, 20)).measure, 8, left=lambda number: 0.0)
    assert len(ranked(found)) == 1


def test_a_round_that_ends_early_does_not_pass_for_whole() -> None:
    """The last round is cut: only candidates with the same prompts compete."""
    rounds: list[int] = []

    def left(number: int) -> float:
        rounds.append(number)
        return 1.0 if number < 3 or rounds.count(3) < 4 else 0.0

    found = chains(12)
    search(found, Worlds(speedups_of(0.8, 12)).measure, 8, least=12, left=left)
    whole = [one.name for one in found if one.state == "measured"]
    assert 0 < len(whole) < 12
    assert {one.state for one in found} == {"measured", "stopped"}
    assert {one.name for one in finalists(found)} == set(whole)


class Timed(Worlds):
    """Methods whose answers take 1 to 3 s each, and twice as long for the first."""

    def __init__(self, clock: Clock, known: int = 0) -> None:
        super().__init__(speedups_of(0.8, 56))
        self.candidates, self.clock, self.answers = chains(56), clock, 0
        self.decoded = {one.name: 2 for one in self.candidates[:known]}
        self.meter: Any = SimpleNamespace(prompts=SimpleNamespace(prompts=range(20)), groups=20, batch=1)

    def decode(self, candidate: Candidate, groups: int) -> None:
        known = self.decoded.get(candidate.name, 0)
        if (new := groups - known) > 0:
            each = 1 + 2 * (levels_of(candidate.method) % 7) / 7
            self.clock.now += new * each + (0.0 if self.answers else each)
            self.answers += new
            self.meter.on_answers(new)
        self.decoded[candidate.name] = max(groups, known)


@pytest.mark.parametrize("known", [0, 40])
def test_the_time_left_of_a_search_without_an_end(monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    clock = fake_clock(monkeypatch)
    forecasts, world = Forecasts(monkeypatch, clock), Timed(clock, known)
    late = run_search(world.candidates, world.measure, world.meter, 2 * known, math.inf)
    assert not late
    assert forecasts.worst("Measuring") <= 2


def test_the_time_left_of_a_search_that_its_budget_ends(monkeypatch, capsys):
    clock = fake_clock(monkeypatch)
    forecasts, world = Forecasts(monkeypatch, clock), Timed(clock)
    assert run_search(world.candidates, world.measure, world.meter, 0, 100.0)
    assert world.answers < 112, "not even the first round was reached"
    assert forecasts.worst("Measuring", by="time") <= 2
    assert "for at most 100 s" in capsys.readouterr().err


# ---- the recommendation ----


def searched(
    *worlds: tuple[str, float], node: float = 0.1, noise: tuple[float, ...] = (1.0,)
) -> list[Candidate]:
    found = [one for head, _ in worlds for one in chains(6, head)]
    speedups = {
        k: v for head, acceptance in worlds for k, v in speedups_of(acceptance, 6, head, node).items()
    }
    search(found, Worlds(speedups, noise=noise).measure, 8, least=99)
    return found


def test_the_fastest_is_recommended_beside_the_best_of_each_head() -> None:
    candidates = searched(("good", 0.8), ("poor", 0.5))
    found, best = recommend(candidates), max(candidates, key=lambda one: one.value)
    assert (found.method, found.speedup.value) == (best.name, best.value)
    assert found.method.startswith("good")
    assert [name.partition("+")[0] for name in found.others] == ["good", "poor"]
    assert "distinguish" not in " ".join(found.why)


def test_plain_decoding_wins_where_nothing_pays() -> None:
    candidates = searched(("full", 0.3), node=2.0)
    found, best = recommend(candidates), max(candidates, key=lambda one: one.value)
    assert (found.method, found.speedup.value) == (PLAIN, 1.0)
    assert "do without the drafter" in found.why[0]
    assert best.name in found.why[1]
    assert found.others == [best.name]


@pytest.mark.parametrize(
    ("heads", "acceptance", "node", "wins"), [(("full",), 0.3, 0.4, False), ("abcdef", 0.8, 0.6, True)]
)
def test_overlapping_intervals_are_named(heads: Any, acceptance: float, node: float, wins: bool) -> None:
    """Speed-ups near 1 that vary much from prompt to prompt decide nothing."""
    found = recommend(searched(*((head, acceptance) for head in heads), node=node, noise=(0.6, 3.0)))
    assert (found.method != PLAIN) == wins
    assert f"do not distinguish it from {PLAIN if wins else 'full'}" in found.why[-1]
    assert "Plain decoding is faster" not in found.why[0]


def test_only_methods_known_on_the_most_prompts_are_recommended() -> None:
    candidates = searched(("full", 0.8))
    first, second, *_ = sorted(candidates, key=lambda one: -one.value)
    Worlds({first.name: 9.0}).give(first, 2)
    assert recommend(candidates).method == second.name
