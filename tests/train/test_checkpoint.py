"""What a checkpoint holds, and that nothing of it is lost or mixed up."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.run_support import assert_same
from vocabforge.core.errors import UsageError
from vocabforge.train.checkpoint import (
    RunState,
    list_checkpoints,
    load_latest,
    remove_old,
    remove_remains,
    save_checkpoint,
)


def state(value: float = 1.0) -> RunState:
    weights = {"drafter.a": torch.full((2, 3), value), "heads.ranker.down.weight": torch.randn(2)}
    optimizer = {"drafter.a/exp_avg": torch.randn(2, 3), "drafter.a/step": torch.tensor(3.0)}
    return RunState(weights, optimizer, {"best": {"value": 1.5}})


def test_the_oldest_go_and_a_repeated_step_replaces(tmp_path: Path) -> None:
    for step in (1, 2, 3, 3, 4):
        save_checkpoint(tmp_path, step, state(step), {}, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]
    assert float(load_file(list_checkpoints(tmp_path)[-1] / "weights.safetensors")["drafter.a"][0, 0]) == 4.0


def test_only_a_run_of_the_same_identity_gets_its_state_back(tmp_path: Path) -> None:
    assert load_latest(tmp_path, {}) is None
    saved, identity = state(), {"optim.lr": 1e-3, "data": "abc"}
    save_checkpoint(tmp_path, 1, saved, identity, keep=1)
    step, loaded = load_latest(tmp_path, identity) or (0, state())
    assert (step, loaded.facts) == (1, saved.facts)
    assert_same(loaded.weights, saved.weights)
    assert_same(loaded.optimizer, saved.optimizer)
    with pytest.raises(UsageError, match="other settings") as error:
        load_latest(tmp_path, {"optim.lr": 1e-3, "data": "abd"})
    assert 'data: "abc", now "abd"' in str(error.value)
    assert "optim.lr" not in str(error.value)


def test_a_kill_while_old_checkpoints_go_leaves_no_half_of_one(tmp_path, monkeypatch):
    real = shutil.rmtree

    def killed(path: Path, **named: Any) -> None:
        if "step-00000001" in str(path):
            raise KeyboardInterrupt
        real(path, **named)

    for step in (1, 2):
        save_checkpoint(tmp_path, step, state(), {}, keep=2)
    monkeypatch.setattr("vocabforge.core.folders.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 3, state(), {}, keep=2)
    monkeypatch.undo()
    assert [path.name for path in sorted(tmp_path.glob("step-*"))] == ["step-00000002", "step-00000003"]
    assert len(list(tmp_path.glob(".step-*"))) == 1
    remove_remains(tmp_path)
    assert not list(tmp_path.glob(".step-*"))


def test_what_a_killed_run_kept_too_many_goes_but_not_what_it_goes_on_from(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        save_checkpoint(tmp_path, step, state(), {}, keep=9)
    remove_old(tmp_path, 6, keep=2)  # step 8 is damaged: the run goes on from 6
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["4", "6", "8"]
    remove_old(tmp_path, 4, keep=1)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["4", "6", "8"]
