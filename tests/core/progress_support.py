"""A clock that tests set, and what a progress bar says of the time left."""

from __future__ import annotations

from typing import Literal

import pytest

from vocabforge.core import progress
from vocabforge.core.progress import ProgressBar


class Clock:
    """In place of ``time.monotonic``."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def fake_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the process; the thread that tells of silent work waits for the test's end."""
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock.monotonic)
    monkeypatch.setattr(progress, "_PAUSE_S", 1e-3)
    return clock


class Forecasts:
    """Watches all bars: (share done, time, seconds left) after each advance, by description."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
        self.made: dict[str, list[tuple[float, float, float]]] = {}
        self.spans: dict[str, tuple[float, float]] = {}
        update, leave = ProgressBar.update, ProgressBar.__exit__

        def watched(bar: ProgressBar, advance: float = 0, *given, **named) -> None:
            update(bar, advance, *given, **named)
            if advance and bar.total:
                assert bar.seconds_left is not None
                done, ahead = (
                    sum(getattr(kind, name) for kind in bar._kinds.values()) for name in ("done", "ahead")
                )
                entry = done / (done + ahead), clock.now, bar.seconds_left
                self.made.setdefault(bar.description, []).append(entry)

        def left(bar: ProgressBar, *error) -> None:
            leave(bar, *error)
            self.spans[bar.description] = bar._start, clock.now

        monkeypatch.setattr(ProgressBar, "update", watched)
        monkeypatch.setattr(ProgressBar, "__exit__", left)

    def worst(self, description: str, *, by: Literal["share", "time"] = "share") -> float:
        """Largest factor between forecast and truth after a tenth of the work, up to its last twentieth."""
        start, end = self.spans[description]
        factors = [
            left / (end - now)
            for share, now, left in self.made[description]
            if 0.1 <= (share if by == "share" else (now - start) / (end - start)) <= 0.95
        ]
        assert factors
        return max(max(one, 1 / max(one, 1e-9)) for one in factors)
