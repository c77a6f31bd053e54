"""The architectures that the lean decoder computes, as one literal table of traits.

Adding a decoder family that differs only in the traits below is adding a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..core.errors import DataError

Switch = Literal["never", "always", "config"]


@dataclass(frozen=True)
class FamilyTraits:
    """What distinguishes one decoder family from plain Llama, and its configuration defaults.

    ``*_bias`` say whether a projection has a bias: ``config`` reads ``attention_bias`` or ``mlp_bias``.
    ``norm_placement``: ``pre`` normalises a block's input, ``post`` its output (before the residual sum).
    ``qk_norm``: RMSNorm of queries and keys, over each head or over all heads together.
    ``sub_norms``: RMSNorm before the output projections of attention and MLP (BitNet).
    ``windows``: which layers use ``sliding_window``; ``layer_types`` needs ``use_sliding_window``.
    ``num_kv_heads``, ``head_dim``, ``sliding_window``: what an absent configuration key means
    (None: as many as query heads; hidden_size / heads; no window).
    """

    model_type: str
    qkv_bias: Switch = "config"
    o_bias: Switch = "config"
    mlp_bias: Switch = "never"
    norm_placement: Literal["pre", "post"] = "pre"
    qk_norm: Literal["head", "all"] | None = None
    sub_norms: bool = False
    windows: Literal["none", "all", "layer_types"] = "none"
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope_theta: float = 10_000.0
    num_kv_heads: int | None = None
    head_dim: int | None = None
    sliding_window: int | None = None


FAMILIES: dict[str, FamilyTraits] = {
    "LlamaForCausalLM": FamilyTraits("llama", mlp_bias="config"),
    "MistralForCausalLM": FamilyTraits(
        "mistral", qkv_bias="never", o_bias="never", windows="all", num_kv_heads=8, sliding_window=4096
    ),
    "Qwen2ForCausalLM": FamilyTraits(
        "qwen2",
        qkv_bias="always",
        o_bias="never",
        windows="layer_types",
        num_kv_heads=32,
        sliding_window=4096,
    ),
    "Qwen3ForCausalLM": FamilyTraits(
        "qwen3", qk_norm="head", windows="layer_types", num_kv_heads=32, head_dim=128, sliding_window=4096
    ),
    "Olmo2ForCausalLM": FamilyTraits("olmo2", norm_placement="post", qk_norm="all", rms_norm_eps=1e-5),
    "BitNetForCausalLM": FamilyTraits(
        "bitnet", sub_norms=True, rms_norm_eps=1e-5, hidden_act="relu2", rope_theta=500_000.0
    ),
}


def find_family(config: Mapping[str, Any], source: object = None) -> tuple[str, FamilyTraits]:
    """The architecture name and traits that a Hugging Face configuration asks for.

    ``architectures`` decides; where it is absent, ``model_type`` does.

    Raises:
        DataError: the architecture is not in the table, or none is named.
    """
    named = config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise DataError(
            "the configuration's architectures are no list of names",
            got=repr(named)[:80],
            source=source,
            remedy="correct config.json",
        )
    for name in named:
        if name in FAMILIES:
            return name, FAMILIES[name]
    model_type = config.get("model_type")
    if not named:
        for name, traits in FAMILIES.items():
            if traits.model_type == model_type:
                return name, traits
    raise DataError(
        "the lean decoder does not support this model architecture",
        got=", ".join(named) or f"no architectures, model_type {model_type!r}",
        expected=", ".join(FAMILIES),
        source=source,
        remedy="choose a target of a supported architecture",
    )
