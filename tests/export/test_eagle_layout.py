"""The layouts of EAGLE-1/2 drafters: what each server is given, and folders that others wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.export.eagle3_cases import assert_same
from tests.export.readers_support import eagle1
from tests.folders import edit_folder
from vocabforge.core.artifact import MANIFEST, open_artifact
from vocabforge.core.errors import ArtifactError, DataError, MismatchError, VocabForgeError
from vocabforge.layouts.eagle1 import Eagle, FrSpec, ranked_ids
from vocabforge.layouts.interface import Export
from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.revocab import prune_head, with_head
from vocabforge.models.rope import RopeSettings
from vocabforge.models.target.head import TargetTensors
from vocabforge.models.target.load import read_target_config
from vocabforge.vocab.subset.subset import VocabSubset

RANKED = (41, 0, 9, 3, 17, 58)
# What a one-layer Llama of these sizes and this layout consists of: SGLang's and vLLM's loaders name the same.
NAMES = {
    "embed_tokens.weight": (61, 32),
    "fc.weight": (32, 64),
    "layers.0.self_attn.q_proj.weight": (32, 32),
    "layers.0.self_attn.k_proj.weight": (16, 32),
    "layers.0.self_attn.v_proj.weight": (16, 32),
    "layers.0.self_attn.o_proj.weight": (32, 32),
    "layers.0.mlp.gate_proj.weight": (40, 32),
    "layers.0.mlp.up_proj.weight": (40, 32),
    "layers.0.mlp.down_proj.weight": (32, 40),
    "layers.0.post_attention_layernorm.weight": (32,),
}


def subset(ranked: tuple[int, ...] = RANKED) -> VocabSubset:
    return VocabSubset.from_ranked(np.array(ranked, dtype=np.int64), vocab_size=61, fingerprint="tok")


def export_of(drafter: Any, folder: Path, shared: TargetTensors, **more: Any) -> Export:
    dtype = more.pop("dtype", torch.float32)
    return Export(drafter, read_target_config(folder), shared, str(folder), dtype, **more)


@pytest.mark.parametrize("server", ["sglang", "vllm"])
def test_what_a_server_is_given(server: str, folder: Path, shared: TargetTensors, tmp_path: Path) -> None:
    drafter = eagle1(shared, fc_bias=server == "sglang", rope=RopeSettings(theta=500_000.0))
    Eagle.write(tmp_path / "out", export_of(drafter, folder, shared, server=server, dtype=torch.bfloat16))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    bias = {"fc.bias": (32,)} if server == "sglang" else {}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == NAMES | bias
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert torch.equal(tensors["embed_tokens.weight"], shared.embedding.bfloat16())
    body = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert body["architectures"] == [
        "LlamaForCausalLMEagle" if server == "sglang" else "EagleLlamaForCausalLM"
    ]
    assert body.get("bias") == (
        None if server == "sglang" else False
    )  # a true one is the attention's, to servers
    expected = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "vocab_size": 61,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "rope_theta": 500_000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert {key: body[key] for key in expected} == expected
    assert open_artifact(tmp_path / "out", "export-eagle").kind == Eagle.KIND


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    "rope",
    [
        RopeSettings(),
        RopeSettings(10_000.0, "linear", 4.0),
        RopeSettings(5e5, "llama3", 8.0, 1.0, 4.0, 128),
        RopeSettings(1.5e5, "yarn", 8.0, original_positions=32, truncate=False),
    ],
)
def test_written_and_read_again(biased, rope, folder, shared, tmp_path):
    drafter = eagle1(shared, fc_bias=biased, rope=rope, rms_norm_eps=1e-6)
    Eagle.write(tmp_path / "out", export_of(drafter, folder, shared, server=None if biased else "vllm"))
    loaded, artifact = load_drafter(tmp_path / "out", shared, folder)
    assert artifact is not None
    assert_same(loaded, drafter)


def test_sglang_always_gets_a_bias(folder: Path, shared: TargetTensors, tmp_path: Path) -> None:
    """It would compute with a random one."""
    drafter = eagle1(shared, fc_bias=False)
    Eagle.write(tmp_path / "out", export_of(drafter, folder, shared))
    assert not load_file(tmp_path / "out" / "model.safetensors")["fc.bias"].any()
    loaded, _ = load_drafter(tmp_path / "out", shared, folder)
    g = torch.randn(3, 32)
    ids = torch.tensor([4, 9, 60])
    assert torch.equal(loaded._join(ids, g), drafter._join(ids, g))


def test_vllm_takes_a_bias_of_zeros_only(folder: Path, shared: TargetTensors, tmp_path: Path) -> None:
    drafter = eagle1(shared)
    with pytest.raises(MismatchError, match="without a bias") as error:
        Eagle.write(tmp_path / "out", export_of(drafter, folder, shared, server="vllm"))
    assert "train again with drafter.fc_bias=false" in str(error.value)
    assert "--server sglang" in str(error.value)
    assert not (tmp_path / "out").exists()
    drafter.fc.bias.zero_()
    Eagle.write(tmp_path / "out", export_of(drafter, folder, shared, server="vllm"))
    assert "fc.bias" not in load_file(tmp_path / "out" / "model.safetensors")


def test_a_restricted_head_is_a_list_in_rank_order(folder, shared, tmp_path):
    drafter = prune_head(eagle1(shared), subset(), source="s")
    FrSpec.write(tmp_path / "out", export_of(drafter, folder, shared, ranked=RANKED))
    assert torch.load(tmp_path / "out" / "freq_6.pt", weights_only=True) == list(RANKED)
    assert ranked_ids(tmp_path / "out") == RANKED
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == NAMES | {"fc.bias": (32,)}
    loaded, artifact = load_drafter(tmp_path / "out", shared, folder)
    assert artifact is not None
    assert artifact.kind == "export-fr-spec"
    assert_same(loaded, drafter)
    (tmp_path / "out" / MANIFEST).unlink()  # as a folder from elsewhere
    assert_same(load_drafter(tmp_path / "out", shared, folder)[0], drafter)
    FrSpec.write(tmp_path / "ids", export_of(drafter, folder, shared))
    assert ranked_ids(tmp_path / "ids") == tuple(sorted(RANKED))


def test_a_head_that_servers_do_not_run_is_refused(folder, shared, tmp_path):
    whole, cut = eagle1(shared, own=61), prune_head(eagle1(shared), subset(), source="s")
    trained = with_head(cut, cut.target_ids, torch.randn(6, 32))
    cases = [
        (Eagle, whole, {}, "own head of 61 rows"),
        (Eagle, cut, {}, "--format fr-spec"),
        (Eagle, trained, {}, "own head of 6 rows"),
        (FrSpec, trained, {}, "own head of 6 rows"),
        (FrSpec, eagle1(shared), {}, "--format eagle"),
        (FrSpec, cut, {"ranked": (1, 2, 3, 4, 5, 6)}, "rank order of other ids"),
    ]
    for layout, drafter, more, words in cases:
        with pytest.raises(VocabForgeError, match=words):
            layout.write(tmp_path / "out", export_of(drafter, folder, shared, **more))
        assert not (tmp_path / "out").exists()


def test_an_own_head_of_the_targets_rows_is_the_targets(folder, shared, tmp_path):
    drafter = with_head(eagle1(shared), torch.arange(61), shared.head.bfloat16().float())
    Eagle.write(tmp_path / "out", export_of(drafter, folder, shared))
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")


@pytest.fixture
def foreign(folder: Path, shared: TargetTensors, tmp_path: Path) -> Path:
    """As EAGLE's own repository has them: a Llama of one layer whose weights have ``fc``, and no manifest."""
    Eagle.write(tmp_path / "x", export_of(eagle1(shared), folder, shared))
    (tmp_path / "x" / MANIFEST).unlink()
    return edit_folder(tmp_path / "x", architectures=["LlamaForCausalLM"])


