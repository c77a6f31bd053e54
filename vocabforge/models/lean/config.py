"""Sizes and switches of a lean decoder, read from a Hugging Face ``config.json``.

``FAMILIES`` has one row per decoder family; a new family that differs only in these traits needs just a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from ...core.errors import DataError, UnsupportedError
from ...core.files import read_json
from ...core.registry import ExtensionTable
from ..rope import RopeSettings, layer_ropes, parse_rope
from ..target.interface import TargetConfig
from ..target.logits import LogitTransform
from ..target.text_config import text_config

Switch = Literal["never", "always", "config"]


# Checkpoint names of the norms before and after attention, then before and after the MLP.
Norms = tuple[str | None, str | None, str | None, str | None]
BEFORE: Norms = ("input_layernorm", None, "post_attention_layernorm", None)
AFTER: Norms = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")


@dataclass(frozen=True)
class ExpertTraits:
    """A mixture of experts instead of an MLP: a token uses the experts with its highest router logits.

    Attributes:
        router: name of the router module in Transformers.
        stored_router: name of the router in the checkpoint, if different.
        stored: prefix of the experts in the checkpoint, and the names of the gate, up and down projections;
            None if all experts are in one tensor, as in a loaded Transformers model.
        size: configuration key of the experts' width.
        normed: whether the weights of a token's experts sum to 1; ``config`` reads ``norm_topk_prob``.
        clamped: gpt-oss layout: biases, interleaved gate and up, (inputs, outputs) order of the weights, and
            ``(up + 1) * gate * sigmoid(a * gate)`` with both clamped.
    """

    router: str = "mlp.gate"
    stored_router: str | None = None
    stored: tuple[str, str, str, str] | None = ("mlp.experts", "gate_proj", "up_proj", "down_proj")
    size: str = "intermediate_size"
    normed: Switch = "always"
    clamped: bool = False


@dataclass(frozen=True)
class FamilyTraits:
    """Differences between a decoder family and plain Llama, and the family's configuration defaults.

    Attributes:
        qkv_bias, o_bias, mlp_bias: whether the projections have biases; ``config`` reads ``attention_bias``
            or ``mlp_bias``.
        norms: names of the RMSNorms of a block's input and of its output before the residual sum, or None.
        one_plus: norms multiply by 1 + weight (Gemma).
        qk_norm: RMSNorm of queries and keys, over each head or over all heads together.
        sub_norms: RMSNorm before the output projections of attention and MLP (BitNet).
        windows: layers with ``sliding_window``; ``switch`` reads ``layer_types`` if ``use_sliding_window``.
        rope: ``neighbours`` rotates adjacent pairs, in part of each head if configured (GLM-4); ``some``
            skips layers whose ``no_rope_layers`` entry is 0 (SmolLM3); ``types`` has settings per layer type.
        sinks: each head has an extra attention logit without a value (gpt-oss).
        scales: ``gemma``: embeddings times sqrt(H), scores times ``query_pre_attn_scalar ** -0.5``;
            ``granite``: the configured multipliers. Both also apply the configured transform of the logits.
        fused_gate_up: the checkpoint stores gate and up in one tensor.
        experts: traits of the experts; None for an MLP.
        completed: Transformers' configuration class fills in missing keys and converts old spellings.
        num_kv_heads, head_dim, sliding_window: defaults for missing configuration keys.
    """

    model_type: str
    qkv_bias: Switch = "config"
    o_bias: Switch = "config"
    mlp_bias: Switch = "never"
    norms: Norms = BEFORE
    one_plus: bool = False
    qk_norm: Literal["head", "all"] | None = None
    sub_norms: bool = False
    windows: Literal["none", "all", "types", "switch"] = "none"
    rope: Literal["halves", "neighbours", "some", "types"] = "halves"
    sinks: bool = False
    scales: Literal["none", "gemma", "granite"] = "none"
    fused_gate_up: bool = False
    experts: ExpertTraits | None = None
    completed: bool = False
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope_theta: float = 10_000.0
    num_kv_heads: int | None = None
    head_dim: int | None = None
    sliding_window: int | None = None


FAMILIES = ExtensionTable(
    "vocabforge.targets",
    {
        "LlamaForCausalLM": FamilyTraits("llama", mlp_bias="config"),
        "MistralForCausalLM": FamilyTraits(
            "mistral", qkv_bias="never", o_bias="never", windows="all", num_kv_heads=8, sliding_window=4096
        ),
        "Qwen2ForCausalLM": FamilyTraits(
            "qwen2", qkv_bias="always", o_bias="never", windows="switch", num_kv_heads=32, sliding_window=4096
        ),
        "Qwen3ForCausalLM": FamilyTraits(
            "qwen3", qk_norm="head", windows="switch", num_kv_heads=32, head_dim=128, sliding_window=4096
        ),
        "Qwen3MoeForCausalLM": FamilyTraits(
            "qwen3_moe",
            qk_norm="head",
            windows="all",
            experts=ExpertTraits(size="moe_intermediate_size", normed="config"),
            completed=True,
        ),
        "MixtralForCausalLM": FamilyTraits(
            "mixtral",
            qkv_bias="never",
            o_bias="never",
            windows="all",
            experts=ExpertTraits(
                stored_router="block_sparse_moe.gate", stored=("block_sparse_moe.experts", "w1", "w3", "w2")
            ),
            completed=True,
        ),
        "GptOssForCausalLM": FamilyTraits(
            "gpt_oss",
            windows="types",
            sinks=True,
            experts=ExpertTraits(router="mlp.router", stored=None, clamped=True),
            completed=True,
        ),
        "Gemma3ForCausalLM": FamilyTraits(
            "gemma3_text",
            norms=(
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            ),
            one_plus=True,
            qk_norm="head",
            windows="types",
            rope="types",
            scales="gemma",
            completed=True,
        ),
        "Glm4ForCausalLM": FamilyTraits(
            "glm4",
            o_bias="never",
            norms=(
                "input_layernorm",
                "post_self_attn_layernorm",
                "post_attention_layernorm",
                "post_mlp_layernorm",
            ),
            rope="neighbours",
            fused_gate_up=True,
            completed=True,
        ),
        "SmolLM3ForCausalLM": FamilyTraits(
            "smollm3", mlp_bias="config", windows="switch", rope="some", completed=True
        ),
        "GraniteForCausalLM": FamilyTraits("granite", mlp_bias="config", scales="granite", completed=True),
        "Olmo2ForCausalLM": FamilyTraits("olmo2", norms=AFTER, qk_norm="all", rms_norm_eps=1e-5),
        "Olmo3ForCausalLM": FamilyTraits(
            "olmo3", norms=AFTER, qk_norm="all", windows="types", rope="types", completed=True
        ),
        "BitNetForCausalLM": FamilyTraits(
            "bitnet", sub_norms=True, rms_norm_eps=1e-5, hidden_act="relu2", rope_theta=500_000.0
        ),
    },
)


def find_family(config: Mapping[str, Any], source: object = None) -> tuple[str, FamilyTraits]:
    """Return the architecture name and traits for a Hugging Face configuration.

    ``architectures`` determines the family, or ``model_type`` if it is missing.

    Raises:
        DataError: the architecture is missing or not in the table.
    """
    named = config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise DataError(
            "the configuration's architectures are not a list of names",
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
    raise UnsupportedError(
        "the lean decoder does not support this model architecture",
        got=", ".join(named) or f"no architectures, model_type {model_type!r}",
        expected=", ".join(FAMILIES),
        source=source,
    )


ACTIVATIONS = {"silu": "silu", "swish": "silu", "relu2": "relu2", "gelu_pytorch_tanh": "gelu_tanh"}
_MOST, _MOST_LAYERS = 1 << 28, 1 << 12  # larger sizes overflow, or building the model takes forever


@dataclass(frozen=True, kw_only=True)
class LeanConfig(TargetConfig):
    """Configuration of a ``LeanModel``.

    A checkpoint that stores an LM head keeps it regardless of ``tie_word_embeddings``.

    Attributes:
        sliding_layers: one flag per layer; these layers attend to the last ``sliding_window`` positions, the
            token itself included.
        near_rope: RoPE of the sliding layers, if different.
        rotated_layers: one flag per layer; False for layers without rotary positions.
        attention_scale: scale of the scores; None for head_dim ** -0.5.
        embedding_scale, residual_scale: scales of the embeddings and of each block's output.
        expert_layers: layers with ``num_experts`` experts of width ``expert_size`` instead of an MLP; a token
            uses ``experts_per_token`` of them.
        normed_experts: expert weights are a softmax over the chosen experts only, not over all.
        swiglu_alpha, swiglu_limit: settings of gpt-oss's experts.
    """

    family: FamilyTraits
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    rope: RopeSettings
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    sliding_layers: tuple[bool, ...]
    near_rope: RopeSettings | None
    rotated_layers: tuple[bool, ...]
    attention_scale: float | None
    embedding_scale: float
    residual_scale: float
    transform: LogitTransform
    expert_layers: tuple[bool, ...]
    num_experts: int
    experts_per_token: int
    expert_size: int
    normed_experts: bool
    swiglu_alpha: float
    swiglu_limit: float

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any] | Path) -> LeanConfig:
        """Read a configuration from parsed JSON, a ``config.json`` file or the folder that contains it.

        Raises:
            DataError: an unsupported architecture or feature, or a missing or invalid size.
        """
        source: Path | None = None
        if isinstance(config, Path):
            source = config / "config.json" if config.is_dir() else config
            config = read_json(source, "model configuration", finite=False)
        if not isinstance(config, Mapping):
            raise DataError(
                "the model configuration is not a JSON object",
                got=type(config).__name__,
                expected="an object",
                source=source,
            )
        name, family = find_family(config, source)
        _refuse_unsupported(config, family, source)
        values: Mapping[str, Any] = config
        if family.completed:
            known = text_config({**config, "model_type": family.model_type}, source or "config.json")
            values = known.to_dict()
        return _build(_ConfigReader(values, source), name, family)


@dataclass(frozen=True)
class _ConfigReader:
    """Typed look-ups in a configuration; errors name the key and the file."""

    values: Mapping[str, Any]
    source: Path | None

    def size(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.error(f"the model configuration's {key} is not a positive integer", repr(value))
        most = _MOST_LAYERS if key == "num_hidden_layers" else _MOST
        if value > most:
            raise self.error(
                f"the model configuration's {key} is larger than any model's", value, f"at most {most:,}"
            )
        return value

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise self.error(f"the model configuration's {key} is not a positive number", repr(value))
        return float(value)

    def error(self, message: str, got: object, expected: object = None) -> DataError:
        return DataError(
            message, got=got, expected=expected, source=self.source, remedy="correct config.json"
        )


def _refuse_unsupported(config: Mapping[str, Any], family: FamilyTraits, source: Path | None) -> None:
    """Reject configured features that the lean decoder would silently ignore."""
    quantised = config.get("quantization_config")
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        raise UnsupportedError(
            "the lean decoder reads plain floating-point checkpoints only",
            got=f"quantization_config with quant_method {method!r}",
            expected="no quantization_config",
            source=source,
            remedy="dequantise the checkpoint (for BitNet: unpack the weights to floating point), save it, "
            "and remove quantization_config",
        )
    refused = ["attn_logit_softcapping", "use_bidirectional_attention"]
    if family.scales != "gemma":
        refused.append("final_logit_softcapping")
    for key in refused:
        if config.get(key):
            raise UnsupportedError(
                f"the lean decoder does not compute {key}",
                got=f"{key} {config[key]}",
                expected=f"{key} null or absent",
                source=source,
            )


def _build(read: _ConfigReader, name: str, family: FamilyTraits) -> LeanConfig:
    values = read.values
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    explicit_null = "num_key_value_heads" in values and values["num_key_value_heads"] is None
    kv_heads = read.size("num_key_value_heads", heads if explicit_null else family.num_kv_heads or heads)
    if heads % kv_heads:
        raise read.error(
            "the query heads cannot be shared out evenly among the key/value heads",
            f"num_attention_heads {heads}, num_key_value_heads {kv_heads}",
        )
    head_dim = read.size("head_dim", family.head_dim or hidden // heads)
    if head_dim % 2:
        raise read.error("the rotary embedding needs an even head_dim", head_dim)
    layers = read.size("num_hidden_layers")
    activation = values.get("hidden_act") or values.get("hidden_activation") or family.hidden_act
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UnsupportedError(
            "the lean decoder does not compute this activation",
            got=f"hidden_act {activation}",
            expected=", ".join(ACTIVATIONS),
            source=read.source,
        )
    eps = values.get("rms_norm_eps", family.rms_norm_eps)
    if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not 0 <= eps < 1:
        raise read.error("the model configuration's rms_norm_eps is not a number", repr(eps))
    window, sliding = _windows(read, family, layers)
    return LeanConfig(
        architecture=name,
        family=family,
        vocab_size=read.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_act=ACTIVATIONS[activation],
        rms_norm_eps=float(eps),
        max_positions=read.size("max_position_embeddings", 2048),
        rope=_rope(read, family, "full_attention"),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=_switch(family.qkv_bias, values.get("attention_bias")),
        o_bias=_switch(family.o_bias, values.get("attention_bias")),
        mlp_bias=_switch(family.mlp_bias, values.get("mlp_bias")),
        sliding_window=window,
        sliding_layers=sliding,
        near_rope=_rope(read, family, "sliding_attention") if family.rope == "types" else None,
        rotated_layers=_rotated(read, family, layers),
        **_scales(read, family, hidden),
        **_experts(read, family, layers),
    )


def _rotated(read: _ConfigReader, family: FamilyTraits, layers: int) -> tuple[bool, ...]:
    rotated = read.values.get("no_rope_layers") if family.rope == "some" else None
    rotated = (True,) * layers if rotated is None else tuple(bool(flag) for flag in rotated)
    if len(rotated) != layers:
        raise read.error(
            "the model configuration's no_rope_layers does not have one entry per layer", len(rotated), layers
        )
    return rotated


def _scales(read: _ConfigReader, family: FamilyTraits, hidden: int) -> dict[str, Any]:
    made = {
        "attention_scale": None,
        "embedding_scale": 1.0,
        "residual_scale": 1.0,
        "transform": LogitTransform(),
    }
    if family.scales == "none":
        return made
    made["transform"] = LogitTransform.of(SimpleNamespace(**read.values))
    if family.scales == "gemma":
        return made | {
            "attention_scale": read.number("query_pre_attn_scalar") ** -0.5,
            "embedding_scale": hidden**0.5,
        }
    names = ("attention", "embedding", "residual")
    return made | {f"{name}_scale": read.number(f"{name}_multiplier") for name in names}


def _experts(read: _ConfigReader, family: FamilyTraits, layers: int) -> dict[str, Any]:
    values = read.values
    if family.experts is None:
        names = ("num_experts", "experts_per_token", "expert_size", "swiglu_alpha", "swiglu_limit")
        return {"expert_layers": (False,) * layers, "normed_experts": False, **dict.fromkeys(names, 0)}
    count = read.size("num_local_experts" if "num_local_experts" in values else "num_experts")
    every, without = values.get("decoder_sparse_step", 1), values.get("mlp_only_layers") or ()
    return {
        "expert_layers": tuple(i not in without and (i + 1) % every == 0 for i in range(layers)),
        "num_experts": count,
        "experts_per_token": min(read.size("num_experts_per_tok"), count),
        "expert_size": read.size(family.experts.size),
        "normed_experts": _switch(family.experts.normed, values.get("norm_topk_prob")),
        "swiglu_alpha": values.get("swiglu_alpha", 1.702),
        "swiglu_limit": values.get("swiglu_limit", 7.0),
    }


def _switch(switch: Switch, configured: object) -> bool:
    return switch == "always" or (switch == "config" and bool(configured))


def _rope(read: _ConfigReader, family: FamilyTraits, layer_type: str) -> RopeSettings:
    values: Mapping[str, Any] = read.values
    if family.rope == "types" and layer_ropes(values):
        values = {**values, "rope_parameters": layer_ropes(values).get(layer_type, {})}
    rope = parse_rope(values, family.rope_theta, read.source)
    problem = None
    if rope.kind == "longrope":  # its frequencies depend on the longest sequence of the pass
        problem = "rope type longrope"
    if rope.partial is not None and family.rope != "neighbours":
        problem = f"partial_rotary_factor {rope.partial}"
    if problem is not None:
        raise UnsupportedError(
            "the lean decoder does not support this RoPE for this family", got=problem, source=read.source
        )
    return rope


def _windows(read: _ConfigReader, family: FamilyTraits, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    values = read.values
    window = values.get("sliding_window", family.sliding_window)
    by_layer = family.windows in ("types", "switch")
    off = family.windows == "switch" and not values.get("use_sliding_window")
    if family.windows == "none" or window is None or off:
        window = None
    elif isinstance(window, bool) or not isinstance(window, int) or window <= 0:
        raise read.error("the model configuration's sliding_window is not a positive integer", repr(window))
    if not by_layer:
        return window, (window is not None,) * layers
    types = values.get("layer_types")
    if types is None:
        first = values.get("max_window_layers", 28)
        types = ["sliding_attention" if window and i >= first else "full_attention" for i in range(layers)]
    known = {"full_attention"} | ({"sliding_attention"} if window else set())
    if len(types) != layers or not known.issuperset(types):
        raise read.error(
            "the model configuration's layer_types do not fit its other settings",
            f"{len(types)} layer_types of {sorted(set(types))}",
            f"{layers} of {sorted(known)} (sliding_attention needs use_sliding_window and sliding_window)",
        )
    sliding = tuple(kind == "sliding_attention" for kind in types)
    return (window if any(sliding) else None), sliding
