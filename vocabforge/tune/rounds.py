"""Rounds over all that is measured, in a random order: whatever else the machine does falls on all of it alike."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence

from ..core.progress import ProgressBar

Task = tuple[str, Callable[[int], None]]  # what it measures, and the measuring of one round

BETWEEN = 8  # tasks between two times of a task that is done again and again


def interspersed(tasks: Sequence[Task], again: Sequence[Task]) -> list[Task]:
    """The tasks with ``again`` behind every ``BETWEEN`` of them: what much rests on is measured all over a round."""
    found: list[Task] = []
    for number, task in enumerate(tasks, start=1):
        found += [task, *again] if number % BETWEEN == 0 else [task]
    return found


def endless(needed: Sequence[Task], further: Sequence[Task], *, seed: int) -> Iterator[tuple[int, Task]]:
    """Round and task, for ever: the first round in order of importance, the others shuffled."""
    order, stream = [*needed, *further], random.Random(seed)
    for number in itertools.count():
        for task in order:
            yield number, task
        stream.shuffle(order)


def run_rounds(
    needed: Sequence[Task], further: Sequence[Task], *, seconds: float, most: int, seed: int
) -> tuple[int, list[str]]:
    """Go over the tasks until the time is up; the first round in order of importance, the others shuffled.

    Args:
        needed: done once whatever they take.
        further: a task may stand in them more than once.
        seconds: that may be spent.
        most: rounds.
        seed: of the order in a round.

    Returns:
        whole rounds (1 where not even the first was), and what the first left out.
    """
    end = time.monotonic() + seconds
    order, rounds = [*needed, *further], 0
    stream = random.Random(seed)
    with ProgressBar("Measuring latency", seconds, "s") as bar:
        last = time.monotonic()
        for number in range(most):
            for done, (_, measure) in enumerate(order):
                now = time.monotonic()
                bar.update(now - last, note=f"round {number + 1}, {done} of {len(order)}")
                last = now
                if now > end and (number or done >= len(needed)):
                    return max(rounds, 1), [] if number else _left_out(order, done)
                measure(number)
            rounds += 1
            stream.shuffle(order)
    return rounds, []


def _left_out(order: Sequence[Task], done: int) -> list[str]:
    """What a first round that ended before its task of this number never measured."""
    known = {text for text, _ in order[:done]}
    return [f"not measured, no time left: {text}" for text, _ in order[done:] if text not in known]
