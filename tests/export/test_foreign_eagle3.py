"""EAGLE-3 folders as other tools write them: read where a server reads them, refused where they mean something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.eagle3_cases import LAYERS, assert_same, config_of, drafter_of, put, shared_of, write
from vocabforge.core.errors import ArtifactError, DataError, MismatchError
from vocabforge.layouts.eagle3 import SglangEagle3
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def drafter() -> Eagle3Drafter:
    return drafter_of(config_of())


@pytest.fixture(scope="module")
def written(
    drafter: Eagle3Drafter, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Tensors]:
    return write(SglangEagle3, tmp_path_factory.mktemp("written") / "e", drafter)


def read(path: Path, drafter: Eagle3Drafter) -> Eagle3Drafter:
    return SglangEagle3.read(path, shared_of(drafter), LAYERS)


def minimal(config: Eagle3Config) -> dict[str, Any]:
    """What a tool that writes little writes."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
    }


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {(new + name[len(old) :] if name.startswith(old) else name): t for name, t in tensors.items()}


def test_a_minimal_configuration_takes_the_servers_defaults(drafter, written, tmp_path):
    """No layers, no eagle_config, no switches; names in several styles; t2d and its dtype do not matter."""
    tensors = written[1]
    forms = {
        "plain": tensors,
        "layers": renamed(tensors, "midlayer.", "layers.0."),
        "prefixed": {f"model.{name}": tensor for name, tensor in tensors.items()},
        "mixed": renamed(tensors, "midlayer.", "model.layers.0."),
        "no t2d": {name: tensor for name, tensor in tensors.items() if name != "t2d"},
        "int32": tensors | {"d2t": tensors["d2t"].int(), "t2d": tensors["t2d"].to(torch.uint8)},
        "int16": tensors | {"d2t": tensors["d2t"].to(torch.int16)},
        "rotary": tensors | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(3)},
        "embedding": tensors | {"embed_tokens.weight": drafter.embedding.clone()},
        "rounded": tensors | {"model.embed_tokens.weight": drafter.embedding.bfloat16()},
    }
    for name, form in forms.items():
        assert_same(read(put(tmp_path / name, minimal(drafter.config), form), drafter), drafter)
    other = minimal(drafter.config) | {"architectures": ["Eagle3LlamaForCausalLM"]}
    assert_same(read(put(tmp_path / "vllm", other, tensors), drafter), drafter)


def test_norms_before_fc_under_older_names_and_in_either_place(tmp_path: Path) -> None:
    per_layer = drafter_of(config_of(fc_norm=True))
    body, tensors = write(SglangEagle3, tmp_path / "a", per_layer)
    for number, legacy in enumerate(("aux_norm_low", "aux_norm_mid", "aux_norm_high")):
        tensors = renamed(tensors, f"fc_norm.{number}.", f"{legacy}.")
    old = {name: value for name, value in body.items() if name != "fc_norm"} | {"use_aux_norm": True}
    assert_same(read(put(tmp_path / "old", old, tensors), per_layer), per_layer)
    whole = drafter_of(config_of(norm_before_fc=True))
    body, tensors = write(SglangEagle3, tmp_path / "b", whole)
    body["eagle_config"].pop("norm_before_fc")
    assert_same(read(put(tmp_path / "top", body | {"norm_before_fc": True}, tensors), whole), whole)
    body["eagle_config"]["norm_before_fc"] = False  # what stands there is read first
    with pytest.raises(ArtifactError, match=r"unexpected input_norm\.weight"):
        read(put(tmp_path / "off", body | {"norm_before_fc": True}, tensors), whole)


def test_forms_that_only_vllm_computes_are_read(tmp_path: Path) -> None:
    """Its Qwen3 class norms q and k; its reader takes norm_before_residual from this layout too."""
    base = drafter_of(config_of())
    body, tensors = write(SglangEagle3, tmp_path / "e", base)
    normed = tensors | {f"midlayer.self_attn.{name}_norm.weight": torch.rand(6) for name in "qk"}
    qwen = body | {"architectures": ["Eagle3Qwen3ForCausalLM"], "norm_before_residual": True}
    loaded = read(put(tmp_path / "qwen", qwen, normed), base)
    assert (loaded.config.qk_norm, loaded.config.norm_before_residual) == (True, True)
    assert torch.equal(loaded.midlayer.self_attn.q_norm.weight, normed["midlayer.self_attn.q_norm.weight"])
    with pytest.raises(ArtifactError, match=r"unexpected midlayer\.self_attn\.[qk]_norm"):
        read(put(tmp_path / "llama", body, normed), base)  # SGLang would skip them, vLLM's Llama class stops


