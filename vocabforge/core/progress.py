"""Progress of long work, with the time left: a live line in a terminal, a line every few seconds elsewhere.

All output goes to stderr, which keeps ``--json`` on stdout clean, and only rank 0 prints. Running work is
kept on a stack. A thread prints the innermost entry, even if that work reports no progress.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .console import console, spelled_out
from .distributed import rank

if TYPE_CHECKING:  # rich is imported only when something is shown
    from rich.console import RenderableType
    from rich.live import Live

_LINE_EVERY_S = 8.0  # in a log; including the thread's pause, at most 10 s without a line
_SHOWN_AFTER_S = 1.0  # delay in a terminal for work without a unit, most of which is shorter
_PAUSE_S = 0.5
_NOTEBOOK_COLUMNS = 100  # lines are padded to this width to overwrite the previous one


def human_rate(value: float, unit: str) -> str:
    """Format a rate per second: ``1234567, "tokens"`` -> ``1.2M tokens/s``; ``unit="B"`` gives MB/s.

    Rates below 0.5 are given per minute, or per hour.
    """
    if unit == "B":
        return f"{value / 1e6:.1f} MB/s"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{suffix} {unit}/s"
    for seconds, period in ((1, "s"), (60, "min")):
        if not value or value * seconds >= 0.5:
            return f"{value * seconds:.1f} {unit}/{period}"
    return f"{value * 3600:.1f} {unit}/h"


class _Pace:
    """Pace of one kind of work: remaining amount and seconds per unit."""

    def __init__(self, ahead: float) -> None:
        self.ahead, self.done, self.seconds = ahead, 0.0, 0.0
        self._first = 0.0, 0.0

    def add(self, amount: float, seconds: float) -> None:
        if not self.done:
            self._first = amount, seconds
        self.ahead = max(0.0, self.ahead - amount)
        self.done += amount
        self.seconds += seconds

    @property
    def seconds_a_unit(self) -> float:
        """Seconds per unit. The first report is ignored if there are others: it includes warm-up."""
        amount, seconds = self._first
        if self.done > amount:
            return (self.seconds - seconds) / (self.done - amount)
        return self.seconds / self.done if self.done else 0.0


class ProgressBar:
    """Context manager that shows the progress of one piece of long work.

    Args:
        unit: name of the unit (``B`` for bytes); without a unit only the elapsed time is shown.
        initial: work done by an earlier run; included in the percentage but not in the rate.
        kinds: remaining work by kind, for kinds that differ in speed; sums to ``total - initial``.
        weights: assumed relative time per unit of each kind, used until the kind is measured.
        asides: remaining number of interruptions by name, such as evaluations, not counted in ``unit``.
        limit_s: time limit in seconds, after which the work ends even if incomplete.
    """

    def __init__(
        self,
        description: str,
        total: float | None = None,
        unit: str = "",
        *,
        initial: float = 0,
        kinds: Mapping[Any, float] | None = None,
        weights: Mapping[Any, float] | None = None,
        asides: Mapping[str, float] | None = None,
        limit_s: float | None = None,
    ) -> None:
        self.description, self.total = description, total
        self.unit = unit if total != 0 else ""  # no work is not worth a line
        self._done, self._note, self._limit_s = initial, "", limit_s
        ahead = {"": max(0.0, (total or 0) - initial)} if kinds is None else kinds
        self._kinds: dict[Hashable, _Pace] = {name: _Pace(amount) for name, amount in ahead.items()}
        self._weights: Mapping[Hashable, float] = weights or {}
        self._asides = {name: _Pace(times) for name, times in (asides or {}).items()}
        self._told = False
        self._start = self._since = time.monotonic()
        self._under_way = 0.0  # seconds spent on a unit before an aside interrupted it

    def __enter__(self) -> ProgressBar:
        if rank() == 0:
            _voice.open(self)
        return self

    def update(self, advance: float = 0, note: str | None = None, kind: Hashable = "") -> None:
        """Advance by an amount of work, which is timed from the previous advance.

        Args:
            note: new text at the end of the line.
            kind: kind of the work, one of ``kinds``.
        """
        if advance:
            now = time.monotonic()
            self._kinds[kind].add(advance, self._under_way + now - self._since)
            self._since, self._under_way = now, 0.0
            self._done += advance
        if note is not None:
            self._note = note
        _voice.beat()

    def skip(self, amount: float, kind: Hashable = "") -> None:
        """Count an amount of work as done without affecting the rate."""
        self._done += amount
        self._kinds[kind].ahead -= amount

    @contextmanager
    def aside(self, name: str) -> Iterator[None]:
        """Exclude the ``with`` block from the rate and show ``name``, one of ``asides``, as the note."""
        began, note = time.monotonic(), self._note
        self._under_way += began - self._since
        self._note = name
        try:
            yield
        finally:
            self._since = time.monotonic()
            self._asides[name].add(1, self._since - began)
            self._note = note

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining seconds: remaining amount times pace, summed over kinds; None if unknown.

        Kinds without a measurement use the average pace of the others. Unmeasured asides count as 0 s.
        """
        until = None if self._limit_s is None else max(0.0, self._start + self._limit_s - time.monotonic())
        met = {name: pace for name, pace in self._kinds.items() if pace.done}
        if not self.total or not met:
            return until
        weigh = self._weights.get
        usual = sum(pace.done * pace.seconds_a_unit for pace in met.values()) / sum(
            pace.done * weigh(name, 1.0) for name, pace in met.items()
        )
        left = sum(
            pace.ahead * (pace.seconds_a_unit if name in met else usual * weigh(name, 1.0))
            for name, pace in self._kinds.items()
        )
        left += sum(pace.ahead * pace.seconds_a_unit for pace in self._asides.values())
        return left if until is None else min(left, until)

    def words(self) -> list[str]:
        """Return percentage, rate, elapsed time, time left and note, as far as known."""
        seconds, done = time.monotonic() - self._start, sum(kind.done for kind in self._kinds.values())
        worked = sum(kind.seconds for kind in self._kinds.values())
        words = [f"{100 * self._done / self.total:.0f}%"] if self.total else []
        words += [human_rate(done / max(worked, 1e-9), self.unit)] if done and self.unit else []
        words.append(f"{seconds:.0f} s")
        left = self.seconds_left
        if left is not None and self._done < (self.total or 0):
            words.append(f"{left:.0f} s left")
        return [*words, self._note] if self._note else words

    def line(self, end: str = "\n") -> None:
        """Print the state to stderr; in a notebook, overwrite the previous line."""
        self._told = True
        text = spelled_out(" | ".join([self.description, *self.words()]))
        if _in_notebook():
            text = f"\r{text:<{_NOTEBOOK_COLUMNS}}"
        print(text, end=end, file=sys.stderr, flush=True)  # noqa: T201

    def row(self) -> RenderableType:
        """Return the state as a renderable for a terminal."""
        from rich import progress_bar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        bar = progress_bar.ProgressBar(self.total, self._done, width=28, pulse=self.total is None)
        rest = Text(spelled_out(" | ".join(self.words())), no_wrap=True, overflow="ellipsis")
        grid.add_row(Text(spelled_out(self.description), no_wrap=True), bar, rest)
        return grid

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if rank() == 0:
            _voice.close(self, tell=bool(self.unit) or self._told, failed=kind is not None)


