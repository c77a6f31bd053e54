"""Every way a checkpoint may lie in a folder, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.folders import edit_folder
from tests.models.lean_support import VOCAB, build, run_chunks, run_full
from vocabforge.core.errors import DataError, MismatchError, VocabForgeError
from vocabforge.models.lean.model import load_target
from vocabforge.ops.decoder_layers import runs_layers

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
IDS = torch.randint(0, VOCAB, (1, 20), generator=torch.Generator().manual_seed(2))


def _hugging_face(folder: Path, **options: object) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", **options)
    with torch.no_grad():
        return model(IDS).logits


def _assert_like_hugging_face(folder: Path) -> None:
    logits, _ = run_full(load_target(folder), IDS)
    torch.testing.assert_close(logits, _hugging_face(folder), rtol=0, atol=1e-4)


@pytest.mark.parametrize("index", [True, False], ids=["with-index", "index-deleted"])
@pytest.mark.parametrize("case", ["llama", "qwen2-tied", "olmo2", "bitnet"])
def test_sharded_equals_single_file(case: str, index: bool, tmp_path: Path) -> None:
    build(case, tmp_path / "single")
    build(case, tmp_path / "sharded", max_shard_size="10KB")
    shards = list((tmp_path / "sharded").glob("*.safetensors"))
    assert len(shards) > 2
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    if not index:
        (tmp_path / "sharded" / "model.safetensors.index.json").unlink()
    single, _ = run_full(load_target(tmp_path / "single"), IDS)
    sharded, _ = run_full(load_target(tmp_path / "sharded"), IDS)
    assert torch.equal(single, sharded)


@pytest.mark.parametrize("stored", ["tied", "another head", "equal head", "head only"])
def test_tied_checkpoints(stored: str, tmp_path: Path) -> None:
    build("llama-tied", tmp_path)
    changes: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
        "tied": lambda tensors: None,
        "another head": lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].flip(0)}),
        "equal head": lambda tensors: tensors.update({HEAD: tensors[EMBEDDING].clone()}),
        "head only": lambda tensors: tensors.update({HEAD: tensors.pop(EMBEDDING)}),
    }
    assert HEAD not in load_file(tmp_path / "model.safetensors")
    edit_folder(tmp_path, changes[stored])
    lean = load_target(tmp_path)
    shared = lean.lm_head_weight.data_ptr() == lean.embedding.data_ptr()
    assert shared == (stored != "another head")
    assert not any(parameter.requires_grad for parameter in lean.parameters())
    _assert_like_hugging_face(tmp_path)


@pytest.mark.parametrize("case", ["llama", "qwen3", "olmo2", "bitnet", "gemma-3", "gpt-oss"])
def test_a_bf16_checkpoint_computes_in_fp32(case: str, tmp_path: Path) -> None:
    """The compiled ops leave its matrices in bf16 and give the bits of fp32 matrices with the same numbers."""
    build(case, tmp_path / "exact")
    for name, dtype in (("halves", torch.bfloat16), ("whole", torch.float32)):
        shutil.copytree(tmp_path / "exact", tmp_path / name)
        edit_folder(
            tmp_path / name,
            lambda tensors, dtype=dtype: tensors.update(
                {n: t.bfloat16().to(dtype) for n, t in tensors.items()}
            ),
        )
    exact, whole, halves = (load_target(tmp_path / name) for name in ("exact", "whole", "halves"))
    assert halves.dtype == torch.float32
    stored = {
        parameter.dtype for layer in halves.layers for parameter in layer.parameters() if parameter.dim() == 2
    }
    narrow = runs_layers(torch.empty(0)) and not any(halves.config.expert_layers)
    assert (torch.bfloat16 in stored) == narrow
    for ids in (IDS, IDS.expand(4, -1)):  # more rows than the ops take
        for chunks in ([20], [1] * 20, [4] * 5):
            found, expected, others = (
                run_chunks(model, ids, chunks, torch.arange(20))[0] for model in (halves, whole, exact)
            )
            assert torch.equal(found, expected)
            assert not torch.allclose(found, others, rtol=0, atol=1e-4)
    halves.widen()  # compiled passes multiply fp32
    assert {parameter.dtype for parameter in halves.parameters()} == {torch.float32}
    assert torch.equal(run_full(halves, IDS)[0], run_full(whole, IDS)[0])


@pytest.mark.parametrize("case", ["llama", "qwen3", "olmo2", "bitnet"])
def test_bfloat16_is_as_near_to_fp32_as_hugging_face_is(case: str, tmp_path: Path) -> None:
    build(case, tmp_path)
    exact, _ = run_full(load_target(tmp_path), IDS)
    lean = load_target(tmp_path, dtype=torch.bfloat16)
    assert lean.dtype == torch.bfloat16
    logits, _ = run_full(lean, IDS)
    assert logits.dtype == torch.bfloat16
    ours = (logits.float() - exact).square().mean().sqrt()
    theirs = (_hugging_face(tmp_path, dtype=torch.bfloat16).float() - exact).square().mean().sqrt()
    assert 0 < ours < 1.5 * theirs


def test_rotary_buffers_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    build("llama", tmp_path)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.full((4,), 3.0)}
    edit_folder(tmp_path, lambda tensors: tensors.update(extra))
    _assert_like_hugging_face(tmp_path)


def _refused(folder: Path, kind: type[VocabForgeError], *words: str) -> None:
    with pytest.raises(kind) as caught:
        load_target(folder)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in:\n{caught.value}"
    assert caught.value.source is not None or caught.value.expected is not None
    assert caught.value.remedy or "missing" in caught.value.message


def test_missing_unexpected_and_wrong_shapes_come_in_one_error(tmp_path: Path) -> None:
    build("llama", tmp_path)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("model.layers.1.")]:  # more than are shown
            del tensors[name]
        tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
        tensors["model.layers.2.self_attn.k_proj.weight"] = torch.ones(15, 32)

    edit_folder(tmp_path, spoil)
    _refused(
        tmp_path,
        MismatchError,
        "missing model.layers.1.",
        "and 4 more",
        "unexpected model.layers.0.self_attn.q_norm.weight",
        "model.layers.2.self_attn.k_proj.weight has shape (15, 32), expected (16, 32)",
        str(tmp_path),
    )


UP = "model.layers.0.mlp.up_proj.weight"
Tensors = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("change", "config", "kind", "words"),
    [
        (lambda t: t.pop(HEAD), {}, MismatchError, ["missing lm_head.weight", "tie_word_embeddings"]),
        (None, {"num_hidden_layers": 5}, MismatchError, ["missing model.layers.3.", "and 13 more"]),
        (None, {"vocab_size": VOCAB + 1}, MismatchError, ["vocab_size", f"{VOCAB} rows", str(VOCAB + 1)]),
        (
            lambda t: t.update({UP: torch.ones(10, 32, dtype=torch.uint8)}),
            {},
            DataError,
            ["packed", f"{UP} (U8)", "dequantise"],
        ),
    ],
)
def test_other_tensors_are_refused(change, config, kind, words, tmp_path):
    build("llama", tmp_path)
    edit_folder(tmp_path, change, **config)
    _refused(tmp_path, kind, *words)


@pytest.mark.parametrize("keep", [0, 4, 3_000], ids=["empty", "header-cut", "data-cut"])
def test_truncated_file_is_refused_with_its_path(keep: int, tmp_path: Path) -> None:
    build("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    _refused(tmp_path, DataError, "cannot be read", str(file), "truncated")


def test_shards_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    build("llama", tmp_path, max_shard_size="10KB")
    index = tmp_path / "model.safetensors.index.json"
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    data = lost.read_bytes()
    lost.unlink()
    _refused(tmp_path, DataError, lost.name)
    index.write_text(json.dumps({"metadata": {}}))
    _refused(tmp_path, DataError, "weight_map")
    index.unlink()
    _refused(tmp_path, MismatchError, "missing model.")
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors").write_bytes(data)
    _refused(tmp_path, DataError, "one.safetensors and two.safetensors")


def test_folders_without_weights_are_refused(tmp_path: Path) -> None:
    build("llama", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    _refused(tmp_path, DataError, "pytorch_model.bin", "save_pretrained")
    (tmp_path / "pytorch_model.bin").unlink()
    _refused(tmp_path, DataError, "no weight file")
    _refused(tmp_path / "nowhere", DataError, "nowhere")
