"""The training benchmark: whole steps and the loss alone, in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rival
import torch
import training
from command import present
from tensor_memory import TensorMemory
from torch import nn
from training import SHAPES, TrainingShape, bench_training, shown
from transformers import AutoConfig

from vocabforge.core.errors import ConfigError, UsageError
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.train.capture.online import CapturedBatch, RowBatch
from vocabforge.train.step import StepSettings, TrainStep
from vocabforge.train.ttt import rows_by_step

SMALL = ["shapes=[least]", "device=cpu", "batch=1", "length=80", "steps=2", "loss_rows=400"]


@pytest.fixture
def _least(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {**SHAPES["tiny"].sizes, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
    least = TrainingShape("llama", sizes, batch=1, length=80, steps=2)
    monkeypatch.setitem(SHAPES, "least", least)


@pytest.mark.usefixtures("_least")
def test_every_variant_is_measured() -> None:
    result = bench_training(SMALL, repeats=2)
    (shape,) = result["shapes"]
    assert (shape["vocab"], shape["length"], shape["steps"]) == (512, 80, 2)
    kinds = {(row["loss"], row["attention"], row["checkpointing"]) for row in shape["step"]}
    assert kinds == {
        ("fused", "merged", False),
        ("fused", "merged", True),
        ("fused", "eager", False),
        ("naive", "merged", False),
        ("naive", "eager", False),
    }
    for row in (*shape["step"], *shape["loss"]):
        assert len(row["all_seconds"]) == 2
        assert row["seconds"] > 0
        assert row["extra_mb"] > 0
    assert all(row["tokens_per_s"] == pytest.approx(80 / row["seconds"]) for row in shape["step"])
    assert json.loads(json.dumps(result)) == json.loads(json.dumps(result, default=str))


@pytest.mark.usefixtures("_least")
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "bench.json"
    present(lambda: bench_training(SMALL, repeats=1), shown, output)
    text = capsys.readouterr().out
    assert "fused + merged" in text
    assert "extra MB" in text
    assert "peak MB" not in text, "a CPU has no such figure"
    assert json.loads(output.read_text())["shapes"][0]["name"] == "least"


@pytest.mark.parametrize("installed", [False, True])
def test_rivals_take_turns(monkeypatch: pytest.MonkeyPatch, installed: bool) -> None:
    if installed and not rival.installed():
        pytest.skip("the speculators library is not installed")
    monkeypatch.setattr(training, "installed", lambda: installed)
    small = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 8, "max_position_embeddings": 64}
    sizes = {**SHAPES["rival-16k"].sizes, **small}
    least = TrainingShape("llama", sizes, batch=1, length=40, steps=2, draft_vocab=50)
    monkeypatch.setitem(SHAPES, "least", least)
    result = bench_training(["shapes=[least]", "device=cpu"], repeats=2)
    (shape,) = result["shapes"]
    assert (shape["vocab"], shape["draft_vocab"], shape["hidden"]) == (300, 50, 32)
    libraries = ("vocabforge", "speculators") if installed else ("vocabforge",)
    turns = [(library, head) for head in ("trained", "frozen") for library in libraries]
    assert [(row["library"], row["lm_head"]) for row in shape["rivals"]] == turns
    for row in shape["rivals"]:
        assert len(row["all_seconds"]) == 2
        assert row["tokens_per_s"] == pytest.approx(40 / row["seconds"])
        assert row["extra_mb"] > 0
    trained, frozen = (one for one in shape["rivals"] if one["library"] == "vocabforge")
    assert trained["extra_mb"] > frozen["extra_mb"], "the gradient of the LM head"
    heads = (2 * 300 + 50) * 32 * 4  # embedding and LM head, each once, and the drafter's own head
    assert heads < trained["weights_mb"] * 1e6 < 2 * heads
    parts = shown(result)
    assert any("not installed" in one for one in parts if isinstance(one, str)) is (not installed)


@pytest.mark.skipif(not rival.installed(), reason="the speculators library is not installed")
def test_the_rival_computes_what_we_compute() -> None:
    """With the same weights its loss, a Kullback-Leibler divergence, is our cross-entropy less the target's entropy."""
    sizes = {**SHAPES["rival-16k"].sizes, "vocab_size": 300, "hidden_size": 32}
    config = AutoConfig.for_model("llama", **sizes).to_dict()
    torch.manual_seed(0)
    ids = torch.randperm(300)[:50].sort().values
    embedding, head = torch.randn(300, 32), torch.randn(300, 32) * 0.01
    head[ids] *= 30  # every argmax is a draft token, so that every row counts
    drafter = new_drafter(
        "eagle3", drafter_sizes("eagle3", config, draft_vocab_size=50), embedding, head, ids
    )
    model = rival.speculators_model(drafter, head)
    own = {name.removeprefix("midlayer."): value for name, value in drafter.state_dict().items()}
    own["lm_head.weight"].copy_(head[ids])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data.copy_(own[name.removeprefix("layers.0.")])
    states = torch.nn.functional.rms_norm(torch.randn(1, 40, 32), (32,))
    ones = torch.ones(1, 40, dtype=torch.int64)
    rows = RowBatch(torch.randint(0, 300, (1, 40)), ones.bool(), ones, torch.arange(40)[None])
    batch = CapturedBatch(**vars(rows), features=torch.randn(1, 40, 96), hidden=states)

    step = TrainStep(drafter, nn.ModuleDict(), head, StepSettings(decay=0.5))
    ours, figures, _ = step(batch, 3, rows_by_step(rows.loss_mask, rows.document, 3))
    assert not any(one.outside for one in figures)
    p = (states[0] @ head[ids].T).log_softmax(-1)
    entropy = -(p.exp() * p).sum(-1)  # (T,)
    expected = ours - sum(0.5**k * entropy[k + 1 : -1].mean() for k in range(3))
    torch.testing.assert_close(rival.speculators_loss(model, batch, 3, 0.5)(), expected, rtol=1e-4, atol=1e-5)


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="no shape of this name"):
        bench_training(["shapes=[giant]"])
    with pytest.raises(ConfigError, match="unknown key 'lenght'"):
        bench_training(["lenght=3"])
    with pytest.raises(SystemExit, match="unknown key"):
        present(lambda: bench_training(["lenght=3"]), shown, None)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_configurations_that_exist(name: str) -> None:
    from transformers import AutoConfig

    shape = SHAPES[name]
    config = AutoConfig.for_model(shape.model_type, **shape.sizes)
    assert config.vocab_size == shape.sizes["vocab_size"]
    assert shape.length <= config.max_position_embeddings


def test_tensor_memory_counts_what_lives() -> None:
    with TensorMemory() as memory:
        a = torch.zeros(1000)
        b = a + 1
        view = b[:10]
        del a
        c = torch.zeros(500)
    assert (memory.live, memory.peak, memory.largest) == (6000, 8000, 4000)
    del b
    assert memory.live == 6000, "a view keeps its storage"
    del view, c
    assert memory.live == 0
    assert memory.operations("aten.add") == 1
