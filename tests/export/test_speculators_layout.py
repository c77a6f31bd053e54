"""The layout of speculators: what is written, what is read, what vLLM makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.eagle3_cases import (
    LAYERS,
    OWN_HEAD,
    ROPES,
    SHAPES,
    assert_same,
    config_of,
    drafter_of,
    put,
    shapes_of,
    shared_of,
    write,
)
from vocabforge.core.errors import DataError, MismatchError
from vocabforge.layouts.layer_ids import speculators_layers
from vocabforge.layouts.speculators import SpeculatorsEagle3
from vocabforge.models.drafters.eagle3 import Eagle3Drafter


def read(path: Path, drafter: Eagle3Drafter) -> Eagle3Drafter:
    return SpeculatorsEagle3.read(path, shared_of(drafter), LAYERS)


def test_what_a_form_changes_in_the_configuration(tmp_path: Path) -> None:
    """Norms of q and k; the other keys are those of the goldens."""
    drafter = drafter_of(config_of(qk_norm=True, norm_before_residual=True, fc_norm=True, rope=ROPES[2]))
    body, tensors = write(SpeculatorsEagle3, tmp_path / "e", drafter, torch.bfloat16, speculative_tokens=4)
    added = {f"layers.0.self_attn.{name}_norm.weight": (6,) for name in "qk"}
    added |= {f"fc_norm.{number}.weight": (16,) for number in range(3)}
    plain_names = {name.replace("midlayer.", "layers.0."): shape for name, shape in SHAPES.items()}
    assert shapes_of(tensors) == plain_names | OWN_HEAD | added | {"embed_tokens.weight": (31, 16)}
    assert body["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    switches = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    assert [body[name] for name in switches] == [True, False, True, False]
    rope = {"rope_type": "linear", "factor": 3.0}
    layer = {
        "model_type": "qwen3",
        "rope_scaling": rope,
        "rope_parameters": {"rope_theta": 10000.0, **rope},
        "use_sliding_window": False,
        "sliding_window": None,
        "layer_types": ["full_attention"],
    }
    assert {key: body["transformer_layer_config"][key] for key in layer} == layer
    served = body["speculators_config"]
    assert served["proposal_methods"] == [{"proposal_type": "greedy", "speculative_tokens": 4}]
    assert served["verifier"] == {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]}
    plain, _ = write(SpeculatorsEagle3, tmp_path / "p", drafter_of(config_of(draft_vocab_size=None)))
    assert plain["draft_vocab_size"] == 31, "a number, as its reader wants it"


def test_the_last_layer_can_be_said_and_a_layer_after_it_not(tmp_path: Path) -> None:
    last = drafter_of(config_of(aux_layers=(0, LAYERS - 1)))
    body, _ = write(SpeculatorsEagle3, tmp_path / "e", last)
    assert speculators_layers(body, LAYERS) == (0, LAYERS - 1)
    assert_same(read(tmp_path / "e", last), last)
    with pytest.raises(MismatchError, match="cannot express these auxiliary layers"):
        write(SpeculatorsEagle3, tmp_path / "f", drafter_of(config_of(aux_layers=(0, LAYERS))))


def test_what_is_absent_is_what_vllm_takes_it_for(tmp_path: Path) -> None:
    drafter = drafter_of(config_of(norm_before_residual=True))
    body, tensors = write(SpeculatorsEagle3, tmp_path / "e", drafter)
    switches = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "target_hidden_size")
    left = {name: value for name, value in body.items() if name not in (*switches, "torch_dtype", "dtype")}
    layer = dict(left["transformer_layer_config"])
    for name in ("model_type", "num_aux_hidden_states", "rope_parameters", "attention_bias", "hidden_act"):
        layer.pop(name)
    left["transformer_layer_config"] = layer
    assert_same(read(put(tmp_path / "f", left, tensors), drafter), drafter)
    default = drafter_of(config_of(norm_before_residual=True, aux_layers=(1, 5, 8)))
    unlisted = {name: v for name, v in left.items() if name != "eagle_aux_hidden_state_layer_ids"}
    assert_same(read(put(tmp_path / "g", unlisted, tensors), default), default)


@pytest.mark.parametrize("rows", [9, 31])
def test_an_absent_head_or_embedding_is_the_targets(tmp_path: Path, rows: int) -> None:
    drafter = drafter_of(config_of(draft_vocab_size=rows))
    body, tensors = write(SpeculatorsEagle3, tmp_path / "e", drafter)
    for name in ("lm_head.weight", "embed_tokens.weight"):
        tensors.pop(name)
    loaded = read(put(tmp_path / "f", body, tensors), drafter)
    assert torch.equal(loaded.head_weight, drafter.target_head[drafter.target_ids])
    assert torch.equal(loaded.target_ids, drafter.target_ids)
    assert loaded.has_own_head == (rows == 9)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"speculators_model_type": "dflash"}, "speculators_model_type 'dflash'"),
        ({"transformer_layer_config": None}, "no transformer_layer_config"),
        ({"transformer_layer_config": {"model_type": "gpt_oss"}}, "model_type 'gpt_oss'"),
        ({"transformer_layer_config": {"model_type": "llama"}}, "lacks a field"),
        ({"target_hidden_size": 32}, "target_hidden_size 32"),
        ({"norm_before_residual": 1}, "neither true nor false"),
        ({"norm_before_fc": True, "fc_norm": True}, "no valid sizes"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 5, 8]}, "not ascending layers"),
        ({"draft_vocab_size": 99}, "no valid sizes"),
    ],
)
def test_what_is_not_computed_here_is_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    drafter = drafter_of(config_of())
    body, tensors = write(SpeculatorsEagle3, tmp_path / "e", drafter)
    with pytest.raises(DataError, match=words):
        read(put(tmp_path / "f", body | changed, tensors), drafter)
