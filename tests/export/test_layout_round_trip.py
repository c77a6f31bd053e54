"""What is written is what is read, for random sizes and forms; and tools of others are fed from what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.eagle3_cases import (
    LAYERS,
    ROPES,
    TARGET,
    VARIANTS,
    assert_same,
    config_of,
    drafter_of,
    put,
    random_config,
    shared_of,
    write,
)
from tests.export.readers_support import sglang_captures, vllm_captures
from vocabforge.core.errors import ArtifactError, MismatchError
from vocabforge.layouts.eagle3 import SglangEagle3
from vocabforge.layouts.gguf.layout import check_form
from vocabforge.layouts.interface import Export
from vocabforge.layouts.speculators import SpeculatorsEagle3
from vocabforge.models.drafters.medusa import MedusaConfig, MedusaDrafter
from vocabforge.models.rope import RopeSettings, parse_rope

FORMS: dict[Any, tuple[tuple[str, ...], int, int]] = {
    SglangEagle3: (("norm_before_fc", "fc_norm", "norm_output"), LAYERS - 2, 2),
    SpeculatorsEagle3: (VARIANTS, LAYERS - 1, 1),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("layout", FORMS)
def test_random_drafters_come_back_as_they_were(layout: Any, tmp_path: Path) -> None:
    seen: set[Any] = set()
    for seed in range(30):
        config = random_config(seed, *FORMS[layout])
        dtype = DTYPES[seed % 3]
        drafter = drafter_of(config, seed)
        path = tmp_path / str(seed)
        body, _ = write(layout, path, drafter, dtype)
        assert vllm_captures(body, LAYERS) == config.aux_layers
        if layout is SglangEagle3:
            assert sglang_captures(body, LAYERS) == config.aux_layers
        assert_same(layout.read(path, shared_of(drafter), LAYERS), drafter, dtype)
        seen |= {name for name in VARIANTS if getattr(config, name)}
        seen |= {config.rope.kind, config.draft_vocab_size in (None, config.vocab_size)}
    assert seen >= {*FORMS[layout][0], "default", "linear", "llama3", "yarn", True, False}


@pytest.mark.parametrize("layout", FORMS)
def test_a_head_over_the_whole_vocabulary_has_no_map(layout: Any, tmp_path: Path) -> None:
    """vLLM has no place for one, and refuses tensors that it does not know."""
    for rows in (None, 31):
        _, tensors = write(layout, tmp_path / str(rows), drafter_of(config_of(draft_vocab_size=rows)))
        assert not {"d2t", "t2d"} & set(tensors)


@pytest.mark.parametrize("layout", FORMS)
def test_a_target_of_several_parts_is_its_language_model(layout: Any, tmp_path: Path) -> None:
    drafter = drafter_of(config_of())
    parts = {"architectures": ["Both"], "model_type": "llava", "text_config": {**TARGET}}
    layout.write(tmp_path / "e", Export(drafter, parts, shared_of(drafter), "org/both", torch.float32))
    assert_same(layout.read(tmp_path / "e", shared_of(drafter), LAYERS), drafter)


@pytest.mark.parametrize("layout", FORMS)
def test_other_kinds_of_drafters_are_refused(layout: Any, tmp_path: Path) -> None:
    config = MedusaConfig(16, 31, None, 64, 2)
    drafter = MedusaDrafter(config, torch.randn(31, 16), torch.randn(31, 16), None)
    with pytest.raises(MismatchError, match="EAGLE-3 drafters only"):
        write(layout, tmp_path / "e", drafter)
    assert not (tmp_path / "e").exists()


LONGROPE = RopeSettings(
    1e4, "longrope", 4.0, original_positions=16, short_factors=(1.0, 1.5, 2.0), long_factors=(2.0, 4.0, 8.0)
)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_several_layers_come_back_where_servers_compute_them(qk_norm: bool, tmp_path: Path) -> None:
    """vLLM does; SGLang and llama.cpp are refused by name."""
    drafter = drafter_of(config_of(num_layers=3, qk_norm=qk_norm, fc_norm=True, norm_output=True))
    body, tensors = write(SpeculatorsEagle3, tmp_path / "e", drafter)
    layer = body["transformer_layer_config"]
    assert layer["num_hidden_layers"] == 3
    assert len(layer.get("layer_types", [0] * 3)) == 3
    assert "layers.0.hidden_norm.weight" in tensors
    assert tensors["layers.2.self_attn.q_proj.weight"].shape == (24, 16)
    assert "layers.2.hidden_norm.weight" not in tensors
    assert_same(SpeculatorsEagle3.read(tmp_path / "e", shared_of(drafter), LAYERS), drafter)
    put(tmp_path / "short", body, {n: t for n, t in tensors.items() if not n.startswith("layers.2.")})
    with pytest.raises(ArtifactError):
        SpeculatorsEagle3.read(tmp_path / "short", shared_of(drafter), LAYERS)
    put(
        tmp_path / "many", {**body, "transformer_layer_config": layer | {"num_hidden_layers": 10**8}}, tensors
    )
    with pytest.raises(ArtifactError, match="100,000,000 in the configuration, weights of"):
        SpeculatorsEagle3.read(tmp_path / "many", shared_of(drafter), LAYERS)
    with pytest.raises(MismatchError, match="3 decoder layers, which SGLang"):
        write(SglangEagle3, tmp_path / "s", drafter)
    with pytest.raises(MismatchError, match="3 decoder layers"):
        check_form(drafter.config, TARGET)


def test_another_tools_norm_output_is_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SpecForge gives the key another meaning; what we wrote ourselves is what we trained."""
    drafter = drafter_of(config_of(fc_norm=True, norm_output=True))
    body, tensors = write(SglangEagle3, tmp_path / "ours", drafter)
    SglangEagle3.read(tmp_path / "ours", shared_of(drafter), LAYERS)
    assert "SpecForge" not in capsys.readouterr().err
    assert_same(
        SglangEagle3.read(put(tmp_path / "theirs", body, tensors), shared_of(drafter), LAYERS), drafter
    )
    assert "SpecForge" in capsys.readouterr().err


