"""Training with dropped layers and losses at exits: the paper's rates and weights, gradients, exact resume."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.demo.test_tiny_target import config, texts  # noqa: F401  (fixtures)
from tests.packing import pack
from vocabforge.core.config import load_config
from vocabforge.corpus.prepared.dataset import TrainingSequence
from vocabforge.demo.target import train as training
from vocabforge.demo.target.build import build_model, make_tokenizer, train_tiny_target
from vocabforge.demo.target.config import TinyTargetConfig
from vocabforge.demo.target.layerskip import dropout_rates, dropped, exit_weights, layerskip_loss
from vocabforge.demo.target.train import TextBatch, TextRows, batch_loss
from vocabforge.train.config import OptimConfig

SKIP = {"layer_dropout": 0.3, "early_exit_loss": 0.5, "early_exit_every": 2}


def test_rates_rise_exponentially_with_depth_and_time() -> None:
    assert dropout_rates(5, 0.2, 0, 11) == [0.0] * 5  # nothing is dropped at the start
    last = dropout_rates(5, 0.2, 10, 11)
    assert last[0] == 0
    assert last[-1] == pytest.approx(0.2)
    steps = [1 + rate / 0.2 for rate in last]  # 2 ** (l / (L - 1))
    assert [b / a for a, b in itertools.pairwise(steps)] == pytest.approx([2 ** (1 / 4)] * 4)
    assert dropout_rates(5, 0.2, 5, 11)[-1] == pytest.approx(0.2 * (math.sqrt(2) - 1))
    assert dropout_rates(1, 0.2, 0, 1) == [0.2]


def test_exits_weigh_more_with_depth_and_take_turns() -> None:
    whole = exit_weights(5, 0.5, 0, 1)
    sums = [0, 0.5, 1.5, 3.0, 4 + 3.0]  # of the paper's e(l)
    assert [whole.get(layer, 0) for layer in range(5)] == pytest.approx([one / sum(sums) for one in sums])
    assert exit_weights(5, 0.0, 3, 1) == {4: 1.0}
    turns = [set(exit_weights(6, 1.0, step, 2)) for step in range(2)]
    assert turns == [{2, 4, 5}, {1, 3, 5}]
    assert all(sum(exit_weights(6, 1.0, step, 3).values()) == pytest.approx(1) for step in range(3))
    assert exit_weights(1, 1.0, 0, 1) == {0: 1.0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, TextBatch]:
    """A fresh model of four layers, and a batch of two rows."""
    folder = tmp_path_factory.mktemp("tiny")
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefg", k=3)) for _ in range(200)]
    tokenizer = make_tokenizer([" ".join(words)] * 2, 300, folder)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 4, "num_heads": 2, "num_kv_heads": 1}
    optim = OptimConfig(steps=4, batch_size=2, lr=1e-2, clip=1.0)
    settings = TinyTargetConfig(train=folder, heldout=folder, vocab_size=300, optim=optim, **sizes)
    model = build_model(settings, tokenizer)
    torch.manual_seed(3)
    for parameter in model.parameters():  # its MLPs start as nothing
        torch.nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, 0.1)
    made = [TrainingSequence(ids, [0, 0, *[1] * 8]) for ids in torch.randint(0, 300, (2, 10)).tolist()]
    rows = TextRows(pack(made, 10), "assistant")
    return model, rows.batch(torch.arange(2))


def test_the_loss_is_that_of_models_cut_short(tiny: tuple[Any, TextBatch]) -> None:
    model, batch = tiny
    stays = torch.ones(2, 4)
    plain, _ = batch_loss(model, batch)
    assert torch.equal(layerskip_loss(model, batch, stays, {3: 1.0}), plain)
    weights = {1: 0.25, 2: 0.25, 3: 0.5}
    expected = 0.5 * plain
    whole = model.model.layers
    for layer in (1, 2):
        model.model.layers = whole[: layer + 1]
        expected = expected + 0.25 * batch_loss(model, batch)[0]
    model.model.layers = whole
    torch.testing.assert_close(layerskip_loss(model, batch, stays, weights), expected)


def test_a_dropped_layer_is_not_there(tiny: tuple[Any, TextBatch]) -> None:
    """For its row alone: no effect and no gradient; nothing stays behind."""
    model, batch = tiny
    whole = model.model.layers
    stays = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 0]])
    with dropped(model, stays, {1, 3}) as outputs:
        model.model(input_ids=batch.input_ids)
    for row, (left_out, layer) in enumerate(((1, 3), (3, 3))):
        model.model.layers = torch.nn.ModuleList(one for at, one in enumerate(whole) if at != left_out)
        with dropped(model, torch.ones(1, 3), {2}) as alone:
            model.model(input_ids=batch.input_ids[row : row + 1])
        torch.testing.assert_close(outputs[layer][row], alone[2][0])
    model.model.layers = whole
    model.zero_grad()
    layerskip_loss(model, batch, torch.tensor([[1, 0, 1, 1]] * 2), {2: 0.5, 3: 0.5}).backward()
    moved = [bool((layer.mlp.down_proj.weight.grad != 0).any()) for layer in whole]
    assert moved == [True, False, True, True]
    assert torch.equal(layerskip_loss(model, batch, torch.ones(2, 4), {3: 1.0}), batch_loss(model, batch)[0])


def test_defaults_leave_a_target_as_it_was(config: TinyTargetConfig) -> None:  # noqa: F811
    """Its settings, and so its identity, hold none of LayerSkip's."""
    for body in (config.model_dump(mode="json"), config.decides()):
        assert not set(SKIP) & set(body)
    changed = config.model_copy(update=SKIP)
    assert SKIP.items() <= changed.decides().items()
    assert TinyTargetConfig.model_validate(changed.model_dump(mode="json")) == changed


def test_a_resumed_run_gives_the_same_weights(
    config: TinyTargetConfig,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optim = config.optim.model_copy(update={"steps": 12})
    wanted = config.model_copy(update={**SKIP, "optim": optim, "checkpoint_every": 4, "num_layers": 3})
    whole = train_tiny_target(wanted, tmp_path / "whole")
    save = training.checkpoints.save_checkpoint

    def stops(folder: Path, done: int, *rest: Any) -> None:
        save(folder, done, *rest)
        if done == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.checkpoints, "save_checkpoint", stops)
        with pytest.raises(KeyboardInterrupt):
            train_tiny_target(wanted, tmp_path / "parts")
    parts = train_tiny_target(wanted, tmp_path / "parts")
    first, second = ((one.path / "model.safetensors").read_bytes() for one in (whole, parts))
    assert first == second
    plain = train_tiny_target(
        wanted.model_copy(update=dict.fromkeys(SKIP, 0) | {"early_exit_every": 1}), tmp_path / "plain"
    )
    assert (plain.path / "model.safetensors").read_bytes() != first


def test_the_recipe_is_the_demos_but_for_its_training(tmp_path: Path) -> None:
    recipes = Path(__file__).parents[2] / "recipes" / "tiny"
    files = [f"train={tmp_path}", f"heldout={tmp_path}"]
    plain, skips = (
        load_config(TinyTargetConfig, recipes / f"{name}.yaml", files) for name in ("target", "layerskip")
    )
    assert skips.skips_layers
    assert skips.model_copy(update=dict.fromkeys(SKIP, 0) | {"early_exit_every": 1}) == plain
