"""Medusa-2: losses and gradients against a count by document, its two limits, exact resume, the pair decodes."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from tests.cli.cli_support import invoke
from tests.train.run_support import config as config_of
from tests.train.run_support import curve, log_rows, settings, write_config
from vocabforge.core.artifact import open_artifact
from vocabforge.core.config import parse_config
from vocabforge.core.errors import ConfigError, MismatchError, UsageError
from vocabforge.models.drafters.io import check_target
from vocabforge.models.heads.io import drafter_digest
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.config import TrainConfig
from vocabforge.train.data import batch_rows
from vocabforge.train.joint import JointTarget
from vocabforge.train.loop import train
from vocabforge.train.loss.kinds import KL
from vocabforge.train.loss.vocab import LossOptions
from vocabforge.train.optim import learning_rate, make_optimizer, set_learning_rate
from vocabforge.train.plan import plan
from vocabforge.train.setup import build_trainer
from vocabforge.train.trainer import Trainer

HEADS, WEIGHT, DECAY = 3, 0.2, 0.8


def sections(joint: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    found = {
        "drafter": {"kind": "medusa", "medusa_heads": HEADS},
        "ttt": {"token_weight": WEIGHT, "decay": DECAY, "loss": "ce"},
        **({} if joint is None else {"joint": joint}),
        **changes,
    }
    found["run"] = {"trackers": [], "live": {"prompts": 0}, **changes.get("run", {})}
    return found


def config(place: Path, output: str, joint: dict[str, Any] | None, **changes: Any) -> TrainConfig:
    return config_of(place, output, **sections(joint, **changes))


def plain_losses(model: Any, teacher: Any, heads: Any, batch: Any, loss: str) -> tuple[Tensor, Tensor]:
    """L_target and sum_k lambda_k L_k from a Transformers model's own logits, one document after the other."""
    own: list[Tensor] = []
    by_head: list[list[Tensor]] = [[] for _ in range(HEADS)]
    for row, numbers in enumerate(batch.document):
        for number in range(1, int(numbers.max()) + 1):
            at = (numbers == number).nonzero()[:, 0]
            ids, learnt = batch.input_ids[row, at], batch.loss_mask[row, at]
            output = model(ids[None], output_hidden_states=True)
            with torch.no_grad():
                target = teacher(ids[None]).logits[0].softmax(-1)
            for t in range(len(ids) - 1):
                if learnt[t + 1]:
                    logs = output.logits[0, t].log_softmax(-1)
                    own.append(-logs[ids[t + 1]] if loss == "ce" else -(target[t] * logs).sum())
                for k in range(HEADS):
                    if t + 2 + k < len(ids) and learnt[t + 1 + k] and learnt[t + 2 + k]:
                        made = model.lm_head(heads.blocks[k](output.hidden_states[-1][0, t]))
                        by_head[k].append(F.cross_entropy(made, ids[t + 2 + k]))
    weighted = [DECAY**k * torch.stack(each).mean() for k, each in enumerate(by_head)]
    return torch.stack(own).mean(), torch.stack(weighted).sum()


def copies(place: Path, trainer: Trainer) -> tuple[Any, Any]:
    """Fresh models with their layers and final norm to be trained; the second one is the original."""
    models = [HFTarget.load(place / "target").model for _ in range(2)]
    names = {
        name.removeprefix("decoder.")
        for name, p in trainer.step_module.joint.named_parameters()
        if p.requires_grad
    }
    for name, parameter in models[0].model.named_parameters():
        parameter.requires_grad_(name in names)
    assert {name for name, p in models[0].named_parameters() if not p.requires_grad} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    return models[0], models[1]


@torch.no_grad()
def stir(module: torch.nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize("loss", ["kl", "ce"])
def test_loss_and_gradients_are_those_of_the_plain_formula(place: Path, loss: str) -> None:
    trainer = build_trainer(config(place, "formula", {"loss": loss}))
    stir(trainer.step_module, 1)  # heads that are not the identity, and a target that is not the original
    model, teacher = copies(place, trainer)
    model.model.load_state_dict(trainer.step_module.joint.decoder.state_dict())
    batch = trainer.capture("train", [0, 1])
    made, _, scored = trainer.step_module(batch, HEADS, trainer.rows_by_step(batch, HEADS, None))
    made.backward()
    named = dict(trainer.step_module.named_parameters())
    ours = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
    trainer.step_module.zero_grad()
    own, heads = plain_losses(model, teacher, trainer.drafter, batch, loss)
    torch.testing.assert_close(scored["target"].total, own)
    torch.testing.assert_close(made, own + WEIGHT * heads)
    (own + WEIGHT * heads).backward()
    theirs = {
        f"joint.decoder.{name}": p.grad for name, p in model.model.named_parameters() if p.requires_grad
    }
    theirs |= {name: p.grad for name, p in named.items() if name.startswith("drafter.")}
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-3, atol=1e-6, msg=name)


