"""Rotary position embeddings: configuration in both spellings, frequencies, rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.errors import DataError, UnsupportedError

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
# RoPE type -> required numbers.
ROPE_TYPES: dict[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": (),
}
_EXTENDED = ("llama3", "yarn", "longrope")  # types that need the original context length


@dataclass(frozen=True)
class RopeSettings:
    """Base wavelength and context extension; None if not applicable, or for Transformers' default.

    Attributes:
        kind: a key of ``ROPE_TYPES``.
        original_positions: context length before the extension, in tokens (llama3, yarn, longrope).
        partial: fraction of a head's dimensions that is rotated.
        attention_factor: factor of the cosines and sines (yarn, longrope).
        beta_fast, beta_slow: yarn blends between these numbers of turns in the original context (32 and 1).
        truncate: round yarn's bounds to whole dimensions (true).
        short_factors, long_factors: longrope's frequency divisors within and beyond the original context.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192
    partial: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool | None = None
    short_factors: tuple[float, ...] | None = None
    long_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check that all numbers are positive and finite.

        Raises:
            ValueError: they are not.
        """
        for value in astuple(self):
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, (int, float)) and number is not False and not 0 < number < math.inf:
                    raise ValueError(f"{number} is not a positive number")


def layer_ropes(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return layer type -> RoPE settings; empty if all layers share the same settings."""
    nested = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return {key: value for key, value in nested.items() if isinstance(value, Mapping)}


def parse_rope(
    config: Mapping[str, Any], default_theta: float, source: object = None, remedy: str | None = None
) -> RopeSettings:
    """Read RoPE from ``rope_theta`` + ``rope_scaling`` or from ``rope_parameters``.

    Args:
        remedy: remedy to name for an unsupported type; None for the default.

    Raises:
        UnsupportedError: an unsupported rope type, or several types.
        DataError: a missing or non-positive number.
    """
    unsupported: dict[str, Any] = {"source": source} | ({} if remedy is None else {"remedy": remedy})
    nested: Any = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(nested, Mapping) or layer_ropes(config):
        raise UnsupportedError(
            "the configuration's RoPE settings are not one flat table",
            got=nested,
            expected="the same RoPE for every layer",
            **unsupported,
        )
    named = nested.get("rope_type", nested.get("type", "default"))
    if not isinstance(named, str) or named not in ROPE_TYPES:
        raise UnsupportedError(
            "this RoPE type is not computed here", got=named, expected=", ".join(ROPE_TYPES), **unsupported
        )
    kind: RopeKind = named
    theta = nested.get("rope_theta", config.get("rope_theta"))
    values: dict[str, Any] = {"theta": default_theta if theta is None else theta}
    partial = nested.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        values["partial"] = partial
    values |= {key: nested.get(key) for key in ROPE_TYPES[kind]}
    if kind in _EXTENDED:
        longest = config.get("max_position_embeddings")
        values["original_positions"] = (
            config.get("original_max_position_embeddings")
            or nested.get("original_max_position_embeddings")
            or longest
        )
        if kind != "llama3" and nested.get("factor") is None and longest and values["original_positions"]:
            values["factor"] = longest / values["original_positions"]
    for key in ("attention_factor", "beta_fast", "beta_slow"):
        if kind in ("yarn", "longrope") and nested.get(key):
            values[key] = nested[key]

    def refuse(key: str, value: object, expected: str) -> DataError:
        return DataError(
            f"the configuration's RoPE setting {key} is not {expected}",
            got=repr(value)[:80],
            expected=f"{expected}, as rope type {kind} requires",
            source=source,
            remedy="correct config.json",
        )

    for key, value in values.items():
        if not _positive(value):
            raise refuse(key, value, "a positive number")
    if kind in _EXTENDED:  # some files write 8192.0
        values["original_positions"] = int(values["original_positions"])
    if kind == "yarn" and nested.get("truncate") is not None:
        values["truncate"] = bool(nested["truncate"])
    if kind == "longrope":
        values["factor"] = nested.get("factor") or values["factor"]
        for key in ("short_factor", "long_factor"):
            factors = nested.get(key)
            if not isinstance(factors, (list, tuple)) or not factors or not all(map(_positive, factors)):
                raise refuse(key, factors, "a list of positive numbers")
            values[key + "s"] = tuple(float(factor) for factor in factors)
    if "attention_factor" not in values:
        values |= _attention_factor(kind, values, nested)
    return RopeSettings(kind=kind, **values)


def _positive(value: object) -> bool:
    if isinstance(value, int) and value >= 2**63:  # too large for torch
        return False
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value < math.inf


def _attention_factor(kind: str, values: Mapping[str, Any], nested: Mapping[str, Any]) -> dict[str, float]:
    """Return DeepSeek's yarn attention factor; empty if ``default_attention_factor`` applies."""
    whole, part = nested.get("mscale"), nested.get("mscale_all_dim")
    if kind != "yarn" or not whole or not part or values["factor"] <= 1:
        return {}
    more = 0.1 * math.log(values["factor"])
    return {"attention_factor": (whole * more + 1) / (part * more + 1)}


