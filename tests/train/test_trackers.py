"""Trackers: what they are sent, across a resume too, and that none can break a run."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accelerate import tracking

from vocabforge.core.errors import UsageError
from vocabforge.core.journal import MetricsLog
from vocabforge.train.monitoring.trackers import Trackers, check_trackers

CONFIG = {"optim": {"lr": 1e-4, "betas": [0.9, 0.95]}, "target": "models/x", "seed": 3, "cache": None}


class Recorder(tracking.GeneralTracker):
    """A tracker that keeps what it is sent, and can be told to fail."""

    name = "recorder"
    requires_logging_directory = False
    tracker = None
    rows: ClassVar[list[tuple[int, dict[str, float]]]] = []
    configs: ClassVar[list[dict[str, Any]]] = []
    failing = ""
    finished = 0

    def __init__(self, project: str) -> None:
        super().__init__()

    def start(self) -> None:
        if self.failing == "start":
            raise ConnectionError("no route\nto the server")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.configs.append(values)

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        if self.failing == "log":
            raise RuntimeError(f"broken at {step}")
        assert step is not None
        self.rows.append((step, values))

    def finish(self) -> None:
        type(self).finished += 1


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    made = type("Recorder", (Recorder,), {"rows": [], "configs": []})
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "recorder", made)
    installed = tracking.get_available_trackers()
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: [*installed, "recorder"])
    return made


def run_steps(folder: Path, name: str, start: int, end: int) -> None:
    """Steps ``start + 1`` to ``end`` of a run, as the trainer logs them."""
    log = MetricsLog(folder / "metrics.jsonl", keep_until=start)
    with Trackers([name], folder, CONFIG, resume_step=start, removed=log.removed) as trackers:
        log.listener = trackers.log
        for step in range(start + 1, end + 1):
            log.write(kind="train", step=step, loss=float(step), accuracy=[0.5, 0.25])
            if step % 4 == 0:
                log.write(kind="live", step=step, heads={"ranker": {"share_of_full": 0.9}}, drafter="x")


def test_rows_arrive_flat_and_a_resumed_run_sends_none_twice(tmp_path, recorder):
    run_steps(tmp_path, "recorder", 0, 7)
    run_steps(tmp_path, "recorder", 5, 9)  # the checkpoint was of step 5: 6 and 7 are done again
    train = [(step, row) for step, row in recorder.rows if "train/loss" in row]
    assert [step for step, _ in train] == list(range(1, 10))
    assert train[0][1] == {"train/loss": 1.0, "train/accuracy/1": 0.5, "train/accuracy/2": 0.25}
    assert [row for row in recorder.rows if "train/loss" not in row[1]] == [
        (4, {"live/heads/ranker/share_of_full": 0.9}),
        (8, {"live/heads/ranker/share_of_full": 0.9}),
    ]
    flat = {"optim.lr": 1e-4, "optim.betas.1": 0.9, "optim.betas.2": 0.95}
    flat |= {"target": "models/x", "seed": 3, "cache": "None"}
    assert recorder.configs == [flat], "hyperparameters are saved once a run"
    assert recorder.finished == 2
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"recorder": {"started": True}}


@pytest.mark.parametrize("where", ["start", "log"])
def test_a_broken_tracker_is_named_once_and_training_continues(tmp_path, recorder, capsys, where):
    recorder.failing = where
    run_steps(tmp_path, "recorder", 0, 6)
    said = capsys.readouterr().err
    assert said.count("The tracker recorder") == 1
    assert "Training continues" in said
    assert ("ConnectionError: no route" in said) == (where == "start")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 7


def test_other_ranks_track_nothing(tmp_path, recorder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with Trackers(["recorder"], tmp_path, CONFIG) as trackers:
        trackers.log({"step": 1, "loss": 1.0})
    assert recorder.rows == []
    assert list(tmp_path.iterdir()) == []


def test_names_and_missing_packages(monkeypatch, capsys):
    with pytest.raises(UsageError, match="did you mean wandb"):
        check_trackers(["wanbd"])
    monkeypatch.setattr(tracking, "get_available_trackers", list)
    assert check_trackers(["tensorboard"]) == ()
    assert "pip install tensorboardX" in capsys.readouterr().err
    for name in ("wandb", "mlflow"):
        with pytest.raises(UsageError, match=f"pip install {name}"):
            check_trackers(["tensorboard", name])
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: ["tensorboard", "wandb"])
    assert check_trackers(["tensorboard", "wandb", "tensorboard"]) == ("tensorboard", "wandb")


def events(folder: Path) -> Iterator[Any]:
    """Events of all files in the order that TensorBoard reads them."""
    from tensorboardX.proto.event_pb2 import Event

    for file in sorted(folder.glob("events.*")):
        data = file.read_bytes()
        place = 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            yield Event.FromString(data[place + 12 : place + 12 + length])
            place += 12 + length + 4


def test_tensorboard_shows_one_value_a_step_after_a_crash(tmp_path: Path) -> None:
    run_steps(tmp_path, "tensorboard", 0, 7)
    run_steps(tmp_path, "tensorboard", 5, 9)
    shown: dict[str, dict[int, int]] = {}
    starts = []
    for event in events(tmp_path / "tensorboard"):
        if event.HasField("session_log"):
            # TensorBoard's rule for SessionLog.START: forget what was shown of this step and beyond.
            starts.append(event.step)
            for tag in shown.values():
                for step in [step for step in tag if step >= event.step]:
                    del tag[step]
        for value in event.summary.value:
            tag = shown.setdefault(value.tag, {})
            tag[event.step] = tag.get(event.step, 0) + 1
    assert starts == [6]
    assert shown["train/loss"] == dict.fromkeys(range(1, 10), 1)
    assert shown["live/heads/ranker/share_of_full"] == {4: 1, 8: 1}
    saved = list((tmp_path / "tensorboard").rglob("hparams.yml"))
    assert len(saved) == 1
    assert "optim.lr: 0.0001" in saved[0].read_text()