def test_without_the_heads_losses_it_is_plain_training(place: Path) -> None:
    """lambda_0 = 0: the target's weights are those of a loop of its own; the heads stay."""
    free = {"optim": {"steps": 4, "clip": 1e9}}
    trainer = build_trainer(config(place, "plain", {"loss": "ce", "lr_fraction": 0.5}, **free))
    trainer.step_module.settings = dataclasses.replace(trainer.step_module.settings, token_weight=0.0)
    model, teacher = copies(place, trainer)
    optim = trainer.config.optim
    optimizer = make_optimizer(dict(model.named_parameters()), optim)
    for step in range(optim.steps):
        rows = batch_rows(len(trainer.data.train), optim.batch_size, step, trainer.config.run.seed)
        batch = trainer.capture("train", rows)
        plain_losses(model, teacher, trainer.drafter, batch, "ce")[0].backward()
        set_learning_rate(optimizer, 0.5 * learning_rate(step, optim))
        optimizer.step()
        optimizer.zero_grad()
    before = teacher.model.state_dict()
    train(trainer)
    for name, tensor in trainer.step_module.joint.decoder.state_dict().items():
        torch.testing.assert_close(tensor, model.model.state_dict()[name], rtol=1e-3, atol=2e-5, msg=name)
        assert torch.equal(tensor, before[name]) == ("embed" in name), name
    assert not any(p.any() for p in trainer.drafter.blocks.parameters())


