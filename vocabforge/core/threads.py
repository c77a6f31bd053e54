"""Choice of the number of CPU threads, measured on the first units of work.

OpenMP threads synchronise after every matrix product. If another process occupies a core, or the products
are small, an additional thread slows all of them down.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

BURST_UNITS, BURST_S = 2, 0.05  # minimum units and seconds of a burst; its first unit is not measured
DROPPED = 4.0  # a count that is this many times slower is dropped within its burst
DECIDED = 1.25  # a count that is faster or slower by this factor needs no second burst
FEWER = 1.02  # time relative to twice the threads below which fewer threads are chosen


def thread_counts(most: int) -> list[int]:
    """Return the powers of two below ``most``, and ``most``."""
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the usable cores: the affinity mask, limited by the container's quota if there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return min(cores, int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max": no quota
        return cores


def core_count() -> int:
    """Return the number of usable cores, rounded down, at least 1."""
    return max(1, int(usable_cores()))


def user_threads() -> bool:
    """Return whether the user has set the number of threads."""
    return "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ


class Burst:
    """Measured seconds and units of work, by kind."""

    def __init__(self) -> None:
        self.seconds: defaultdict[Hashable, float] = defaultdict(float)
        self.units: Counter[Hashable] = Counter()

    def add(self, kind: Hashable, seconds: float) -> None:
        self.seconds[kind] += seconds
        self.units[kind] += 1

    def done(self, times: int) -> bool:
        return self.units.total() >= times * BURST_UNITS and sum(self.seconds.values()) >= times * BURST_S

    def over(self, other: Burst) -> tuple[float, float]:
        """Compare times on the kinds that both bursts measured.

        Returns:
            Seconds of this burst, and the seconds that ``other`` needs for the same units.
        """
        both = self.units.keys() & other.units.keys()
        theirs = (other.seconds[kind] * self.units[kind] / other.units[kind] for kind in both)
        return sum(self.seconds[kind] for kind in both), sum(theirs)


class ThreadChoice:
    """Chooses the thread count from the measured duration of similar work units.

    From the highest count on, the next lower one is tried in short bursts that alternate with the current
    one, until a lower count is slower.

    Args:
        counts: candidates in ascending order; the last one is used first.
    """

    def __init__(self, counts: Sequence[int], apply: Callable[[int], object]) -> None:
        self._left, self._apply = list(counts), apply
        self._best = self.count = self._left.pop()
        self._fresh = True  # the count was just set: its next unit is not measured
        self._try_next()

    @property
    def trying(self) -> bool:
        """Whether the current count is on trial."""
        return self.count != self._best

    @property
    def settled(self) -> bool:
        """Whether the choice is final."""
        return not self._left

    def begin(self) -> None:
        """Set the number of threads, which other code may have changed."""
        self._apply(self.count)

    def observe(self, kind: Hashable, seconds: float) -> None:
        """Record a finished unit of work.

        Args:
            kind: identifies units of similar duration.
        """
        if self.settled:
            return
        fresh, self._fresh = self._fresh, False
        burst = self._bursts[self.count]
        if not fresh or seconds > BURST_S:
            burst.add(kind, seconds)
        mine, theirs = burst.over(self._bursts[self._best])
        if burst.done(1 + self._turns // 2) or (self.trying and mine > max(DROPPED * theirs, BURST_S)):
            self._turn()

    def _try_next(self) -> None:
        self._bursts = {count: Burst() for count in (self._best, *self._left[-1:])}
        self._turns = 0  # bursts of the trial that have ended

    def _turn(self) -> None:
        """End a burst: switch to the other count or decide."""
        self._turns += 1
        fewer = self._left[-1]
        if self._turns % 2 == 0:
            mine, theirs = self._bursts[fewer].over(self._bursts[self._best])
            clear = mine > DECIDED * theirs or theirs > DECIDED * mine
            if self._turns == 4 or clear or not theirs:
                if mine < FEWER * theirs:
                    self._best = self._left.pop()
                else:
                    self._left.clear()
                self._try_next()
                self._run(self._best)
                return
        self._run(self._best if self.trying else fewer)

    def _run(self, count: int) -> None:
        self._fresh = count != self.count
        self.count = count
        self._apply(count)