def test_heads(tmp_path: Path) -> None:
    """Shared where there is none; its own where it differs from the target's."""
    shared = drafter_of(config_of(draft_vocab_size=None))
    body, tensors = write(SglangEagle3, tmp_path / "e", shared)
    repeated = tensors | {"lm_head.weight": shared.target_head.bfloat16()}
    assert_same(read(put(tmp_path / "repeated", body, repeated), shared), shared)
    assert_same(read(put(tmp_path / "absent", body | {"draft_vocab_size": 31}, tensors), shared), shared)
    own = tensors | {"lm_head.weight": torch.randn(31, 16)}
    assert read(put(tmp_path / "own", body, own), shared).config.draft_vocab_size == 31
    identity = own | {"d2t": torch.zeros(31, dtype=torch.int64), "t2d": torch.ones(31, dtype=torch.bool)}
    loaded = read(put(tmp_path / "mapped", body, identity), shared)
    assert torch.equal(loaded.target_ids, torch.arange(31))
    for rows in (9, 31):
        odd = tensors | {"lm_head.weight": torch.randn(9, 16)}
        with pytest.raises(
            (MismatchError, ArtifactError), match=r"no d2t of its size|lm_head\.weight has shape"
        ):
            read(put(tmp_path / f"odd{rows}", body | {"draft_vocab_size": rows}, odd), shared)


def test_another_embedding_is_refused(drafter, written, tmp_path):
    """The servers disagree about it: SGLang takes the target's, vLLM keeps this one."""
    trained = written[1] | {"embed_tokens.weight": drafter.embedding + 0.1}
    with pytest.raises(MismatchError, match="own input embedding"):
        read(put(tmp_path / "e", written[0], trained), drafter)


def test_layers_of_unknown_numbering_are_said(drafter, written, tmp_path, capsys):
    key = "eagle_aux_hidden_state_layer_ids"
    body = {name: value for name, value in written[0].items() if name != key}
    body["eagle_config"] = {key: [2, 4, 7]}
    assert read(put(tmp_path / "e", body, written[1]), drafter).config.aux_layers == (2, 4, 7)
    said = capsys.readouterr().err
    assert "[2, 4, 7]" in said
    assert "[1, 3, 6]" in said
    assert "doctor" in said
    assert read(put(tmp_path / "f", written[0], written[1]), drafter).config.aux_layers == (1, 5, 8)
    assert capsys.readouterr().err == ""


def test_damaged_maps_and_weights_are_refused(drafter, written, tmp_path):
    body, tensors = written
    ids = drafter.target_ids

    def refused(error: type[Exception], words: str, **changed: torch.Tensor | None) -> None:
        left = {name: tensor for name, tensor in {**tensors, **changed}.items() if tensor is not None}
        with pytest.raises(error, match=words):
            read(put(tmp_path, body, left), drafter)

    refused(MismatchError, "(?s)no d2t of its size.*the drafter again", d2t=None, t2d=None)
    refused(MismatchError, "no d2t of its size", d2t=tensors["d2t"][:-1].clone())
    refused(MismatchError, "no d2t of its size", d2t=tensors["d2t"].float())
    refused(MismatchError, "holds target ids, not offsets", d2t=ids.clone())
    refused(MismatchError, "ascending", d2t=tensors["d2t"].flip(0))
    refused(MismatchError, "ascending", d2t=tensors["d2t"] - 40)
    refused(ArtifactError, "(?s)name different tokens.*22 tokens in t2d", t2d=~tensors["t2d"])
    refused(ArtifactError, "does not mark the target's tokens", t2d=tensors["t2d"][:-1].clone())
    refused(ArtifactError, "not those of its configuration", **{"norm.weight": None})
    refused(ArtifactError, "not those of its configuration", **{"lm_head.weight": None})
    refused(ArtifactError, "fc.weight has shape", **{"fc.weight": tensors["fc.weight"].T.contiguous()})
    refused(ArtifactError, "unexpected fc.bias", **{"fc.bias": torch.zeros(16)})
    refused(
        ArtifactError,
        "unexpected midlayer.self_attn.q_proj.bias",
        **{"midlayer.self_attn.q_proj.bias": ids.float()},
    )
    refused(ArtifactError, "under two names", **{"layers.0.hidden_norm.weight": torch.ones(16)})
    refused(DataError, "packed or quantised", **{"norm.weight": torch.ones(16, dtype=torch.int8)})
    put(tmp_path, body, tensors)
    (tmp_path / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path, drafter)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_hidden_layers": 2.5}, "lacks a field"),
        ({"hidden_act": "gelu"}, "SwiGLU"),
        ({"bias": True}, "fc without bias"),
        ({"target_hidden_size": 32}, "target_hidden_size 32"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "full attention"),
        ({"layer_types": ["sliding_attention"]}, "lacks a field"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "reads no auxiliary layers"),
        ({"num_aux_hidden_states": 4}, "contradicts itself"),
        ({"draft_vocab_size": "9"}, "draft_vocab_size is not a number"),
        ({"draft_vocab_size": 32}, "no valid sizes"),
        ({"norm_output": "yes"}, "neither true nor false"),
        ({"fc_norm": True, "norm_before_fc": True, "eagle_config": {}}, "no valid sizes"),
        ({"hidden_size": None}, "lacks a field"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "RoPE type"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 5], "eagle_config": None}, "not ascending layers"),
    ],
)
def test_what_is_not_computed_here_is_refused(drafter, written, tmp_path, changed, words):
    body = {name: value for name, value in written[0].items() if changed.get(name, 0) is not None}
    if "eagle_aux_hidden_state_layer_ids" in changed:
        body.pop("num_aux_hidden_states")
    body |= {name: value for name, value in changed.items() if value is not None}
    with pytest.raises(DataError, match=words):
        read(put(tmp_path, body, written[1]), drafter)
