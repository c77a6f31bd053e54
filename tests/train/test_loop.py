"""The training loop: it learns, and whatever interrupts it, it ends with the same bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.cli_support import invoke, succeeds
from tests.train.run_support import assert_same, curve, log_rows, signalled, trainer, weights, write_config
from tests.worlds import byte_tokenizer
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import DataError, UsageError
from vocabforge.core.threads import ThreadChoice
from vocabforge.train import loop
from vocabforge.train.checkpoint import list_checkpoints
from vocabforge.train.data import batch_rows
from vocabforge.train.loop import train


@pytest.fixture(scope="module")
def whole(place: Path) -> dict[str, torch.Tensor]:
    """Weights of an uninterrupted run of twelve steps."""
    train(trainer(place, "whole"))
    return weights(place / "whole")


def test_a_run_leaves_what_it_promises_and_learns(place: Path, whole: dict[str, torch.Tensor]) -> None:
    output = place / "whole"
    losses = curve(output)
    assert len(losses) == 12
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])
    heldout = log_rows(output, "heldout")
    assert [row["step"] for row in heldout] == [6, 12]
    assert heldout[0]["loss"][0] > heldout[1]["loss"][0]
    artifact = open_artifact(output / "drafter", "drafter")
    assert artifact.meta["steps"] == 12
    assert artifact.manifest["config"]["optim"]["lr"] == 3e-3
    assert [path.name for path in list_checkpoints(output / "checkpoints")] == [
        "step-00000008",
        "step-00000012",
    ]
    prompts = [json.loads(line) for line in (output / "heldout_prompts.jsonl").read_text().splitlines()]
    assert len(prompts) == 4
    assert prompts[0].keys() == {"question_id", "category", "turns", "reference"}


@pytest.mark.long
def test_a_signal_writes_a_checkpoint_and_the_resumed_run_ends_with_the_same_bits(place, whole):
    name, at = "SIGINT", 5
    config = write_config(place, name)
    before = signal.getsignal(getattr(signal, name))
    with signalled(at, name):
        done = invoke("train-drafter", "--config", config)
    assert done.exit_code == 130, done.output
    assert f"Stopped at step {at + 1}" in done.output
    assert signal.getsignal(getattr(signal, name)) is before
    assert list_checkpoints(place / name / "checkpoints")[-1].name == f"step-{at + 1:08d}"
    assert not (place / name / "drafter").exists()
    done = succeeds("train-drafter", "--config", config, "--json")
    assert f"Resuming at step {at + 1}" in done.output
    assert json.loads(done.stdout)["steps"] == 12
    assert_same(weights(place / name), whole)


class Measured(ThreadChoice):
    """Ends after four steps with one thread, having set two as well."""

    made = 0

    def __init__(self, counts: list[int], apply: Any) -> None:
        super().__init__([1, 2], apply)
        Measured.made, self.seen = Measured.made + 1, 0

    @property
    def settled(self) -> bool:
        return self.seen == 4

    def observe(self, kind: Any, seconds: float) -> None:
        self.seen += 1
        torch.set_num_threads(1 + self.seen % 2)


def test_the_measured_threads_are_kept_and_measuring_changes_no_bit(place, whole, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(loop, "_WORTH_MEASURING", 12)
    monkeypatch.setattr(loop, "ThreadChoice", Measured)
    run, before = {"run": {"threads": None}}, torch.get_num_threads()
    try:
        with signalled(5), pytest.raises(KeyboardInterrupt):
            train(trainer(place, "measured", **run))
        assert Measured.made == 1
        resumed = trainer(place, "measured", **run)
        torch.set_num_threads(2)
        train(resumed)
        assert (Measured.made, torch.get_num_threads()) == (1, 1), "a resumed run measures nothing"
        assert_same(weights(place / "measured"), whole)
        assert [row["facts"]["threads"] for row in log_rows(place / "measured", "start")] == [1, 1]
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        train(trainer(place, "given", **run))
        assert Measured.made == 1, "what the user fixed stays"
    finally:
        torch.set_num_threads(before)


def test_a_signal_between_the_checkpoint_and_the_stop_loses_no_step(place, monkeypatch):
    """The flag is read once a step: a signal that comes late is obeyed one step later, checkpoint first."""
    run = trainer(place, "late")
    look = loop.look

    def late(*arguments: Any) -> dict[str, object]:
        from vocabforge.train import checkpoint

        save = checkpoint.save_checkpoint

        def saving(*args: Any) -> Path:
            path = save(*args)
            os.kill(os.getpid(), signal.SIGTERM)
            return path

        monkeypatch.setattr(checkpoint, "save_checkpoint", saving)
        return look(*arguments)

    monkeypatch.setattr(loop, "look", late)  # at step 6; the next checkpoint is that of step 8
    with pytest.raises(KeyboardInterrupt):
        train(run)
    assert list_checkpoints(place / "late" / "checkpoints")[-1].name == "step-00000009"


@pytest.mark.parametrize("gigabytes", [0.0, 1e-4])
def test_memory_for_captured_states_changes_no_bit(place, whole, gigabytes):
    name = f"memory{gigabytes}"
    run = trainer(place, name, capture={"memory_gb": gigabytes})
    train(run)
    kept = len(run.captured._kept)
    rows = len(run.data.train) + len(run.data.heldout)
    assert 0 < kept < rows if gigabytes else kept == 0  # all are kept in the other run
    assert_same(weights(place / name), whole)


def test_changed_settings_are_refused_by_name_and_bookkeeping_is_not(place, whole):
    log, settings = (place / "whole" / name for name in ("metrics.jsonl", "config.json"))
    before = log.read_bytes(), settings.read_bytes()
    for sections, key in (
        ({"optim": {"lr": 4e-3}}, "optim.lr"),
        ({"optim": {"steps": 13}}, "optim.steps"),
        ({"ttt": {"decay": 0.5}}, "ttt.decay"),
        ({"run": {"seed": 1}}, "run.seed"),
        ({"data": {"sequence_length": 48}}, "data"),
        ({"drafter": {"head": "own"}}, "drafter.head"),
    ):
        with pytest.raises(UsageError, match="other settings or inputs") as error:
            train(trainer(place, "whole", **sections))
        assert f"{key}: " in str(error.value)
        assert str(place / "whole" / "checkpoints") in str(error.value)
    assert (log.read_bytes(), settings.read_bytes()) == before, "a refused resume rewrites nothing"
    train(trainer(place, "whole", run={"log_every": 7, "keep": 1}))
    assert_same(weights(place / "whole"), whole)


@pytest.mark.parametrize("damage", ["weights", "manifest", "missing"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(place, whole, damage, capsys):
    name = f"damaged-{damage}"
    train(trainer(place, name))
    newest = list_checkpoints(place / name / "checkpoints")[-1]
    if damage == "weights":
        data = bytearray((newest / "weights.safetensors").read_bytes())
        data[len(data) // 2] ^= 1
        (newest / "weights.safetensors").write_bytes(data)
    elif damage == "manifest":
        (newest / "manifest.json").write_text('{"kind": "check')
    else:
        (newest / "optimizer.safetensors").unlink()
    capsys.readouterr()
    train(trainer(place, name))
    said = capsys.readouterr().err
    assert "Skipping a damaged checkpoint" in said
    assert "Resuming at step 8" in said
    assert_same(weights(place / name), whole)


def test_a_loss_that_is_not_finite_names_step_and_rows(place: Path) -> None:
    run = trainer(place, "infinite")
    with torch.no_grad():
        run.drafter.fc.weight[0, 0] = float("nan")
    with pytest.raises(DataError, match="loss is not finite") as error:
        train(run)
    rows = batch_rows(len(run.data.train), 3, 0, 0)
    assert "step 1" in str(error.value)
    assert f"packed rows {rows}" in str(error.value)
    assert not list_checkpoints(place / "infinite" / "checkpoints")


def test_rows_without_a_counted_position_take_no_step(place, tmp_path, capsys):
    """Answers of a single token: no two learnt tokens follow each other."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
    )
    shutil.copytree(place / "target", tmp_path / "target")
    byte_tokenizer(tmp_path / "target", template=template)
    answers = ["A"] * 7 + ["a long answer"] * 2
    talks = (
        [{"role": "user", "content": f"Question number {n} of many?"}, {"role": "assistant", "content": text}]
        for n, text in enumerate(answers)
    )
    rows = "".join(json.dumps({"messages": talk}) + "\n" for talk in talks)
    (tmp_path / "chats.jsonl").write_text(rows)
    data = {"train": [str(tmp_path / "chats.jsonl")], "heldout_documents": 1, "sequence_length": 48}
    small = {"batch_size": 1, "micro_batch_size": 1, "steps": 8}
    run = trainer(tmp_path, "run", data=data, optim=small, run={"log_every": 1})
    assert "7 of 8 packed rows have no counted position" in capsys.readouterr().err
    before = {name: tensor.clone() for name, tensor in run.drafter.state_dict().items()}
    train(run)
    log = log_rows(tmp_path / "run")
    assert len(log) == 8
    skipped = [row for row in log if row["loss"] is None]
    assert len(skipped) == 7
    assert all(row["grad_norm"] is None and set(row["accuracy"]) == {None} for row in skipped)
    assert any(not torch.equal(before[name], tensor) for name, tensor in run.drafter.state_dict().items())
    (step,) = {int(state["step"]) for state in run.strategy.optimizer.state.values()}
    assert step == 1


