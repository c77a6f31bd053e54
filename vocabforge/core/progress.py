"""Progress that people watch: one bar with rate and time left on a terminal, sparse lines elsewhere.

Everything goes to stderr, so that ``--json`` on stdout stays clean, and only rank 0 speaks.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from .console import open_console, spelled_out
from .distributed import rank

if TYPE_CHECKING:  # rich is only needed where a bar is drawn
    from rich.console import Console
    from rich.progress import Progress

_LINE_EVERY_S = 15.0


def console() -> Console:
    """The console for messages to people (stderr)."""
    return open_console(stderr=True, soft_wrap=True)


def say(message: str) -> None:
    """One line to stderr, from rank 0 only."""
    if rank() == 0:
        print(spelled_out(message), file=sys.stderr, flush=True)  # noqa: T201


def human_rate(value: float, unit: str) -> str:
    """``1234567, "tokens"`` -> ``1.2M tokens/s``; ``unit="B"`` gives MB/s."""
    if unit == "B":
        return f"{value / 1e6:.1f} MB/s"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{suffix} {unit}/s"
    return f"{value:.1f} {unit}/s"


def _bar(out: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(human_rate(speed, task.fields["unit"]) if speed else "", style="cyan")

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        TextColumn("{task.percentage:>3.0f}%"),
        RateColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
        console=out,
    )


class ProgressBar:
    """Context manager around one piece of long work.

    Args:
        description: what is being done.
        total: amount of work, or None when unknown.
        unit: name of what is counted (``B`` for bytes).
        initial: work done by an earlier run: part of the share, not of the rate.
    """

    def __init__(self, description: str, total: float | None, unit: str, *, initial: float = 0) -> None:
        self.description, self.total, self.unit = description, total, unit
        self._silent = rank() != 0
        self._bar: Progress | None = None
        self._initial, self._done, self._note = initial, initial, ""
        self._start = self._last = time.monotonic()

    def __enter__(self) -> ProgressBar:
        # FORCE_COLOR makes rich take a log file for a terminal: ask the stream itself.
        if not self._silent and sys.stderr.isatty() and not (out := console()).is_dumb_terminal:
            self._bar = _bar(out)
            self._bar.start()
            self._task = self._bar.add_task(
                self.description, total=self.total, completed=int(self._initial), unit=self.unit, note=""
            )
        return self

    def update(self, advance: float = 0, note: str | None = None) -> None:
        """Advance by an amount of work; ``note`` replaces the text at the bar's end."""
        self._done += advance
        if note is not None:
            self._note = note
        if self._bar is not None:
            self._bar.update(self._task, advance=advance, note=self._note)
        elif not self._silent and time.monotonic() - self._last >= _LINE_EVERY_S:
            self._last = time.monotonic()
            self._line()

    def _line(self) -> None:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        speed = (self._done - self._initial) / elapsed
        parts = [self.description]
        if self.total:
            parts.append(f"{100 * self._done / self.total:.0f}%")
        parts.append(human_rate(speed, self.unit))
        parts.append(f"{elapsed:.0f} s")
        if self.total and speed > 0 and self._done < self.total:
            parts.append(f"{(self.total - self._done) / speed:.0f} s left")
        if self._note:
            parts.append(self._note)
        print(spelled_out(" | ".join(parts)), file=sys.stderr, flush=True)  # noqa: T201 (progress off a terminal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._silent and kind is None:
            self._line()
