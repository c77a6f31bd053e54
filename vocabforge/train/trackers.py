"""Figures in TensorBoard, W&B, MLflow or another of accelerate's trackers, beside metrics.jsonl; rank 0 only.

metrics.jsonl is the truth; a tracker is a view of it. A tracker that fails is dropped, and training continues.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.console import say
from ..core.distributed import rank
from ..core.errors import UsageError
from ..core.files import atomic_write_json, read_json
from ..core.registry import check_known

STATE = "trackers.json"  # tracker -> what a resumed run needs to continue the same tracked run
_PROJECT = "vocabforge"
_MESSAGE = 200  # characters of a tracker's own error


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """The trackers among ``names`` that can be used; without its package TensorBoard is left out with a warning.

    Raises:
        UsageError: an unknown name, or another tracker's package is missing.
    """
    if not names:
        return ()
    from accelerate import tracking

    found, installed = [], {str(one) for one in tracking.get_available_trackers()}
    for name in dict.fromkeys(names):
        check_known(name, tracking.LOGGER_TYPE_TO_CLASS, "tracker", source="run.trackers")
        if name in installed:
            found.append(name)
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
    return tuple(found)


class Trackers:
    """The open trackers of a run; on other ranks than 0 there are none. In a launched run, after joining.

    Args:
        names: of accelerate's trackers.
        folder: the run's folder; TensorBoard's files go to ``folder/tensorboard``.
        config: the resolved configuration, saved flat as hyperparameters, once a run.
        resume_step: the step that the run continues from.
        removed: (kind, step) of rows that were logged and will be logged again (:attr:`MetricsLog.removed`).

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
        self._resent: dict[str, Collection[tuple[str, int]]] = {}
        if rank() != 0 or not (names := check_trackers(names)):
            return
        from accelerate import PartialState

        PartialState()  # accelerate's trackers ask it for their rank
        state: dict[str, Any] = read_json(folder / STATE) if (folder / STATE).is_file() else {}
        for name in names:
            # TensorBoard forgets the steps that a resumed run repeats; the others are not sent them twice.
            self._resent[name] = frozenset(removed) if name in state and name != "tensorboard" else ()
            self._guarded(name, "cannot be started", self._start, name, folder, resume_step, config, state)
        atomic_write_json(folder / STATE, state)

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.jsonl, as its :attr:`MetricsLog.listener`; never fails.

        Args:
            row: has ``step``, its place on the step axis, and mostly ``kind``; numbers, lists and mappings of them
                are named ``kind/name``, ``kind/name/1`` …. Everything else is left out.
        """
        kind, step = str(row.get("kind", "")), int(row["step"])
        body = {key: value for key, value in row.items() if key not in ("kind", "step")}
        numbers = numeric(body, f"{kind}/" if kind else "")
        for name, tracker in list(self._open.items()):
            if (kind, step) not in self._resent[name]:
                self._guarded(name, f"failed at step {step}", tracker.log, numbers, step=step)

    def close(self) -> None:
        """End every tracker's run."""
        for name, tracker in list(self._open.items()):
            self._guarded(name, "cannot be closed", tracker.finish)
        self._open = {}

    def _guarded(self, name: str, what: str, call: Callable[..., object], *given: Any, **named: Any) -> None:
        try:
            call(*given, **named)
        except Exception as error:  # noqa: BLE001 (whatever it is, training continues)
            self._open.pop(name, None)
            text = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
            text = text if len(text) <= _MESSAGE else text[:_MESSAGE] + " …"
            say(
                f"The tracker {name} {what}: {type(error).__name__}: {text}. "
                "Training continues without it; metrics.jsonl has all figures."
            )

    def _start(
        self, name: str, folder: Path, resume_step: int, config: Mapping[str, Any], state: dict[str, Any]
    ) -> None:
        """Start one, continuing the run that ``state`` has of it, and record there what a resumed run needs."""
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        made, run, known = LOGGER_TYPE_TO_CLASS[name], folder.resolve().name, state.get(name, {})
        facts: dict[str, Any] = {"started": True}
        if name == "tensorboard":
            # Earlier event files are forgotten from the purge step on; file names have whole seconds only.
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
            tracker.store_init_configuration(flat_config(config))
        self._open[name], state[name] = tracker, facts

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def numeric(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of a nested row under flat names; a list's entries are numbered from 1."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= numeric(value, f"{prefix}{key}/")
        elif isinstance(value, (list, tuple)):
            found |= numeric({str(number): item for number, item in enumerate(value, 1)}, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            found[f"{prefix}{key}"] = value
    return found


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Hyperparameters: nested keys joined by dots, everything but numbers and texts as JSON."""
    flat: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flat_config(value, f"{prefix}{key}.")
        elif isinstance(value, (bool, int, float, str)):
            flat[f"{prefix}{key}"] = value
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, default=str)
    return flat