def default_attention_factor(rope: RopeSettings) -> float:
    """Return the factor of cosines and sines for a configuration without one.

    Source: YaRN (Peng et al., 2023), equation 22; LongRoPE (Ding et al., 2024), as in Phi-3.
    """
    if rope.factor <= 1 or rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.kind == "yarn":
        return 0.1 * math.log(rope.factor) + 1.0
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_positions))


def attention_factor(rope: RopeSettings) -> float:
    """Return the factor of cosines and sines; 1 except for yarn and longrope."""
    return default_attention_factor(rope) if rope.attention_factor is None else rope.attention_factor


def rotated_size(rope: RopeSettings, head_dim: int) -> int:
    """Return how many of a head's dimensions are rotated."""
    return head_dim if rope.partial is None else int(head_dim * rope.partial)


def inverse_frequencies(rope: RopeSettings, head_dim: int, length: int = 0) -> Tensor:
    """Return the radians per position of each rotated pair, fp32 (rotated_size / 2,).

    Args:
        length: number of positions; beyond the original context, longrope uses its long factors.

    Source: RoFormer (Su et al., 2021), equation 15; ``linear``: position interpolation (Chen et al., 2023);
    ``llama3``: long wavelengths divided by ``factor``, medium ones interpolated (Llama 3.1 model card);
    ``yarn``: YaRN (Peng et al., 2023), section 3.2; ``longrope``: LongRoPE (Ding et al., 2024).
    """
    size = rotated_size(rope, head_dim)
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    wavelengths = rope.theta**exponents
    if rope.kind == "longrope":
        chosen = rope.long_factors if length > rope.original_positions else rope.short_factors
        return 1.0 / (torch.tensor(chosen) * wavelengths)
    frequencies = 1.0 / wavelengths
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "yarn":
        keep = 1 - _yarn_ramp(rope, size)
        return 1.0 / (rope.factor * wavelengths) * (1 - keep) + frequencies * keep
    return _llama3(rope, frequencies) if rope.kind == "llama3" else frequencies


def _llama3(rope: RopeSettings, frequencies: Tensor) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    longest = rope.original_positions / rope.low_freq_factor
    shortest = rope.original_positions / rope.high_freq_factor
    blend = (rope.original_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    stretched = torch.where(wavelengths > longest, frequencies / rope.factor, blended)
    return torch.where(wavelengths < shortest, frequencies, stretched)


def _yarn_ramp(rope: RopeSettings, size: int) -> Tensor:
    """Return yarn's ramp (size / 2,): 0 for pairs with many turns in the original context, 1 for few."""

    def bound(turns: float) -> float:
        return size * math.log(rope.original_positions / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = bound(rope.beta_fast or 32), bound(rope.beta_slow or 1)
    if rope.truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)


def rope_at(
    positions: Tensor,
    inverse: Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    scale: float = 1.0,
    size: int | None = None,
    interleaved: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute cosines and signed sines (..., D) at integer positions (...,), with angles in fp32.

    Args:
        inverse: (rotated_size / 2,) from ``inverse_frequencies``.
        dtype: dtype of the result. The first half of the sines includes rotate-half's minus sign.
        scale: ``attention_factor``.
        size: D, if only a part of the head is rotated.
        interleaved: pairs are adjacent dimensions; rotate with :func:`rotation_partners`.
    """
    angles = positions.unsqueeze(-1) * inverse  # (..., D / 2)
    cos, sin = angles.cos(), angles.sin()
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    if interleaved:
        cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
    else:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    if size is not None and size != cos.shape[-1]:
        rest = (0, size - cos.shape[-1])
        cos, sin = torch.nn.functional.pad(cos, rest, value=1.0), torch.nn.functional.pad(sin, rest)
    return cos.to(dtype), sin.to(dtype)


def rotation_partners(rotated: int, size: int, *, interleaved: bool = False) -> Tensor | None:
    """Return each dimension's rotation partner (D,); None for rotate-half over the whole head."""
    own = torch.arange(size)
    if interleaved:
        return own ^ 1
    return None if rotated == size else torch.cat((own[:rotated].roll(rotated // 2), own[rotated:]))


def rope_tables(settings: RopeSettings, head_dim: int, max_positions: int) -> tuple[Tensor, Tensor]:
    """Compute ``rope_at`` for positions 0 .. max_positions - 1: two fp32 tensors (max_positions, D).

    The long factors of longrope apply only to positions beyond the original context, so that one table serves
    every length.
    """
    scale, positions = attention_factor(settings), torch.arange(max_positions)
    cos, sin = rope_at(positions, inverse_frequencies(settings, head_dim), scale=scale)
    first = settings.original_positions
    if settings.kind == "longrope" and max_positions > first:
        far = rope_at(positions[first:], inverse_frequencies(settings, head_dim, max_positions), scale=scale)
        cos, sin = torch.cat((cos[:first], far[0])), torch.cat((sin[:first], far[1]))
    return cos, sin


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor, partners: Tensor | None = None) -> Tensor:
    """Rotate the pairs (i, i + D/2) of queries or keys (..., D) with the cosines and sines of ``rope_at``.

    Args:
        partners: (D,) from :func:`rotation_partners`, for other pairs.

    Source: RoFormer (Su et al., 2021), equation 34, in the half-split order of Hugging Face checkpoints.
    """
    other = x.roll(x.shape[-1] // 2, -1) if partners is None else x[..., partners]
    return torch.addcmul(x * cos, other, signed_sin)
