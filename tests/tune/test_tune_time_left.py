"""The time that is left of a tuning run: methods of different speed, and a budget that ends it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.progress_support import Clock, Forecasts, fake_clock
from tests.tune.support import Formula, Worlds, chains
from vocabforge.tune.latency.measure import run_rounds
from vocabforge.tune.run import _search


class Timed(Worlds):
    """Methods whose answers take 1 to 3 s each, and twice as long for the first."""

    def __init__(self, clock: Clock, seconds: float, known: int = 0) -> None:
        self.candidates = chains(56)
        lengths = {one.name: sum(0.8**j for j in range(one.tree.levels + 1)) for one in self.candidates}
        super().__init__(lengths, Formula())
        self.clock = clock
        self.decoded = {one.name: 2 for one in self.candidates[:known]}
        settings = SimpleNamespace(seconds=seconds, latency_seconds=0.0)
        source = type("Source", (), {"__len__": lambda _: 20})()
        self.loaded: Any = SimpleNamespace(source=source, settings=settings)
        self.answers = 0

    def known(self, candidate) -> int:
        return self.decoded.get(candidate.name, 0)

    def measure(self, candidate, prompts: int):
        if (new := prompts - self.known(candidate)) > 0:
            each = 1 + 2 * (candidate.tree.levels % 7) / 7
            self.clock.now += new * each + (0.0 if self.answers else each)
            self.answers += new
            self.loaded.source.on_answers(new)
        return super().measure(candidate, max(prompts, self.known(candidate)))[:prompts]


@pytest.mark.parametrize("known", [0, 40])
def test_a_search_without_an_end(monkeypatch, known: int) -> None:
    clock = fake_clock(monkeypatch)
    forecasts, ways = Forecasts(monkeypatch, clock), Timed(clock, math.inf, known)
    _, late = _search(ways)  # type: ignore[arg-type]
    assert not late
    assert forecasts.worst("Acceptance") <= 2


def test_a_search_that_its_budget_ends(monkeypatch, capsys) -> None:
    clock = fake_clock(monkeypatch)
    forecasts, ways = Forecasts(monkeypatch, clock), Timed(clock, 100.0)
    _, late = _search(ways)  # type: ignore[arg-type]
    assert late
    assert ways.answers < 112, "not even the first round was reached"
    assert forecasts.worst("Acceptance", by="time") <= 2
    assert "for at most 100 s" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", [20.0, 300.0])
def test_latency_in_rounds(monkeypatch, seconds: float) -> None:
    clock = fake_clock(monkeypatch)
    forecasts = Forecasts(monkeypatch, clock)

    def task(takes: float):
        return f"{takes}", lambda number: setattr(clock, "now", clock.now + takes)

    needed, further = [task(0.5 + n % 3) for n in range(20)], [task(0.2 * (n % 5)) for n in range(60)]
    rounds, left_out = run_rounds(needed, further, seconds=seconds, most=30)
    assert forecasts.worst("Measuring latency, what is needed") <= 2
    if seconds == 20:  # already spent
        assert (rounds, len(left_out)) == (1, 60)
    else:
        assert rounds > 2
        assert forecasts.worst("Measuring latency", by="time") <= 2
