"""Schedules: the number of tokens of a ranked draft vocabulary that each draft step may use (PA-FR).

At draft step t the vocabulary is ``V_t = {v : rank(v) <= B(t)}``. Every schedule has B(0) = B(1) = k_max,
then decreases to k_min and never increases. DynaSpec's formula is missing from its text; ``decay`` is our
interpretation and the default.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import UsageError
from ...core.registry import resolve

# name -> "module:attr"; a schedule gets (step >= 1, k_max, k_min, steps) and returns B(step).
SCHEDULES: dict[str, str] = {
    "constant": "vocabforge.vocab.subset.schedule:constant",
    "linear": "vocabforge.vocab.subset.schedule:linear",
    "geometric": "vocabforge.vocab.subset.schedule:geometric",
    "decay": "vocabforge.vocab.subset.schedule:decay",
}
DEFAULT_STEPS = 7


def schedule_sizes(
    schedule: str, k_max: int, k_min: int | None = None, steps: int = DEFAULT_STEPS
) -> tuple[int, ...]:
    """Return B(0) ... B(K - 1), non-increasing, within k_min .. k_max; K = ``steps``.

    ``constant`` has no k_min.

    Raises:
        UsageError: an unknown schedule, K below 1, sizes below 1 or in the wrong order, or a k_min that is
            missing or not applicable.
    """
    function: Callable[[int, int, int, int], int] = resolve(SCHEDULES, schedule, "schedule")
    if schedule == "constant":
        if k_min is not None and k_min != k_max:
            raise UsageError(
                "a constant schedule has one size only",
                got=f"k_min {k_min:,}, k_max {k_max:,}",
                remedy="omit --k-min",
            )
        k_min = k_max
    if k_min is None:
        raise UsageError(f"the schedule {schedule} needs a smallest size", expected="--k-min N")
    if not 1 <= k_min <= k_max:
        raise UsageError(
            "the sizes of the schedule are not in order",
            got=f"k_min {k_min:,}, k_max {k_max:,}",
            expected="1 <= k_min <= k_max",
        )
    if steps < 1:
        raise UsageError("a schedule needs at least one draft step", got=steps, expected="1 or more")
    return tuple(function(max(step, 1), k_max, k_min, steps) for step in range(steps))


def constant(step: int, k_max: int, k_min: int, steps: int) -> int:
    """Return B(t) = k_max."""
    return k_max


def linear(step: int, k_max: int, k_min: int, steps: int) -> int:
    """Return B(t) for equal steps down, rounded down: k_max at t = 1, k_min at t = K - 1."""
    falls = steps - 2
    return k_max - -(-(k_max - k_min) * (step - 1) // falls) if step > 1 else k_max


def geometric(step: int, k_max: int, k_min: int, steps: int) -> int:
    """Return B(t) for an equal ratio per step, rounded to nearest: k_max at t = 1, k_min at t = K - 1."""
    if step <= 1:
        return k_max
    share = (step - 1) / (steps - 2)
    return min(k_max, max(k_min, round(k_max * (k_min / k_max) ** share)))


def decay(step: int, k_max: int, k_min: int, steps: int) -> int:
    """Return B(t) = max(k_min, floor(k_max / t)) for t >= 1."""
    return max(k_min, k_max // step)