class _Voice:
    """Stack of running work (innermost last) and its display."""

    def __init__(self) -> None:
        self.bars: list[ProgressBar] = []
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._last = 0.0
        self._hidden = self._hushed = False

    def open(self, bar: ProgressBar) -> None:
        with self._lock:
            self.bars.append(bar)
            if len(self.bars) == 1:
                self._last, self._hidden = time.monotonic(), False
                threading.Thread(target=self._speak, args=(bar,), daemon=True).start()
            if bar.unit:
                self._hidden = False
                self._show()

    def close(self, bar: ProgressBar, *, tell: bool, failed: bool) -> None:
        with self._lock:
            self.bars.remove(bar)
            if self._live is not None:
                if bar.unit:
                    self._live.console.print(bar.row())
                if not self.bars:
                    self.hide()
            elif tell and not failed and not _on_terminal():
                bar.line()
                self._last = time.monotonic()

    def beat(self) -> None:
        """Show the innermost work if an update is due."""
        with self._lock:
            if not self.bars or self._hushed or self._live is not None:
                return
            if _on_terminal():
                if time.monotonic() - self._last >= _SHOWN_AFTER_S and not self._hidden:
                    self._show()
            elif time.monotonic() - self._last >= (_SHOWN_AFTER_S if _in_notebook() else _LINE_EVERY_S):
                self._last = time.monotonic()
                self.bars[-1].line("" if _in_notebook() else "\n")

    def hide(self) -> None:
        with self._lock:
            self._hidden = True
            if self._live is not None:
                self._live.stop()
                self._live = None

    @contextmanager
    def hushed(self) -> Iterator[None]:
        self.hide()
        self._hushed = True
        try:
            yield
        finally:
            self._hushed = False

    def _show(self) -> None:
        if self._live is not None or not _on_terminal():
            return
        from rich.live import Live

        self._live = Live(
            console=console(),
            get_renderable=self._row,
            transient=True,
            refresh_per_second=5,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start()

    def _row(self) -> RenderableType:
        return self.bars[-1].row() if self.bars else ""

    def _speak(self, outermost: ProgressBar) -> None:
        while outermost in self.bars:
            time.sleep(_PAUSE_S)
            self.beat()


def _on_terminal() -> bool:
    # Check the stream itself: with FORCE_COLOR rich treats a log file as a terminal.
    return sys.stderr.isatty() and not console().is_dumb_terminal


def _in_notebook() -> bool:
    # Notebook output supports carriage returns, unlike a log file.
    return "ipykernel" in sys.modules


_voice = _Voice()


def hide() -> None:
    """Remove the live line from the terminal before results are printed."""
    _voice.hide()


def hushed() -> AbstractContextManager[None]:
    """Suspend progress output while other text (generated text, a child process) is written to stderr."""
    return _voice.hushed()
