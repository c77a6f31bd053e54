"""Write and strictly read the parts of ``config.json`` that several layouts share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import DataError
from ..core.files import atomic_write_json, read_json
from ..models.rope import RopeSettings, default_attention_factor, parse_rope
from ..models.target.load import dtype_name

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PLAIN = ["LlamaForCausalLM"]  # architectures of the folders that EAGLE's authors publish
_ELSEWHERE = "run it in the server that it was made for, or train one with vocabforge train-drafter"
_MOST_POSITIONS = 1 << 24  # longer than any context
# The only supported form of a drafter's layer: key, value, description.
_COMPUTED: tuple[tuple[str, Any, str], ...] = (
    ("num_hidden_layers", 1, "one decoder layer"),
    ("hidden_act", "silu", "the SwiGLU of Llama"),
    ("attention_bias", False, "an attention without bias"),
    ("mlp_bias", False, "an MLP without bias"),
    ("bias", False, "an fc without bias"),
    ("logit_scale", 1.0, "logits as the head gives them"),
)


_WINDOWED = "sliding_attention"


def decoder_fields(sizes: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Return the decoder's fields under Hugging Face's names, RoPE and dtype in both spellings."""
    name = dtype_name(dtype)
    window = getattr(sizes, "sliding_window", None)
    limited = {"sliding_window": window, "layer_types": [_WINDOWED] * sizes.num_layers}
    return {
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": sizes.rms_norm_eps,
        "vocab_size": sizes.vocab_size,
        "max_position_embeddings": sizes.max_position_embeddings,
        "tie_word_embeddings": False,
        "torch_dtype": name,
        "dtype": name,
        **rope_spellings(sizes.rope),
        **({} if window is None else limited),
    }


def rope_spellings(rope: RopeSettings) -> dict[str, Any]:
    """Return RoPE in both spellings: ``rope_theta`` and ``rope_scaling``, and ``rope_parameters``."""
    fields = rope_fields(rope)
    return {
        "rope_theta": rope.theta,
        "rope_scaling": fields if rope.kind != "default" else None,
        "rope_parameters": {"rope_theta": rope.theta, **fields},
    }


def rope_fields(rope: RopeSettings) -> dict[str, Any]:
    """Return the RoPE type and its parameters, without the base."""
    fields: dict[str, Any] = {"rope_type": rope.kind}
    if rope.kind != "default":
        fields["factor"] = rope.factor
    if rope.kind == "llama3":
        fields |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind in ("llama3", "yarn", "longrope"):
        fields["original_max_position_embeddings"] = rope.original_positions
    if rope.attention_factor is not None:
        # Transformers reads the whole factor; vLLM and SGLang read its ratio to the default factor.
        fields["attention_factor"] = rope.attention_factor
        fields["attn_factor"] = rope.attention_factor / default_attention_factor(rope)
    optional = {key: getattr(rope, key) for key in ("beta_fast", "beta_slow", "truncate")}
    fields |= {key: setting for key, setting in optional.items() if setting is not None}
    if rope.kind == "longrope":
        fields |= {
            "short_factor": list(rope.short_factors or ()),
            "long_factor": list(rope.long_factors or ()),
        }
    return fields


def write_files(folder: Path, tensors: Mapping[str, Tensor], body: Mapping[str, Any]) -> None:
    """Write a folder's weights and ``config.json``."""
    save_file(dict(tensors), folder / WEIGHTS, metadata={"format": "pt"})
    atomic_write_json(folder / CONFIG, body)


def read_config(path: Path) -> Mapping[str, Any]:
    """Read a drafter folder's ``config.json``."""
    body = read_json(path / CONFIG, "drafter's config.json", finite=False)
    if not isinstance(body, Mapping):
        raise DataError(
            "the drafter's config.json is not a mapping",
            got=repr(body)[:80],
            source=path / CONFIG,
            remedy="fetch the drafter again, or export it again",
        )
    return body


