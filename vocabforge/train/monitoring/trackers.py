"""Experiment trackers of accelerate (TensorBoard, W&B, MLflow, ...) on rank 0, besides metrics.jsonl.

A failing tracker is dropped and training continues: metrics.jsonl has all figures.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.console import say
from ...core.distributed import rank
from ...core.errors import UsageError
from ...core.files import atomic_write_json, read_json
from ...core.registry import check_known

STATE = "trackers.json"  # tracker -> data that a resumed run needs to continue the tracked run
_PROJECT = "vocabforge"


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """Return the usable trackers among ``names``; TensorBoard is skipped with a warning if not installed.

    Raises:
        UsageError: a name is unknown, or the package of another tracker is missing.
    """
    if not names:
        return ()
    from accelerate import tracking

    usable, installed = [], {str(tracker) for tracker in tracking.get_available_trackers()}
    for name in dict.fromkeys(names):
        check_known(name, tracking.LOGGER_TYPE_TO_CLASS, "tracker", source="run.trackers")
        if name in installed:
            usable.append(name)
        elif name == "tensorboard":
            say(
                "Warning: no TensorBoard log is written: pip install tensorboardX (metrics.jsonl has all figures)."
            )
        else:
            raise UsageError(
                f"the package of the tracker {name} is not installed",
                source="run.trackers",
                remedy=f"pip install {name}, or leave {name} out of run.trackers",
            )
    return tuple(usable)


class Trackers:
    """Open trackers of a run.

    Args:
        folder: folder of the run; TensorBoard's files go to ``folder/tensorboard``.
        config: resolved configuration, saved flattened as hyperparameters, once per run.
        resume_step: step that the run continues from.
        removed: (kind, step) of logged rows that will be logged again (:attr:`MetricsLog.removed`).

    Raises:
        UsageError: see :func:`check_trackers`.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        config: Mapping[str, Any],
        *,
        resume_step: int = 0,
        removed: Collection[tuple[str, int]] = (),
    ) -> None:
        self._open: dict[str, Any] = {}
        self._removed = frozenset(removed)
        if rank() != 0 or not (names := check_trackers(names)):
            return
        from accelerate import PartialState

        PartialState()  # accelerate's trackers read their rank from it
        state: dict[str, Any] = read_json(folder / STATE) if (folder / STATE).is_file() else {}
        self._known = frozenset(state)
        for name in names:
            self._guarded(name, "cannot be started", self._start, name, folder, resume_step, config, state)
        atomic_write_json(folder / STATE, state)

    def log(self, row: Mapping[str, Any]) -> None:
        """Send the numbers of a row of metrics.jsonl, named ``kind/name`` or ``kind/name/1``; never fails."""
        kind, step = str(row.get("kind", "")), int(row["step"])
        body = {key: value for key, value in row.items() if key not in ("kind", "step")}
        flattened = flat({kind: body} if kind else body, "/")
        numbers = {name: value for name, value in flattened.items() if isinstance(value, (int, float))}
        for name, tracker in list(self._open.items()):
            # TensorBoard purges steps that a resumed run repeats; for other trackers they are not sent again.
            if name == "tensorboard" or name not in self._known or (kind, step) not in self._removed:
                self._guarded(name, f"failed at step {step}", tracker.log, numbers, step=step)

    def _guarded(self, name: str, what: str, call: Callable[..., object], *given: Any, **named: Any) -> None:
        try:
            call(*given, **named)
        except Exception as error:  # noqa: BLE001 (a tracker must not stop training)
            self._open.pop(name, None)
            text = (str(error).strip().splitlines() or ["no message"])[0][:200].rstrip(".")
            say(
                f"The tracker {name} {what}: {type(error).__name__}: {text}. "
                "Training continues without it; metrics.jsonl has all figures."
            )

    def _start(
        self, name: str, folder: Path, resume_step: int, config: Mapping[str, Any], state: dict[str, Any]
    ) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        made, run, known = LOGGER_TYPE_TO_CLASS[name], folder.resolve().name, state.get(name, {})
        facts: dict[str, Any] = {"started": True}
        if name == "tensorboard":
            # Earlier events are purged from this step on. The suffix is needed: file names have 1 s
            # resolution.
            purge = {"purge_step": resume_step + 1} if known else {}
            tracker = made("tensorboard", folder, filename_suffix=f".{resume_step}", **purge)
        elif name == "wandb":
            facts = {"id": str(known.get("id") or uuid.uuid4().hex)}
            project = os.environ.get("WANDB_PROJECT", _PROJECT)
            tracker = made(project, name=run, dir=str(folder), resume="allow", **facts)
        elif name == "mlflow":
            tracker = made(experiment_name=_PROJECT, run_id=known.get("id"), run_name=run)
        else:
            tracker = made(_PROJECT, *([folder / name] if made.requires_logging_directory else []))
        tracker.start()
        if name == "mlflow":
            facts = {"id": tracker.tracker.info.run_id}
        if not known:
            values = flat(config, ".").items()
            tracker.store_init_configuration(
                {key: value if isinstance(value, (int, float, str)) else str(value) for key, value in values}
            )
        self._open[name], state[name] = tracker, facts

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        for name, tracker in list(self._open.items()):
            self._guarded(name, "cannot be closed", tracker.finish)


def flat(values: Mapping[str, Any], separator: str, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings and lists to joined names; list entries are numbered from 1."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        inner: Any = dict(enumerate(value, 1)) if isinstance(value, (list, tuple)) else value
        if isinstance(inner, Mapping):
            flattened |= flat(inner, separator, f"{prefix}{key}{separator}")
        else:
            flattened[f"{prefix}{key}"] = inner
    return flattened
