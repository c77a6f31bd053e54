"""The converter of llama2.c checkpoints, without development data: a checkpoint made from a model here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.llama2c import main
from tests.support import tiny_target
from vocabforge.evaluate.rounding import next_logits
from vocabforge.models.lean import LeanModel, load_target

IDS = [3, 17, 8, 44, 21, 9, 60]
LAYERS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.down_proj",
    "mlp.up_proj",
)


def pairwise(matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """(heads * D, d) rows from halves (i, i + D/2) to neighbours (2i, 2i + 1) in every head."""
    return matrix.reshape(-1, 2, head_dim // 2, matrix.shape[-1]).transpose(0, 2, 1, 3).reshape(matrix.shape)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a model, ``model.bin`` of the same weights, and a stand-in for a tokenizer."""
    from safetensors.numpy import load_file

    folder = tiny_target(tmp_path / "source", tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    parts = [weights["model.embed_tokens.weight"]]
    for name in LAYERS:
        for layer in range(5):
            matrix = weights[f"model.layers.{layer}.{name}.weight"]
            parts.append(pairwise(matrix, 8) if name.endswith(("q_proj", "k_proj")) else matrix)
    parts += [weights["model.norm.weight"], np.zeros((2, 256, 4), np.float32)]
    header = np.array([32, 48, 5, 4, 2, 61, 256], "<i4").tobytes()
    (folder / "model.bin").write_bytes(header + b"".join(part.astype("<f4").tobytes() for part in parts))
    (folder / "tokenizer.json").write_text("{}", "utf-8")
    return folder


def run(source: Path, folder: Path) -> int:
    return main(
        [str(source / name) for name in ("model.bin", "config.json", "tokenizer.json")] + [str(folder)]
    )


def logits(model: LeanModel) -> torch.Tensor:
    with torch.inference_mode():
        return next_logits(model, IDS)


def test_the_converted_model_is_the_same(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "new") == 0
    assert (tmp_path / "new" / "tokenizer.json").read_text("utf-8") == "{}"
    ours, theirs = logits(load_target(tmp_path / "new")), logits(load_target(source))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("change", [-4, 4, -(2 * 256 * 4 * 4 + 40)])
def test_a_wrong_size_is_an_error(
    change: int, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = source / "model.bin"
    data = binary.read_bytes()
    binary.write_bytes(data[:change] if change < 0 else data + bytes(change))
    assert run(source, tmp_path / "new") == 1
    assert "its header promises" in capsys.readouterr().err
    assert not (tmp_path / "new" / "model.safetensors").exists()


def test_other_errors_are_told(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one"]) == 2
    assert "usage" in capsys.readouterr().err
    config = json.loads((source / "config.json").read_text("utf-8"))
    (source / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 4}), "utf-8")
    assert run(source, tmp_path / "new") == 1
    assert "num_key_value_heads is 2" in capsys.readouterr().err
    (source / "model.bin").write_bytes(b"1234")
    assert run(source, tmp_path / "new") == 1
    assert "too short" in capsys.readouterr().err
    (source / "model.bin").unlink()
    assert run(source, tmp_path / "new") == 1
    assert "model.bin" in capsys.readouterr().err
