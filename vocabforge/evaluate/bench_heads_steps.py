"""Steps of a long comparison: what is finished is kept on disk and found again by its content."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.console import say
from ..core.files import atomic_write_json, read_json


@dataclass(frozen=True)
class PlannedStep:
    """A step to come.

    Attributes:
        kind: steps of one kind cost about the same.
        where: the seed it belongs to, or empty.
        weight: expected cost beside the others, in any unit.
    """

    kind: str
    where: str
    weight: float


class Steps:
    """Runs the steps of a plan in order, or takes their results from an earlier run.

    Args:
        plan: all steps, in the order in which they will run.
    """

    def __init__(self, plan: Sequence[PlannedStep]) -> None:
        self._plan = list(plan)
        self._at = 0
        self._seconds: dict[str, list[float]] = {}

    def run(
        self,
        place: Path,
        key: Mapping[str, Any],
        make: Callable[[], dict[str, Any]],
        fits: Callable[[dict[str, Any]], bool] = lambda _: True,
        *,
        detail: str = "",
    ) -> dict[str, Any]:
        """The result of the next step of the plan.

        Args:
            place: JSON file of the result.
            key: everything that decides the result; another key makes it again.
            make: makes it.
            fits: whether what a stored result names is still there.
            detail: for the line of progress.
        """
        step = self._plan[self._at]
        name = f"{step.where}: {step.kind}" if step.where else step.kind
        lead = f"step {self._at + 1} of {len(self._plan)}, {name}" + (f" with {detail}" if detail else "")
        digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        stored = read_json(place, "result of a step") if place.is_file() else None
        if isinstance(stored, dict) and stored.get("key") == digest and fits(stored["result"]):
            say(f"{lead}: done before")
            result, seconds = stored["result"], float(stored["seconds"])
        else:
            say(lead + self._left())
            begun = time.monotonic()
            result = json.loads(json.dumps(make()))
            seconds = time.monotonic() - begun
            place.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_json(place, {"key": digest, "of": key, "seconds": seconds, "result": result})
        self._seconds.setdefault(step.kind, []).append(seconds)
        self._at += 1
        return dict(result)

    def _left(self) -> str:
        """Time left, from steps of the same kind, else from the weights."""
        weights = {step.kind: step.weight for step in self._plan}
        spent = sum(sum(times) for times in self._seconds.values())
        done = sum(weights[kind] * len(times) for kind, times in self._seconds.items())
        if not done:
            return ""
        left = 0.0
        for step in self._plan[self._at :]:
            times = self._seconds.get(step.kind)
            left += sum(times) / len(times) if times else step.weight * spent / done
        return f" | about {left / 60:.0f} min left" if left >= 90 else f" | about {left:.0f} s left"
