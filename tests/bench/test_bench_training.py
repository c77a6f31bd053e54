"""The training benchmark: whole steps and the loss alone, in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from vocabforge.bench.tensor_memory import TensorMemory
from vocabforge.bench.training import SHAPES, TrainingShape, bench_training
from vocabforge.cli.app import build_app
from vocabforge.cli.bench import bench
from vocabforge.core.errors import ConfigError, UsageError

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
def test_command(tmp_path: Path) -> None:
    app = build_app({"bench": bench}, ["bench"])
    output = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "training", *SMALL, "--repeats", "1", "--output", str(output)])
    assert done.exit_code == 0, done.output
    assert "fused + merged" in done.output
    assert "extra MB" in done.output
    assert "peak MB" not in done.output, "a CPU has no such figure"
    assert json.loads(output.read_text())["shapes"][0]["name"] == "least"


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="no shape of this name"):
        bench_training(["shapes=[giant]"])
    with pytest.raises(ConfigError, match="unknown key 'lenght'"):
        bench_training(["lenght=3"])
    app = build_app({"bench": bench}, ["bench"])
    done = CliRunner().invoke(app, ["bench", "count-freq"])
    assert done.exit_code == 2
    assert "needs a tokenizer" in done.output + str(done.stderr)


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