def rename(old: str, new: str) -> Any:
    return lambda tensors: tensors.__setitem__(new, tensors.pop(old))


@pytest.mark.parametrize(
    ("change", "fields", "kind", "words"),
    [
        (lambda t: t.pop("layers.0.mlp.up_proj.weight"), {}, ArtifactError, "missing layers.0.mlp.up_proj"),
        (lambda t: t.update(extra=torch.zeros(2)), {}, ArtifactError, "unexpected extra"),
        (rename("fc.weight", "model.fc.weight"), {}, ArtifactError, "missing fc.weight"),
        (lambda t: t.update({"fc.weight": t["fc.weight"].T}), {}, ArtifactError, "shape"),
        (
            lambda t: t.update({"layers.0.input_layernorm.weight": torch.ones(32)}),
            {},
            ArtifactError,
            "input_layer",
        ),
        (lambda t: t.update({"lm_head.weight": torch.ones(61, 32)}), {}, MismatchError, "LM head of its own"),
        (lambda t: t["embed_tokens.weight"].add_(0.01), {}, MismatchError, "embedding"),
        (lambda t: None, {"bias": False}, DataError, "contradicts its weights"),
        (lambda t: t.pop("fc.bias"), {"bias": True}, DataError, "contradicts its weights"),
        (lambda t: None, {"attention_bias": True}, DataError, "attention without bias"),
        (lambda t: None, {"vocab_size": 60}, MismatchError, "does not fit the drafter"),
        (lambda t: None, {"hidden_size": None}, DataError, "lacks a field"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(change, fields, kind, words, foreign, folder, shared):
    edit_folder(foreign, change, architectures=["LlamaForCausalLMEagle"], **fields)
    with pytest.raises(kind, match=words):
        load_drafter(foreign, shared, folder)
