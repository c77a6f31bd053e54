"""A run's folder: one writer, nothing removed or rewritten before it is sure, nothing damaged taken for none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_support import invoke, succeeds
from tests.train.run_support import config, log_rows, trainer, write_config
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ArtifactError, ConfigError, DataError, UsageError
from vocabforge.core.lock import only_writer
from vocabforge.train.checkpoint import list_checkpoints
from vocabforge.train.loop import train
from vocabforge.train.setup import identity_of


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.long
def test_a_second_writer_is_refused_and_the_lock_goes_away(place: Path) -> None:
    path = write_config(place, "held", optim={"steps": 2})
    with only_writer(place / "held"):
        done = invoke("train-drafter", "--config", path)
        assert done.exit_code == 2
        assert "another process is working in this folder" in done.output
        with pytest.raises(UsageError), only_writer(place / "held"):
            pass
    assert not (place / "held").exists()
    assert invoke("train-drafter", "--config", path).exit_code == 0
    assert not (place / ".held.lock").exists()


@pytest.mark.long
def test_fresh_removes_a_run_only_when_the_new_one_is_sure_to_start(place: Path) -> None:
    path = write_config(place, "again", optim={"steps": 4}, run={"checkpoint_every": 2})
    assert invoke("train-drafter", "--config", path).exit_code == 0
    output = place / "again"
    foreign = [output / "checkpoints" / "mine" / "model.bin", output / "wandb" / "foreign"]
    for file in foreign:
        file.parent.mkdir(parents=True)
        file.write_text("somebody's")
    before = files(output)
    done = invoke("train-drafter", "--config", path, "--fresh", f"target={place / 'nowhere'}")
    assert done.exit_code == 1
    assert files(output) == before
    succeeds("train-drafter", "--config", path, "--fresh", "optim.lr=1e-3")
    assert all(file.read_text() == "somebody's" for file in foreign)
    assert [row["step"] for row in log_rows(output, "start")] == [0]


def test_damaged_checkpoints_are_not_taken_for_none(place: Path) -> None:
    train(trainer(place, "all-damaged"))
    output = place / "all-damaged"
    for path in list_checkpoints(output / "checkpoints"):
        data = (path / "weights.safetensors").read_bytes()
        (path / "weights.safetensors").write_bytes(data[:-7])
    before = files(output)
    with pytest.raises(UsageError, match=r"optim\.lr"):
        train(trainer(place, "all-damaged", optim={"lr": 0.5}))
    with pytest.raises(ArtifactError, match="every checkpoint of this run is damaged"):
        train(trainer(place, "all-damaged"))
    assert files(output) == before, "neither the log nor the drafter is touched"


def test_a_finished_run_is_not_run_again(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = train(trainer(place, "finished"))
    before = files(place / "finished")
    assert train(trainer(place, "finished")) == path
    assert "This run is finished" in capsys.readouterr().err
    assert files(place / "finished") == before


def test_a_run_that_died_before_its_heads_were_written_is_not_finished(place: Path) -> None:
    sections = {"optim": {"steps": 2}, "heads": {"ranker": {"shortlist": 16}}}
    train(trainer(place, "headless", **sections))
    head = place / "headless" / "heads" / "ranker"
    before = open_artifact(head).content_hash
    head.rename(place / "taken")
    train(trainer(place, "headless", **sections))
    assert open_artifact(head).content_hash == before
    assert len(log_rows(place / "headless", "heads")) == 1, "the log has each figure once"


def test_states_that_are_not_finite_in_held_out_rows_stop_the_run(place: Path) -> None:
    run = trainer(place, "nan-heldout")
    source = run.captured

    def poisoned(rows: Any, keys: Any, *tokens: Any) -> Any:
        batch = source(rows, keys, *tokens)
        if keys[0][0] == "heldout":
            batch.hidden[0, 1, 2] = float("nan")
        return batch

    run.captured = poisoned
    with pytest.raises(DataError, match="held-out rows are not finite") as error:
        train(run)
    assert "rows [" in str(error.value)
    assert not (place / "nan-heldout" / "best").exists()


def test_best_is_judged_by_one_measure_at_a_time(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = iter([1.5, 1.2])

    def live(*_: Any) -> dict[str, Any]:
        length = next(values)
        figures = {"prompts": 1, "identical": 1, "chain_accepted_length": None, "heads": {}}
        return {"accepted_length": length, "judged_length": length, **figures}

    run = trainer(place, "best")
    run.live = live
    train(run)
    best = json.loads((place / "best" / "best" / "manifest.json").read_text())
    assert best["meta"]["steps"] == 6, "the later evaluation decoded less"
    assert run.facts["best"] == {"step": 6, "value": 1.5, "name": "accepted_length"}
    other = trainer(place, "measure")
    other.live = None
    other.facts["best"] = {"step": 1, "value": 99.0, "name": "accepted_length"}
    train(other)
    assert other.facts["best"]["name"] == "chain_accepted_length"
    assert "best/ is now judged by" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("drafter", "words"),
    [
        ({"fc_norm": True, "norm_before_fc": True}, "exclude each other"),
        ({"kind": "medusa", "medusa_own_heads": True}, "needs drafter.head: own"),
    ],
)
def test_forms_that_exclude_each_other_are_refused(place: Path, drafter: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(place, "run", drafter=drafter)


def test_what_changes_a_weight_is_part_of_a_runs_identity(place: Path) -> None:
    def identity(**sections: Any) -> dict[str, Any]:
        return identity_of(config(place, "run", **sections), "data", "target")

    for section, key, value in (
        ("drafter", "fc_norm", True),
        ("heads", "ranker", {"rank": 4}),
        ("ttt", "loss", {"ce": 0.1, "tv": 1.8}),
        ("optim", "name", "muon"),
    ):
        changed = {
            name for name, one in identity(**{section: {key: value}}).items() if identity()[name] != one
        }
        assert changed == {f"{section}.{key}"}
    assert identity(optim={"micro_batch_size": 1}, run={"log_every": 3}) == identity()
