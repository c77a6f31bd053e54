"""Sizes and switches of a lean decoder, read from a Hugging Face ``config.json``.

A decoder family that differs only in the traits of ``FAMILIES`` is one row there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...core.errors import DataError, UnsupportedError
from ...core.files import read_json
from ..rope import RopeSettings, parse_rope

Switch = Literal["never", "always", "config"]


@dataclass(frozen=True)
class FamilyTraits:
    """What distinguishes one decoder family from plain Llama, and its configuration defaults.

    ``*_bias``: whether a projection has a bias; ``config`` reads ``attention_bias`` or ``mlp_bias``.
    ``norm_placement``: ``pre`` normalises a block's input, ``post`` its output (before the residual sum).
    ``qk_norm``: RMSNorm of queries and keys, over each head or over all heads together.
    ``sub_norms``: RMSNorm before the output projections of attention and MLP (BitNet).
    ``windows``: which layers use ``sliding_window``; ``layer_types`` needs ``use_sliding_window``.
    ``num_kv_heads``, ``head_dim``, ``sliding_window``: what an absent configuration key means.
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
    raise UnsupportedError(
        "the lean decoder does not support this model architecture",
        got=", ".join(named) or f"no architectures, model_type {model_type!r}",
        expected=", ".join(FAMILIES),
        source=source,
    )


ACTIVATIONS = {"silu": "silu", "swish": "silu", "relu2": "relu2"}
_MOST, _MOST_LAYERS = 1 << 28, 1 << 12  # beyond them sizes overflow, or making the model never ends
_SOFTCAPS = ("final_logit_softcapping", "attn_logit_softcapping")


@dataclass(frozen=True)
class LeanConfig:
    """Everything ``LeanModel`` needs to know.

    ``sliding_layers`` has one entry a layer; those layers see the last ``sliding_window`` positions, the token itself
    included. A checkpoint that carries its own LM head keeps it whatever ``tie_word_embeddings`` says.
    """

    architecture: str
    family: FamilyTraits
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    max_positions: int
    rope: RopeSettings
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    sliding_layers: tuple[bool, ...]
    chunk: ClassVar[int | None] = None  # no family of the lean decoder attends in chunks
    recurrent: ClassVar[bool] = False

    @classmethod
    def from_hf_config(cls, config: Mapping[str, Any] | Path) -> LeanConfig:
        """Read a configuration: the parsed JSON, ``config.json`` itself, or the folder that holds it.

        Raises:
            DataError: unsupported architecture or feature, a missing or impossible size.
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
        _refuse_unsupported(config, source)
        return _build(_ConfigReader(config, source), name, family)


@dataclass(frozen=True)
class _ConfigReader:
    """Typed look-ups in a configuration, each failure naming the key and the file."""

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

    def error(self, message: str, got: object, expected: object = None) -> DataError:
        return DataError(
            message, got=got, expected=expected, source=self.source, remedy="correct config.json"
        )


def _refuse_unsupported(config: Mapping[str, Any], source: Path | None) -> None:
    """Fail on what a configuration asks for and the lean decoder would leave out in silence."""
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
    for key in _SOFTCAPS:
        if config.get(key) is not None:
            raise UnsupportedError(
                "the lean decoder does not compute logit soft-capping",
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
    activation = values.get("hidden_act") or family.hidden_act
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
        rope=_rope(read, family),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
        qkv_bias=_switch(family.qkv_bias, values.get("attention_bias")),
        o_bias=_switch(family.o_bias, values.get("attention_bias")),
        mlp_bias=_switch(family.mlp_bias, values.get("mlp_bias")),
        sliding_window=window,
        sliding_layers=sliding,
    )


def _switch(switch: Switch, configured: object) -> bool:
    return switch == "always" or (switch == "config" and bool(configured))


def _rope(read: _ConfigReader, family: FamilyTraits) -> RopeSettings:
    rope = parse_rope(read.values, family.rope_theta, read.source)
    if rope.kind not in ("default", "linear", "llama3") or rope.partial is not None:
        raise UnsupportedError(
            "the lean decoder does not compute this RoPE",
            got=f"rope type {rope.kind}, partial_rotary_factor {rope.partial or 1.0}",
            expected="default, linear or llama3 over whole heads",
            source=read.source,
        )
    return rope


def _windows(read: _ConfigReader, family: FamilyTraits, layers: int) -> tuple[int | None, tuple[bool, ...]]:
    values = read.values
    window = values.get("sliding_window", family.sliding_window)
    by_layer = family.windows == "layer_types"
    if family.windows == "none" or window is None or (by_layer and not values.get("use_sliding_window")):
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