def test_a_gradient_that_is_not_finite_changes_no_weight(place: Path) -> None:
    run = trainer(place, "gradient")
    weight = run.drafter.midlayer.mlp.up_proj.weight
    weight.register_hook(lambda gradient: gradient * float("inf"))
    before = weight.detach().clone()
    with pytest.raises(DataError, match="gradient is not finite"):
        train(run)
    assert torch.equal(weight, before)


@pytest.mark.parametrize(("count", "batch"), [(7, 3), (5, 5), (4, 9), (1, 2)])
def test_every_epoch_is_a_permutation_and_no_state_is_needed(count: int, batch: int) -> None:
    drawn = [row for step in range(4 * count) for row in batch_rows(count, batch, step, seed=3)]
    epochs = [drawn[i : i + count] for i in range(0, len(drawn) - count + 1, count)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert batch_rows(count, batch, 2, 3) == drawn[2 * batch : 3 * batch]
    if count == 7:
        assert epochs[0] != epochs[1], "a fresh permutation each epoch"
        assert epochs[0] != [row for step in range(3) for row in batch_rows(7, 3, step, seed=4)][:7]


@pytest.mark.parametrize("micro", [1, 2])
def test_micro_batches_change_no_figure(place: Path, micro: int) -> None:
    sections = {"optim": {"batch_size": 4}}
    train(trainer(place, "one-pass", **sections))
    train(trainer(place, f"micro{micro}", optim={"batch_size": 4, "micro_batch_size": micro}))
    assert curve(place / "one-pass") == pytest.approx(curve(place / f"micro{micro}"), rel=1e-5)
