"""The time that is left of a tuning run: methods of different speed, and a budget that ends it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.core.progress_support import Clock, Forecasts, fake_clock
from tests.tune.support import Worlds, chains, speedups_of
from vocabforge.tune.measure import Measured
from vocabforge.tune.run import _search
from vocabforge.tune.space import TuneCandidate


class Timed(Worlds):
    """Methods whose answers take 1 to 3 s each, and twice as long for the first."""

    def __init__(self, clock: Clock, seconds: float, known: int = 0) -> None:
        self.candidates = chains(56)
        super().__init__(speedups_of(0.8, 56))
        self.clock = clock
        self.decoded = {one.name: 2 for one in self.candidates[:known]}
        self.settings = SimpleNamespace(seconds=seconds, batch=(1,))
        self.meter: Any = type("Meter", (), {"__len__": lambda _: 20})()
        self.answers = 0

    def known(self, candidate: TuneCandidate) -> int:
        return self.decoded.get(candidate.name, 0)

    def measure(
        self, some: Sequence[TuneCandidate], prompts: int, left: Callable[[], float] | None
    ) -> list[Mapping[int, Measured]]:
        found: list[Mapping[int, Measured]] = []
        for candidate in some:
            if left is not None and not (any(found) and left() <= 0):
                if (new := prompts - self.known(candidate)) > 0:
                    each = 1 + 2 * (candidate.tree.levels % 7) / 7
                    self.clock.now += new * each + (0.0 if self.answers else each)
                    self.answers += new
                    self.meter.on_answers(new)
                self.decoded[candidate.name] = max(prompts, self.known(candidate))
            done = min(prompts, self.known(candidate))
            found.append(self.figures(candidate, done) if done else {})
        return found


@pytest.mark.parametrize("known", [0, 40])
def test_a_search_without_an_end(monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    clock = fake_clock(monkeypatch)
    forecasts, ways = Forecasts(monkeypatch, clock), Timed(clock, math.inf, known)
    _, late = _search(ways)  # type: ignore[arg-type]
    assert not late
    assert forecasts.worst("Measuring") <= 2


def test_a_search_that_its_budget_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = fake_clock(monkeypatch)
    forecasts, ways = Forecasts(monkeypatch, clock), Timed(clock, 100.0)
    _, late = _search(ways)  # type: ignore[arg-type]
    assert late
    assert ways.answers < 112, "not even the first round was reached"
    assert forecasts.worst("Measuring", by="time") <= 2
    assert "for at most 100 s" in capsys.readouterr().err