def test_a_target_that_does_not_move_has_the_heads_of_medusa_1(place: Path) -> None:
    """At the learning rate 0, bit for bit, whatever is captured together."""
    free = {"optim": {"clip": 1e9, "micro_batch_size": 1}}
    frozen = config(place, "still", {"loss": "kl"}, **free)
    still = frozen.model_copy(update={"joint": frozen.joint.model_copy(update={"lr_fraction": 0.0})})
    train(build_trainer(still))
    train(build_trainer(config(place, "medusa-1", None, **free)))
    assert drafter_digest(place / "still" / "drafter") == drafter_digest(place / "medusa-1" / "drafter")
    ours, theirs = (
        load_file(place / name / "model.safetensors") for name in ("still/joint-target", "target")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert target_fingerprint(place / "still" / "joint-target") == target_fingerprint(place / "target")


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    longer = {"optim": {"steps": 60, "lr": 1e-2}, "run": {"eval_every": 20}}
    train(build_trainer(config(place, "learns", {"loss": "ce"}, **longer)))
    return place / "learns"


def test_both_losses_fall_and_are_reported(place: Path, trained: Path) -> None:
    heads = curve(trained)
    assert sum(heads[-5:]) < 0.8 * sum(heads[:5])
    targets = [row["target"] for row in log_rows(trained, "heldout")]
    assert len(targets) == 3
    assert len({row["original_loss"] for row in targets}) == 1
    assert targets[-1]["loss"] < 0.7 * targets[-1]["original_loss"]
    assert 0 <= targets[-1]["same_token"] < 1
    meta = open_artifact(trained / "joint-target", "target").meta
    assert meta["loss"] == targets[-1]["loss"]
    assert meta["original_loss"] == targets[-1]["original_loss"]
    assert not (trained / "best").exists()


def test_the_held_out_losses_are_those_of_the_folders(place: Path, trained: Path) -> None:
    trainer = build_trainer(config(place, "checked", {"loss": "ce"}))
    meta = open_artifact(trained / "joint-target").meta
    for name, folder in (("loss", trained / "joint-target"), ("original_loss", place / "target")):
        model, total, count = HFTarget.load(folder).model, 0.0, 0
        for row in range(len(trainer.data.heldout)):
            batch = trainer.capture("heldout", [row])
            for number in range(1, int(batch.document.max()) + 1):
                at = (batch.document[0] == number).nonzero()[:, 0]
                ids, learnt = batch.input_ids[0, at], batch.loss_mask[0, at][1:]
                logs = model(ids[None]).logits[0, :-1].log_softmax(-1)
                total -= float(logs.gather(1, ids[1:, None])[learnt].sum())
                count += int(learnt.sum())
        assert meta[name] == pytest.approx(total / count, rel=1e-4), name


@pytest.mark.long
def test_self_distillation_keeps_the_target_nearer(place: Path, trained: Path) -> None:
    longer = {"optim": {"steps": 60, "lr": 1e-2}, "run": {"eval_every": 60}}
    train(build_trainer(config(place, "distilled", {"loss": "kl"}, **longer)))
    near, far = (
        open_artifact(run / "joint-target").meta["same_token"] for run in (place / "distilled", trained)
    )
    assert near > far


def test_the_pair_decodes_losslessly_and_the_original_is_refused(place: Path, trained: Path) -> None:
    drafter = open_artifact(trained / "drafter")
    check_target(drafter, target_fingerprint(trained / "joint-target"), target=trained / "joint-target")
    with pytest.raises(MismatchError, match="another target"):
        check_target(drafter, target_fingerprint(place / "target"), target=place / "target")
    result = invoke(
        "eval",
        *("--target", trained / "joint-target", "--drafter", trained / "drafter", "--limit", 4),
        *("--benchmark", trained / "heldout_prompts.jsonl", "--max-new-tokens", 16, "--warmup", 0),
        *("--output", place / "eval"),
    )
    assert result.exit_code == 0, result.output
    results = json.loads((place / "eval" / "results.json").read_text("utf-8"))
    outputs = next(one for one in results["methods"] if one["name"] != "plain")["summary"]["outputs"]
    assert outputs["identical"] == outputs["compared"] == 4


def test_a_finished_run_writes_its_target_once(place: Path) -> None:
    train(build_trainer(config(place, "whole", {}, optim={"steps": 2})))
    made = (place / "whole" / "joint-target" / "manifest.json").stat().st_mtime_ns
    train(build_trainer(config(place, "whole", {}, optim={"steps": 2})))
    assert (place / "whole" / "joint-target" / "manifest.json").stat().st_mtime_ns == made


def test_it_goes_on_from_heads_of_medusa_1(place: Path) -> None:
    """The paper's two stages: heads alone, then both."""
    train(build_trainer(config(place, "first", None)))
    init = {"kind": "medusa", "init": str(place / "first" / "drafter")}
    trainer = build_trainer(config(place, "second", {}, drafter=init))
    weights = load_file(place / "first" / "drafter" / "drafter.safetensors")
    assert all(torch.equal(p, weights[name]) for name, p in trainer.drafter.named_parameters())


def test_the_plan_counts_the_target(place: Path) -> None:
    alone, joint = (plan(config(place, "planned", each)) for each in (None, {}))
    assert str(place / "planned" / "joint-target") in joint["writes"]
    state = [each["trained_state_bytes"]["weights"] for each in (alone, joint)]
    layers = sum(p.numel() for p in HFTarget.load(place / "target").backbone.layers.parameters()) + 32
    assert state[1] - state[0] == 4 * layers


def test_what_does_not_go_together_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes, name in (
        ({"drafter": {"kind": "eagle3"}}, "drafter.kind other than medusa"),
        ({"heads": {"ranker": {}}}, "heads"),
        ({"optim": {"name": "muon"}}, "optim.name muon"),
        ({"memory": {"weights": "bf16"}, "run": {"mixed_precision": "bf16"}}, "memory.weights bf16"),
    ):
        with pytest.raises(ConfigError, match=f"without {name}"):
            config(place, "refused", {}, **changes)
    values = settings(place, "again", **sections({}))
    shutil.copytree(place / "target", place / "again" / "joint-target")
    values["target"] = str(place / "again" / "joint-target")
    with pytest.raises(ConfigError, match="the target that it writes as its target"):
        parse_config(TrainConfig, values, source="test")
    packed = HFTarget.load(place / "target")
    packed.model.packed = torch.nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(UsageError, match="quantised"):
        JointTarget(packed, KL, LossOptions())
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    with pytest.raises(UsageError, match="in one process"):
        plan(config(place, "refused", {}))


@pytest.mark.long
def test_fresh_replaces_both_and_a_missing_target_is_written_again(place: Path) -> None:
    path = write_config(place, "fresh", **sections({}, optim={"steps": 2}))
    folder, made = place / "fresh" / "joint-target", []
    for words in ((), ("optim.lr=1e-2", "--fresh"), ("optim.lr=1e-2",)):
        result = invoke("train-drafter", "--config", path, *words)
        assert result.exit_code == 0, result.output
        made.append((folder / "model.safetensors").read_bytes())
        (folder / "manifest.json").unlink()
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
    assert made[0] != made[1] == made[2]
