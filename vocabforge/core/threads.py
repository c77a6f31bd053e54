"""Choice of the number of CPU threads, measured during the work.

OpenMP threads synchronise after every matrix product. If another process occupies a core, or the products
are small, an additional thread slows all of them down.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence

BURST_UNITS, BURST_S = 2, 0.05  # minimum units and seconds of a burst; its first unit is not measured
DROPPED = 4.0  # a count that is this many times slower is dropped within its burst
DECIDED = 1.25  # a count that is faster or slower by this factor needs no second burst
# Time relative to the current count below which more or fewer threads are chosen.
MORE, FEWER = 0.96, 1.02
SHARE = 0.02  # maximum fraction of time that trials may cost
WAIT_S = (2.0, 30.0)  # time between trials, doubled while they change nothing
FALL = 1.3  # units that are this many times slower than after the last trial start a new one


def thread_counts(most: int) -> list[int]:
    """Return the powers of two below ``most``, and ``most``."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def user_threads() -> bool:
    """Return whether the user has set the number of threads."""
    return "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ


class Burst:
    """Measured seconds and units of work, by kind."""

    def __init__(self) -> None:
        self.seconds: dict[Hashable, float] = {}
        self.units: dict[Hashable, int] = {}

    def add(self, kind: Hashable, seconds: float) -> None:
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        self.units[kind] = self.units.get(kind, 0) + 1

    def done(self, times: int = 1) -> bool:
        units, seconds = sum(self.units.values()), sum(self.seconds.values())
        return units >= times * BURST_UNITS and seconds >= times * BURST_S

    def over(self, other: Burst) -> tuple[float, float]:
        """Compare times on the kinds that both bursts measured.

        Returns:
            Seconds of this burst, and the seconds that ``other`` needs for the same units.
        """
        both = [kind for kind in self.units if kind in other.units]
        theirs = (other.seconds[kind] * self.units[kind] / other.units[kind] for kind in both)
        return sum(self.seconds[kind] for kind in both), sum(theirs)


class ThreadChoice:
    """Chooses the thread count from the measured duration of similar work units.

    From time to time another count is tried in short bursts that alternate with the current one. The wait
    until the next trial depends on the time that the trial cost.

    Args:
        counts: candidates in ascending order; the last one is used first.
        apply: sets the number of threads (``torch.set_num_threads``).
    """

    def __init__(self, counts: Sequence[int], apply: Callable[[int], object]) -> None:
        self._counts, self._apply = list(counts), apply
        self._place = self._running = len(self._counts) - 1
        self._trial: int | None = None
        self._bursts: dict[int, Burst] = {}
        self._turns = 0  # bursts of the trial that have ended
        self._settled = len(self._counts) == 1
        self._fresh = True  # the count was just set: its next unit is not measured
        self._down = True  # the direction of the next trial
        self._since, self._wait, self._backoff, self._lost = 0.0, 0.0, WAIT_S[0], 0.0
        self._usual, self._late = Burst(), Burst()  # first units after the last trial, and latest units
        if not self._settled:
            self._start()

    @property
    def count(self) -> int:
        """Number of threads for the next unit of work."""
        return self._counts[self._running]

    @property
    def trying(self) -> bool:
        """Whether the current count is on trial."""
        return self._running != self._place

    @property
    def settled(self) -> bool:
        """Whether trials are paused because no other count is expected to be faster."""
        return self._settled

    def begin(self) -> None:
        """Set the number of threads, which other code may have changed."""
        self._apply(self.count)

    def observe(self, kind: Hashable, seconds: float) -> None:
        """Record a finished unit of work.

        Args:
            kind: identifies units of similar duration.
        """
        if len(self._counts) == 1:
            return
        fresh, self._fresh = self._fresh, False
        if self._trial is None:
            self._since += seconds
            if not fresh:
                self._watch(kind, seconds)
            return
        burst = self._bursts[self._running]
        if self.trying:
            self._lost += seconds
        if not fresh or seconds > BURST_S:
            burst.add(kind, seconds)
        mine, theirs = burst.over(self._bursts[self._place])
        if burst.done(1 + self._turns // 2) or (self.trying and mine > max(DROPPED * theirs, BURST_S)):
            self._turn()

    def _watch(self, kind: Hashable, seconds: float) -> None:
        """Start the next trial if it is due or if the work has become slower."""
        self._late.add(kind, seconds)
        if self._late.done():
            if not self._usual.units:
                self._usual = self._late
            late, usual = self._late.over(self._usual)
            self._late = Burst()
            if late > FALL * usual:
                self._wait, self._backoff = 0.0, WAIT_S[0]
        if self._since >= self._wait and self._since >= self._lost / SHARE and self._usual.units:
            self._start()

    def _start(self) -> None:
        if not 0 <= self._place + (-1 if self._down else 1) < len(self._counts):
            self._down = not self._down
        self._trial = self._place + (-1 if self._down else 1)
        self._bursts = {self._place: Burst(), self._trial: Burst()}
        self._turns, self._lost = 0, 0.0

    def _turn(self) -> None:
        """End a burst: switch to the other count or decide."""
        assert self._trial is not None
        self._turns += 1
        if self._turns % 2 == 0:
            mine, theirs = self._bursts[self._trial].over(self._bursts[self._place])
            clear = mine > DECIDED * theirs or theirs > DECIDED * mine
            if self._turns == 4 or clear or not theirs:
                self._decide(mine, theirs)
                return
        self._run(self._trial if self._running == self._place else self._place)

    def _decide(self, mine: float, theirs: float) -> None:
        assert self._trial is not None
        better = bool(theirs) and mine < theirs * (FEWER if self._down else MORE)
        self._lost = max(0.0, self._lost - theirs)
        if better:
            self._place, self._backoff = self._trial, WAIT_S[0]
            self._settled = not 0 < self._place < len(self._counts) - 1  # no further count in this direction
            self._wait = self._backoff if self._settled else 0.0
        else:
            self._down, self._settled = not self._down, True
            self._wait, self._backoff = self._backoff, min(2 * self._backoff, WAIT_S[1])
        self._trial, self._since = None, 0.0
        self._usual, self._late = Burst(), Burst()
        self._run(self._place)

    def _run(self, place: int) -> None:
        self._fresh = place != self._running
        self._running = place
        self._apply(self.count)
