"""Figures into TensorBoard, W&B or MLflow beside metrics.jsonl, through accelerate's trackers, from rank 0.

metrics.jsonl is the truth; a tracker is a view of it. Each tracker lives in a thread of its own behind a queue, so
that a slow or broken one neither slows nor ends a run: its first error is told, and training goes on.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.distributed import rank
from ..core.files import atomic_write_json, read_json
from ..core.progress import say
from .tracker_table import TRACKERS, TrackedRun, check_trackers

STATE = "trackers.json"  # what a resumed run needs to go on in the same tracked run
_QUEUE_ROWS = 10_000
_CLOSE_S = 60.0
_MESSAGE = 200  # characters of a tracker's own error


class Trackers:
    """The open trackers of a run; on other ranks than 0 it holds none. Make it with :meth:`open`."""

    def __init__(self, workers: Sequence[_Worker] = ()) -> None:
        self._workers = list(workers)

    @classmethod
    def open(
        cls,
        names: Sequence[str],
        folder: Path,
        config: Mapping[str, Any],
        *,
        resume_step: int = 0,
        removed: Collection[tuple[str, int]] = (),
    ) -> Trackers:
        """Start the named trackers in the background; in a launched run, after the processes are joined.

        Args:
            names: rows of ``tracker_table.TRACKERS``.
            folder: the run's folder; TensorBoard's files go to ``folder/tensorboard``.
            config: the resolved configuration, saved flat as hyperparameters, once a run.
            resume_step: the step that the run goes on from.
            removed: (kind, step) of rows that were logged and will be logged again
                (:attr:`MetricsLog.removed`).

        Raises:
            UsageError: see :func:`~vocabforge.train.tracker_table.check_trackers`.
        """
        if rank() != 0:
            return cls()
        names = check_trackers(names)
        if names:
            from accelerate import PartialState

            PartialState()  # accelerate's trackers ask it who they are
        state = _State(folder / STATE)
        return cls([_Worker(name, folder, config, resume_step, removed, state) for name in names])

    def log(self, row: Mapping[str, Any]) -> None:
        """Send a row of metrics.jsonl, as its :attr:`MetricsLog.listener`; it returns at once and never fails.

        Args:
            row: has ``step``, its place on the step axis, and mostly ``kind``; numbers, lists and mappings of them
                are named ``kind/name``, ``kind/name/1`` …. What is no number is left out.
        """
        if not self._workers:
            return
        kind = str(row.get("kind", ""))
        body = {key: value for key, value in row.items() if key not in ("kind", "step")}
        numbers = numeric(body, f"{kind}/" if kind else "")
        for worker in self._workers:
            worker.put(kind, int(row["step"]), numbers)

    def close(self) -> None:
        """Send what is queued and end; a tracker that takes longer than a minute is left behind."""
        for worker in self._workers:
            worker.rows.put(None)
        end = time.monotonic() + _CLOSE_S
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                say(f"The tracker {worker.name} does not finish; its last figures may be missing there.")
        self._workers = []

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _State:
    """``trackers.json``: what each tracker remembers between runs."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._values: dict[str, Any] = read_json(path) if path.is_file() else {}

    def get(self, name: str) -> dict[str, Any]:
        return self._values.get(name, {})

    def set(self, name: str, value: dict[str, Any]) -> None:
        with self._lock:
            if self._values.get(name) != value:
                self._values[name] = value
                atomic_write_json(self._path, self._values)


class _Worker(threading.Thread):
    """One tracker in its thread: started, fed and finished there (MLflow's active run belongs to a thread)."""

    def __init__(
        self,
        name: str,
        folder: Path,
        config: Mapping[str, Any],
        resume_step: int,
        removed: Collection[tuple[str, int]],
        state: _State,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._run = TrackedRun(folder, resume_step, state.get(name))
        self._config, self._state = flat_config(config), state
        self._skip = frozenset(removed) if self._run.known and not TRACKERS[name].rewinds else frozenset()
        self._told = False
        self.rows: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue()
        self.start()

    def put(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        if (kind, step) in self._skip or not self.is_alive():
            return
        if self.rows.qsize() >= _QUEUE_ROWS:
            self._tell("is too slow; figures are left out there")
            return
        self.rows.put((step, numbers))

    def run(self) -> None:
        try:
            tracker, remembered = TRACKERS[self.name].start(self._run)
            if not self._run.known:
                tracker.store_init_configuration(self._config)
            self._state.set(self.name, remembered)
        except Exception as error:  # noqa: BLE001 (whatever it is, training goes on)
            self._tell(f"cannot be started: {_in_short(error)}")
            return
        while (row := self.rows.get()) is not None:
            try:
                tracker.log(row[1], step=row[0])
            except Exception as error:  # noqa: BLE001
                self._tell(f"failed at step {row[0]}: {_in_short(error)}")
        try:
            tracker.finish()
        except Exception as error:  # noqa: BLE001
            self._tell(f"cannot be closed: {_in_short(error)}")

    def _tell(self, what: str) -> None:
        if not self._told:
            self._told = True
            say(f"The tracker {self.name} {what}. Training goes on; metrics.jsonl has all figures.")


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


def _in_short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0].rstrip(".") if lines else "no message"
    return f"{type(error).__name__}: {text if len(text) <= _MESSAGE else text[:_MESSAGE] + ' …'}"
