"""A drafter is made for every architecture, from its folder, and takes a step of training over its states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.models.architectures import ARCHITECTURES, make_architecture
from tests.train.ttt_reference import capture, documents, pack
from vocabforge.core.errors import ConfigError, DataError, UnsupportedError
from vocabforge.models.drafters.eagle3 import Eagle3Config
from vocabforge.models.drafters.registry import drafter_sizes, new_drafter
from vocabforge.models.rope import RopeSettings
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import read_target_config
from vocabforge.train.config import DrafterConfig
from vocabforge.train.setup import sizes_of
from vocabforge.train.ttt import unroll

DEEPSEEK = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "original_max_position_embeddings": 4096}


def config_of(name: str, folder: Path, **keys: Any) -> dict[str, Any]:
    """``config.json`` of a configuration class with a few keys, as it is saved."""
    getattr(transformers, name)(**keys).save_pretrained(folder)
    return read_target_config(folder)


@pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "eagle3") for name in ARCHITECTURES), ("gpt-oss", "eagle1"), ("deepseek-v3", "eagle1")],
)
def test_one_step_over_every_architecture(name: str, kind: str, tmp_path: Path) -> None:
    model = make_architecture(name)
    model.config.save_pretrained(tmp_path)
    sizes = drafter_sizes(kind, read_target_config(tmp_path))
    assert (sizes.hidden_size, sizes.vocab_size) == (64, 96)
    target = HFTarget(model, sizes.aux_layers)
    drafter = new_drafter(kind, sizes, target.embedding, target.head_weight)
    batch = capture(target, pack([documents(4, [9, 7])], 16))
    assert batch.states(drafter.reads).std() > 0
    loss = torch.stack([drafter.logits(step.g).logsumexp(-1).mean() for step in unroll(drafter, batch, 2)])
    loss.sum().backward()
    grads = {name: p.grad for name, p in drafter.named_parameters()}
    assert all(grad is not None and torch.isfinite(grad).all() for grad in grads.values())


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("GptOssConfig", {}, (2880, 64, 8, 64, 4 * 2880)),
        ("Qwen3MoeConfig", {"head_dim": 128}, (2048, 32, 4, 128, 6144)),
        ("DeepseekV3Config", {}, (7168, 56, 56, 128, 18432)),
        ("GPT2Config", {}, (768, 12, 12, 64, 3072)),
        ("Gemma3Config", {}, (2304, 8, 4, 256, 9216)),
    ],
)
def test_sizes_are_attributes(name, keys, expected, tmp_path):
    sizes = drafter_sizes("eagle3", config_of(name, tmp_path, **keys))
    found = (sizes.hidden_size, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.intermediate_size)
    assert found == expected


def test_the_rope_is_the_targets_over_whole_heads(tmp_path: Path) -> None:
    def rope(name: str, **keys: Any) -> RopeSettings:
        return drafter_sizes("eagle1", config_of(name, tmp_path / name, **keys)).rope

    yarn = rope("GptOssConfig")
    assert (yarn.kind, yarn.factor, yarn.theta, yarn.truncate) == ("yarn", 32.0, 150_000.0, False)
    assert yarn.original_positions == 4096
    assert rope("DeepseekV3Config", rope_parameters=dict(DEEPSEEK)).kind == "yarn"
    assert rope("Gemma3TextConfig") == RopeSettings(10_000.0)
    assert rope("Glm4Config") == RopeSettings(10_000.0)
    assert rope("Qwen3NextConfig") == RopeSettings(10_000.0)
    assert rope("GPT2Config") == RopeSettings(10_000.0)
    sections = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]}
    assert rope("Qwen3VLConfig", text_config={"rope_parameters": sections}) == RopeSettings(5e6)


def test_a_recipe_may_ask_for_plain_rope(tmp_path: Path) -> None:
    target = config_of("GptOssConfig", tmp_path)

    def rope(**keys: Any) -> RopeSettings:
        return sizes_of(DrafterConfig(**keys), target, None).rope

    assert rope().kind == "yarn"
    assert rope(rope="plain") == RopeSettings(10_000.0)
    assert rope(rope="plain", rope_theta=5e5) == RopeSettings(5e5)
    with pytest.raises(ValueError, match=r"needs drafter\.rope: plain"):
        DrafterConfig(rope_theta=5e5)


def test_rope_that_is_not_computed_has_a_remedy(tmp_path: Path) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    target = config_of("LlamaConfig", tmp_path, rope_parameters=dynamic)
    with pytest.raises(UnsupportedError, match="dynamic") as error:
        drafter_sizes("eagle3", target)
    assert error.value.remedy == "set drafter.rope: plain"
    assert sizes_of(DrafterConfig(rope="plain"), target, None).rope == RopeSettings()


def test_longrope_needs_heads_of_the_targets_size(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 36, "long_factor": [2.0] * 36}
    scaling = {"rope_type": "longrope", "rope_theta": 1e4, **factors, "partial_rotary_factor": 0.75}
    target = config_of(
        "Phi3Config",
        tmp_path,
        rope_parameters=scaling,
        pad_token_id=None,
        original_max_position_embeddings=4096,
    )
    with pytest.raises(ConfigError, match="longrope"):
        drafter_sizes("eagle3", target)


def test_a_partial_rope_in_a_file_is_refused(tmp_path: Path) -> None:
    sizes = drafter_sizes("eagle3", config_of("LlamaConfig", tmp_path)).to_dict()
    assert Eagle3Config.from_dict(sizes).rope == RopeSettings()
    with pytest.raises(ConfigError, match="whole heads"):
        Eagle3Config.from_dict({**sizes, "rope": {"partial": 0.5}})


def test_unknown_model_types_are_named() -> None:
    with pytest.raises(DataError, match="does not have this model type"):
        drafter_sizes("eagle3", {"model_type": "unheard"})
