"""The trackers that can be named: how each is started, continued and installed."""

from __future__ import annotations

import importlib.util
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError, did_you_mean
from ..core.progress import say

DEFAULT = "tensorboard"
_PROJECT = "vocabforge"


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is opened for.

    Attributes:
        folder: the run's folder.
        resume_step: step that the run goes on from, 0 from the start.
        known: what ``trackers.json`` holds of this tracker, empty the first time.
    """

    folder: Path
    resume_step: int
    known: Mapping[str, Any]


@dataclass(frozen=True)
class TrackerRow:
    """A tracker that can be named.

    Attributes:
        modules: packages of which one must be there.
        install: what to install otherwise.
        start: starts it; returns accelerate's tracker and what ``trackers.json`` shall remember.
        rewinds: whether it takes back the steps that a resumed run does again; others are not sent them twice.
    """

    modules: tuple[str, ...]
    install: str
    start: Callable[[TrackedRun], tuple[Any, dict[str, Any]]]
    rewinds: bool = False


def _tensorboard(run: TrackedRun) -> tuple[Any, dict[str, Any]]:
    from accelerate.tracking import TensorBoardTracker

    # TensorBoard drops what earlier event files hold from the purge step on.
    options: dict[str, Any] = {"purge_step": run.resume_step + 1} if run.known else {}
    options["filename_suffix"] = f".{run.resume_step}"  # names have whole seconds only
    tracker = TensorBoardTracker("tensorboard", run.folder, **options)
    tracker.start()
    return tracker, {"started": True}


def _wandb(run: TrackedRun) -> tuple[Any, dict[str, Any]]:
    from accelerate.tracking import WandBTracker

    name = str(run.known.get("id") or uuid.uuid4().hex)
    tracker = WandBTracker(
        os.environ.get("WANDB_PROJECT", _PROJECT),
        id=name,
        name=run.folder.resolve().name,
        dir=str(run.folder),
        resume="allow",
    )
    tracker.start()
    return tracker, {"id": name}


def _mlflow(run: TrackedRun) -> tuple[Any, dict[str, Any]]:
    from accelerate.tracking import MLflowTracker

    tracker = MLflowTracker(
        experiment_name=_PROJECT, run_id=run.known.get("id"), run_name=run.folder.resolve().name
    )
    tracker.start()
    return tracker, {"id": tracker.tracker.info.run_id}


# name -> row; adding one of accelerate's trackers is a function and a row.
TRACKERS: dict[str, TrackerRow] = {
    "tensorboard": TrackerRow(("tensorboard", "tensorboardX"), "tensorboardX", _tensorboard, rewinds=True),
    "wandb": TrackerRow(("wandb",), "wandb", _wandb),
    "mlflow": TrackerRow(("mlflow",), "mlflow", _mlflow),
}


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """The trackers among ``names`` that can be used; TensorBoard is left out with a warning where it is absent.

    Raises:
        UsageError: an unknown name, or another tracker's package is missing.
    """
    found = []
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            raise UsageError(
                "there is no tracker of this name",
                got=name,
                expected=", ".join(TRACKERS),
                source="run.trackers",
                remedy=did_you_mean(name, TRACKERS),
            )
        row = TRACKERS[name]
        if any(importlib.util.find_spec(module) for module in row.modules):
            found.append(name)
        elif name == DEFAULT:
            say(
                f"Warning: no TensorBoard log is written: pip install {row.install} (metrics.jsonl has all figures)."
            )
        else:
            raise UsageError(
                f"the package of the tracker {name} is not installed",
                got=f"no module {' or '.join(row.modules)}",
                source="run.trackers",
                remedy=f"pip install {row.install}, or leave {name} out of run.trackers",
            )
    return tuple(found)