@pytest.mark.parametrize("layout", FORMS)
def test_longrope_comes_back(layout: Any, tmp_path: Path) -> None:
    drafter = drafter_of(config_of(rope=LONGROPE))
    write(layout, tmp_path / "e", drafter)
    assert_same(layout.read(tmp_path / "e", shared_of(drafter), LAYERS), drafter)


@pytest.mark.parametrize("rope", ROPES)
def test_transformers_reads_the_same_sizes(rope: RopeSettings, tmp_path: Path) -> None:
    """Servers take the configuration through Transformers' classes."""
    from transformers import AutoConfig

    plain = drafter_of(config_of(rope=rope))
    body, _ = write(SglangEagle3, tmp_path / "s", plain, torch.bfloat16)
    served = AutoConfig.from_pretrained(tmp_path / "s")
    assert served.model_type == "llama"
    assert served.draft_vocab_size == 9
    assert served.eagle_config == body["eagle_config"]
    layers = [(served, plain)]
    for form, kind in (({}, "llama"), ({"qk_norm": True}, "qwen3")):
        drafter = drafter_of(config_of(rope=rope, **form))
        layer = write(SpeculatorsEagle3, tmp_path / kind, drafter, torch.bfloat16)[0][
            "transformer_layer_config"
        ]
        made = AutoConfig.for_model(model_type=layer["model_type"]).__class__(**layer)
        assert made.model_type == kind
        assert made.num_aux_hidden_states == 3
        layers.append((made, drafter))
    for found, drafter in layers:
        sizes = drafter.config
        assert parse_rope(found.to_dict(), 1.0) == rope
        assert found.rope_parameters["rope_type"] == rope.kind
        assert (found.hidden_size, found.intermediate_size, found.vocab_size) == (16, 20, 31)
        assert (found.num_attention_heads, found.num_key_value_heads, found.head_dim) == (4, 2, 6)
        assert found.num_hidden_layers == 1
        assert found.rms_norm_eps == sizes.rms_norm_eps
        assert found.max_position_embeddings == 64
        assert found.hidden_act == "silu"
        assert found.dtype == torch.bfloat16
        assert found.tie_word_embeddings is False
        assert found.attention_bias is False
