"""Folders as servers read them: names, numberings, defaults, and a forward pass against plain transformers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from tests.export.readers_support import (
    IDS,
    LAYERS,
    Tiny,
    changed,
    eagle1_over,
    eagle3,
    sglang_captures,
    vllm_captures,
    write,
)
from vocabforge.export.servers.forward import Past, rotate, rotation
from vocabforge.export.servers.registry import READERS, open_folder, reader_of
from vocabforge.export.servers.types import KeyUse, Served
from vocabforge.layouts.fields import rope_spellings
from vocabforge.layouts.layer_ids import LAYER_IDS
from vocabforge.models.kv_cache import CacheView
from vocabforge.models.rope import RopeSettings


@pytest.fixture(scope="module")
def good(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tiny, eagle3(tiny), "sglang-eagle3", tmp_path_factory.mktemp("good") / "x")


@pytest.fixture(scope="module")
def normed(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tiny, eagle3(tiny, fc_norm=True), "sglang-eagle3", tmp_path_factory.mktemp("normed") / "x")


def read(tiny: Tiny, name: str, path: Path) -> Served:
    return reader_of(name).read(open_folder(path), tiny.side)


def key(served: Served, name: str) -> KeyUse:
    return next(one for one in served.keys if one.name == name)


def with_names(good: Path, folder: Path, old: str, new: str) -> Path:
    def rename(stored: dict[str, Any]) -> None:
        for name in list(stored):
            if name.startswith(old):
                stored[new + name.removeprefix(old)] = stored.pop(name)

    return changed(good, folder, tensors=rename)


@pytest.mark.parametrize(
    ("old", "new", "reading"),
    [
        ("midlayer.", "layers.0.", {"sglang", "vllm"}),
        ("midlayer.", "model.layers.0.", {"sglang"}),
        ("norm.", "model.norm.", {"sglang"}),
        ("lm_head.", "model.lm_head.", set()),
    ],
)
def test_which_names_each_server_takes(tiny, good, tmp_path, old, new, reading):
    path = with_names(good, tmp_path / "x", old, new)
    assert {name for name in ("sglang", "vllm") if not read(tiny, name, path).failed} == reading


def test_sglangs_legacy_names_of_norms(tiny: Tiny, normed: Path, tmp_path: Path) -> None:
    def rename(stored: dict[str, Any]) -> None:
        for index, name in enumerate(("low", "mid", "high")):
            stored[f"aux_norm_{name}.weight"] = stored.pop(f"fc_norm.{index}.weight")

    path = changed(normed, tmp_path / "x", tensors=rename, config=_legacy)
    served = read(tiny, "sglang", path)
    assert not served.problems
    assert key(served, "aux_norm_mid.weight").parameter == "model.fc_norm.1.weight"
    assert read(tiny, "vllm", path).failed


def _legacy(body: dict[str, Any]) -> None:
    body["use_aux_norm"] = body.pop("fc_norm")


@pytest.mark.parametrize(
    ("fields", "sglang", "vllm"),
    [
        ({LAYER_IDS: [2, 4, 5], "eagle_config": {LAYER_IDS: [1, 3, 4]}}, (1, 3, 4), (1, 3, 4)),
        ({LAYER_IDS: [4, 6, 7], "eagle_config": {LAYER_IDS: [1, 2, 3]}}, (1, 2, 3), (3, 5, 6)),
        ({LAYER_IDS: None, "eagle_config": {LAYER_IDS: [2, 4, 5]}}, (2, 4, 5), (1, 3, 4)),
        ({LAYER_IDS: [2, 5, 6], "eagle_config": {}}, (1, 3, 4), (1, 4, 5)),
        ({LAYER_IDS: None, "eagle_config": None}, (1, 3, 4), (1, 3, 4)),
    ],
)
def test_the_layers_that_each_captures(tiny, good, tmp_path, fields, sglang, vllm):
    path = changed(good, tmp_path / "x", config=lambda body: body.update(fields))
    body = json.loads((path / "config.json").read_text("utf-8"))
    assert read(tiny, "sglang", path).layers == sglang == sglang_captures(body, 8)
    assert read(tiny, "vllm", path).layers == vllm == vllm_captures(body, 8)


def test_vllms_other_model_runner_takes_the_default(tiny: Tiny, good: Path, tmp_path: Path) -> None:
    """Warned of if the list inside ``eagle_config``, which only one of its runners reads, is another."""
    for inside, warned in (([4, 5, 6], True), ([2, 4, 5], False)):
        fields = {LAYER_IDS: None, "eagle_config": {LAYER_IDS: inside}}
        path = changed(good, tmp_path / str(inside), config=lambda body, fields=fields: body.update(fields))
        problems = read(tiny, "vllm", path).problems
        assert any("captures inputs [2, 4, 5]" in one.message for one in problems) == warned


@pytest.mark.parametrize(
    ("architecture", "listed", "captured"),
    [
        ("LlamaForCausalLM", [2, 4, 5], (2, 4, 5)),
        ("DeepseekV3ForCausalLM", [1, 3, 4], (1, 3, 4)),  # it starts with 1
        ("DeepseekV3ForCausalLM", [2, 4, 5], (1, 3, 4)),
        ("Glm4MoeLiteForCausalLM", [3, 4, 5], (2, 3, 4)),
        ("GptOssForCausalLM", [2, 4, 6], (2, 4, 6)),
        ("GptOssForCausalLM", [2, 4, 8], (1, 3, 7)),  # it names the boundary behind the last layer
    ],
)
def test_the_targets_in_which_sglang_adds_nothing(tiny, good, tmp_path, architecture, listed, captured):
    path = changed(
        good, tmp_path / "x", config=lambda body: body.update({"eagle_config": {LAYER_IDS: listed}})
    )
    side = dataclasses.replace(tiny.side, config={**tiny.side.config, "architectures": [architecture]})
    assert reader_of("sglang").read(open_folder(path), side).layers == captured


def test_what_each_shares_of_the_target(tiny: Tiny, tmp_path: Path) -> None:
    path = write(tiny, eagle3(tiny, rows=None), "sglang-eagle3", tmp_path / "x")
    for name in ("sglang", "vllm"):
        served = read(tiny, name, path)
        shared = {name for name, source in served.gaps.items() if source == "target"}
        assert shared == {"model.embed_tokens.weight", "lm_head.weight"}
        assert not served.own_head


def test_a_whole_head_needs_no_map_and_vllm_refuses_one(tiny: Tiny, tmp_path: Path) -> None:
    path = write(tiny, eagle3(tiny, rows=torch.arange(61)), "sglang-eagle3", tmp_path / "x")
    with_map = changed(path, tmp_path / "y", tensors=lambda stored: stored.update(d2t=torch.zeros(61).long()))
    without = changed(
        path, tmp_path / "z", tensors=lambda stored: [stored.pop(n, None) for n in ("d2t", "t2d")]
    )
    assert not read(tiny, "sglang", with_map).failed
    assert key(read(tiny, "vllm", with_map), "d2t").effect == "refused"
    assert not read(tiny, "vllm", without).failed


def test_d2t_is_added_to_the_row(tiny: Tiny, good: Path) -> None:
    for name in ("sglang", "vllm"):
        ids = read(tiny, name, good).target_ids
        assert ids is not None
        assert torch.equal(ids, IDS)


def test_a_token_map_keeps_its_order(tiny: Tiny, tmp_path: Path) -> None:
    path = write(
        tiny, eagle1_over(tiny.shared, IDS), "fr-spec", tmp_path / "x", ranked=tuple(IDS.flip(0).tolist())
    )
    served = read(tiny, "sglang", path)
    assert served.drafter is not None
    assert served.target_ids is not None
    assert served.target_ids.tolist() == IDS.flip(0).tolist()
    assert torch.equal(served.drafter.parameters["lm_head.weight"], tiny.shared.head[IDS.flip(0)])


@pytest.mark.parametrize("layout", ["sglang-eagle3", "speculators-eagle3"])
@pytest.mark.parametrize("name", READERS)
def test_who_knows_which_folder(tiny: Tiny, tmp_path: Path, name: str, layout: str) -> None:
    folder = open_folder(write(tiny, eagle3(tiny), layout, tmp_path / "x"))
    known = {"sglang-eagle3": {"sglang", "vllm", "llamacpp"}, "speculators-eagle3": {"vllm"}}
    assert reader_of(name).matches(folder) == (name in known[layout])


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10000.0},
        {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0},
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        rope_spellings(RopeSettings(1.5e5, "yarn", 8.0, original_positions=64, truncate=False))[
            "rope_parameters"
        ],
        rope_spellings(RopeSettings(1e4, "yarn", 40.0, original_positions=64, attention_factor=0.9))[
            "rope_parameters"
        ],
    ],
)
def test_rotation_is_that_of_transformers(rope: dict[str, Any]) -> None:
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        rope_parameters=dict(rope),
        max_position_embeddings=512,
    )
    x, positions = torch.randn(9, 4, 16), torch.tensor([0, 1, 2, 7, 31, 63, 64, 200, 511])
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    theirs, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    ours = rotate(x, *rotation(rope, 16, positions))
    torch.testing.assert_close(ours, theirs[0].transpose(0, 1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "form",
    [
        {"norm_before_residual": True, "qk_norm": True},
        {"num_layers": 3, "fc_norm": True, "norm_output": True},
    ],
)
def test_the_servers_pass_is_the_drafters(tiny: Tiny, tmp_path: Path, form: dict[str, Any]) -> None:
    """Also with several decoder layers, which vLLM computes and SGLang does not."""
    drafter = eagle3(tiny, **form)
    path = write(tiny, drafter, "speculators-eagle3", tmp_path / "x")
    text = tiny.texts()[0]
    ids, count = text.ids[1:], len(text.ids) - 1
    features = text.features(LAYERS)[:-1]
    slots = torch.arange(count)
    cached = CacheView(drafter.new_cache(1, count), slots, slots <= slots[:, None])
    with torch.no_grad():
        read_states = drafter.extend(ids[None], drafter.fuse(features[None]), slots[None], cached)[1]
        expected = read_states[0] @ drafter.head_weight.T
    served = read(tiny, "vllm", path).drafter
    assert served is not None
    logits, _ = served.step(ids, served.fuse(features), slots, Past())
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)
    if "num_layers" in form:
        flat = changed(
            write(tiny, eagle3(tiny), "sglang-eagle3", tmp_path / "s"),
            tmp_path / "deep",
            config=lambda body: body.update(num_hidden_layers=3),
        )
        problems = read(tiny, "sglang", flat).problems
        assert any("decoder layers, of which SGLang computes one" in one.message for one in problems)
