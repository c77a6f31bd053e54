"""RoPE of every kind equals Transformers' own rotary embeddings, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.glm4.modeling_glm4 import Glm4RotaryEmbedding
from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb as rotate_neighbours
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as rotate_part

from vocabforge.core.errors import DataError, UnsupportedError
from vocabforge.models.rope import (
    apply_rope,
    attention_factor,
    inverse_frequencies,
    layer_ropes,
    parse_rope,
    rope_at,
    rope_tables,
    rotated_size,
    rotation_partners,
)

SIZE, LONGEST, FIRST = 16, 256, 32
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": FIRST,
}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": FIRST}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 3.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, **LLAMA3},
    "yarn": YARN,
    "yarn of gpt-oss": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "yarn of DeepSeek": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0, "factor": 40},
    "yarn with a factor": {**YARN, "attention_factor": 0.8},
}


def _config(kind: str, **changes: Any) -> Any:
    sizes = {"hidden_size": 4 * SIZE, "num_attention_heads": 4, "max_position_embeddings": LONGEST}
    return transformers.LlamaConfig(**sizes, head_dim=SIZE, rope_parameters=dict(KINDS[kind]), **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_and_scaling_are_those_of_transformers(kind: str) -> None:
    config = _config(kind)
    theirs = LlamaRotaryEmbedding(config)
    rope = parse_rope(config.to_dict(), 1.0)
    assert torch.equal(inverse_frequencies(rope, SIZE), theirs.inv_freq)
    assert attention_factor(rope) == pytest.approx(theirs.attention_scaling, rel=1e-12)
    positions = torch.arange(LONGEST)
    q, k = torch.randn(2, 2, 3, LONGEST, SIZE).unbind(0)
    expected, _ = apply_rotary_pos_emb(q, k, *theirs(q, positions[None]))
    found = apply_rope(q, *rope_tables(rope, SIZE, LONGEST))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    if kind != "default":
        plain = rope_tables(parse_rope({"rope_theta": rope.theta}, 1.0), SIZE, LONGEST)
        assert (apply_rope(q, *plain) - expected).abs().max() > 0.1


def test_old_spellings_of_yarn_are_the_new_ones() -> None:
    scaling = {key: value for key, value in YARN.items() if key not in ("rope_type", "rope_theta")}
    old = {"rope_theta": YARN["rope_theta"], "rope_scaling": {"type": "yarn", **scaling}}
    assert parse_rope(old, 1.0) == parse_rope({"rope_parameters": YARN}, 1.0)
    ratio = {**YARN, "factor": None}
    assert parse_rope({"rope_parameters": ratio, "max_position_embeddings": LONGEST}, 1.0).factor == 8.0


@pytest.mark.parametrize("length", [FIRST, FIRST + 1])
@pytest.mark.parametrize("partial", [1.0, 0.75])
def test_longrope_chooses_by_the_length_of_the_pass(length: int, partial: float) -> None:
    pairs = int(SIZE * partial) // 2
    draw = torch.Generator().manual_seed(3)
    factors = [(1 + 9 * torch.rand(pairs, generator=draw)).tolist() for _ in range(2)]
    config = transformers.Phi3Config(
        hidden_size=4 * SIZE,
        num_attention_heads=4,
        max_position_embeddings=LONGEST,
        original_max_position_embeddings=FIRST,
        pad_token_id=None,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": factors[0],
            "long_factor": factors[1],
            "partial_rotary_factor": partial,
        },
    )
    theirs = Phi3RotaryEmbedding(config)
    rope = parse_rope(config.to_dict(), 1.0)
    q = torch.randn(1, 2, length, SIZE)
    positions = torch.arange(length)
    expected, _ = rotate_part(q, q, *theirs(q, positions[None]))
    assert torch.equal(inverse_frequencies(rope, SIZE, length), theirs.inv_freq)
    assert attention_factor(rope) == pytest.approx(theirs.attention_scaling, rel=1e-12)
    cos, sin = rope_at(
        positions, inverse_frequencies(rope, SIZE, length), scale=attention_factor(rope), size=SIZE
    )
    found = apply_rope(q, cos, sin, rotation_partners(rotated_size(rope, SIZE), SIZE))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_neighbours_of_a_part_of_each_head_are_rotated() -> None:
    config = transformers.Glm4Config(hidden_size=4 * SIZE, num_attention_heads=4, head_dim=SIZE)
    theirs, rope = Glm4RotaryEmbedding(config), parse_rope(config.to_dict(), 1.0)
    assert rope.partial == 0.5
    positions = torch.arange(40)
    q = torch.randn(1, 2, 40, SIZE)
    expected, _ = rotate_neighbours(q, q, *theirs(q, positions[None]))
    cos, sin = rope_at(positions, inverse_frequencies(rope, SIZE), size=SIZE, interleaved=True)
    found = apply_rope(q, cos, sin, rotation_partners(rotated_size(rope, SIZE), SIZE, interleaved=True))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert torch.equal(found[..., SIZE // 2 :], q[..., SIZE // 2 :])


def test_layer_types_have_their_own() -> None:
    config = transformers.Gemma3TextConfig(hidden_size=4 * SIZE, head_dim=SIZE, num_hidden_layers=6)
    theirs = Gemma3RotaryEmbedding(config)
    kinds = layer_ropes(config.to_dict())
    assert set(kinds) == {"full_attention", "sliding_attention"}
    for kind, values in kinds.items():
        rope = parse_rope({"rope_parameters": values}, 1.0)
        assert torch.equal(inverse_frequencies(rope, SIZE), getattr(theirs, f"{kind}_inv_freq"))
    with pytest.raises(UnsupportedError, match="one flat table"):
        parse_rope(config.to_dict(), 1.0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"factor": 0}, "factor"),
        ({"factor": None}, "factor"),
        ({"original_max_position_embeddings": -1}, "original_positions"),
        ({"beta_fast": "fast"}, "beta_fast"),
        ({"rope_type": "longrope", "short_factor": [1.0]}, "long_factor"),
        ({"rope_type": "longrope", "short_factor": [0.0], "long_factor": [1.0]}, "short_factor"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(DataError, match=word):
        parse_rope({"rope_parameters": {**YARN, **change}}, 1.0)