def read_sizes(body: Mapping[str, Any], source: Path, *, several: bool = False) -> dict[str, Any]:
    """Read the fields of ``LayerSizes`` from an untrusted configuration.

    Args:
        body: the configuration.
        source: its path, for error messages.
        several: accept any number of layers, and a sliding window of all layers, and return ``num_layers`` and
            ``sliding_window``; otherwise there must be one layer with full attention.

    Raises:
        DataError: a field is missing or not a number, or the layer's form is not supported.
    """
    types = body.get("layer_types")
    windowed = several and isinstance(types, list) and types != [] and set(map(str, types)) == {_WINDOWED}
    computed = {**body, "num_hidden_layers": 1} if several else {**body}
    if windowed:
        del computed["layer_types"]
    check_computed(computed, source)
    try:
        layers = {"num_layers": _whole(body.get("num_hidden_layers") or 1)} if several else {}
        layers |= {"sliding_window": _whole(body["sliding_window"])} if windowed else {}
        heads, hidden = _whole(body["num_attention_heads"]), _whole(body["hidden_size"])
        return {
            "hidden_size": hidden,
            "intermediate_size": _whole(body["intermediate_size"]),
            "num_heads": heads,
            "num_kv_heads": _whole(body.get("num_key_value_heads") or heads),
            "head_dim": _whole(body.get("head_dim") or hidden // heads),
            "vocab_size": _whole(body["vocab_size"]),
            "max_position_embeddings": _positions(body["max_position_embeddings"]),
            "rms_norm_eps": _epsilon(body["rms_norm_eps"]),
            "rope": parse_rope(body, 10_000.0, source, _ELSEWHERE),
            **layers,
        }
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise DataError(
            "the drafter's config.json lacks a field",
            got=error,
            source=source,
            remedy="write the field as the drafter was trained, or fetch or export it again",
        ) from error


def _whole(value: Any) -> int:
    """Return an integer; raise TypeError for other values, such as strings, booleans and fractions."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _epsilon(value: Any) -> float:
    """Return the epsilon of a norm; raise ValueError if it is invalid."""
    if type(value) not in (int, float) or not 0 <= value < 1:
        raise ValueError(f"rms_norm_eps {value!r}")
    return float(value)


def _positions(value: Any) -> int:
    """Return the number of positions; raise ValueError if their tables would not fit in memory."""
    if _whole(value) > _MOST_POSITIONS:
        raise ValueError(f"max_position_embeddings {value}, above {_MOST_POSITIONS:,}")
    return int(value)


def check_computed(body: Mapping[str, Any], source: object) -> None:
    """Raise DataError if a decoder layer differs from ours; missing or null fields are accepted."""
    problems = [
        (f"{name} {body[name]!r}", words)
        for name, value, words in _COMPUTED
        if body.get(name) is not None and body[name] != value
    ]
    wide, own = body.get("target_hidden_size"), body.get("hidden_size")
    if None not in (wide, own) and wide != own:
        problems.append((f"target_hidden_size {wide}", f"the drafter's hidden_size {own}"))
    kinds = body.get("layer_types")
    if kinds is not None and (not isinstance(kinds, list) or set(map(str, kinds)) != {"full_attention"}):
        problems.append((f"layer_types {kinds!r}", "full attention"))
    if problems:
        raise not_computed(
            ", ".join(got for got, _ in problems), ", ".join(words for _, words in problems), source
        )


def not_computed(got: str, expected: str, source: object) -> DataError:
    """Return the error for a drafter of an unsupported form."""
    return DataError(
        "this drafter is not computed here",
        got=got[:300],
        expected=expected[:300],
        source=source,
        remedy=_ELSEWHERE,
    )


def flag(body: Mapping[str, Any], name: str, absent: bool, source: object) -> bool:
    """Read a boolean field of a configuration."""
    value = body.get(name)
    if value is None:
        return absent
    if not isinstance(value, bool):
        raise DataError(
            f"the drafter's {name} is neither true nor false",
            got=repr(value),
            expected="true or false",
            source=source,
        )
    return value
