"""Rotary position embedding: configuration in both spellings, frequencies, rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import DataError, UnsupportedError

ROPE_TYPES = ("default", "linear", "llama3")
_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor")


@dataclass(frozen=True)
class RopeSettings:
    """Base wavelength and context extension; ``original_positions`` is the context before it, in tokens (llama3)."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


def parse_rope(config: Mapping[str, Any], default_theta: float, source: object = None) -> RopeSettings:
    """Read RoPE from ``rope_theta`` + ``rope_scaling`` or from ``rope_parameters``.

    Raises:
        DataError: a rope type that is not computed, a missing or non-positive number.
    """
    nested: Any = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(nested, Mapping) or any(isinstance(value, Mapping) for value in nested.values()):
        raise UnsupportedError(
            "the configuration's RoPE settings are not one flat table",
            got=nested,
            expected="the same RoPE for every layer",
            source=source,
            remedy="choose a model with one RoPE setting",
        )
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise UnsupportedError(
            "this RoPE type is not computed here",
            got=kind,
            expected=", ".join(ROPE_TYPES),
            source=source,
            remedy="choose a model with a supported RoPE type",
        )
    partial = nested.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise UnsupportedError(
            "partial rotary embeddings are not computed here",
            got=f"partial_rotary_factor {partial}",
            expected="1.0 or absent",
            source=source,
            remedy="choose a model that rotates whole heads",
        )
    theta = nested.get("rope_theta", config.get("rope_theta", default_theta))
    values: dict[str, Any] = {"theta": default_theta if theta is None else theta}
    if kind != "default":
        wanted = _LLAMA3_KEYS if kind == "llama3" else ("factor",)
        values |= {key: nested.get(key) for key in wanted}
    if kind == "llama3":
        values["original_positions"] = (
            config.get("original_max_position_embeddings")
            or nested.get("original_max_position_embeddings")
            or config.get("max_position_embeddings")
        )
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise DataError(
                f"the configuration's RoPE setting {key} is not a positive number",
                got=repr(value),
                expected=f"a number, as rope type {kind} needs it",
                source=source,
                remedy="correct config.json",
            )
    if kind == "llama3":  # some files write 8192.0
        values["original_positions"] = int(values["original_positions"])
    return RopeSettings(kind=kind, **values)


def inverse_frequencies(rope: RopeSettings, head_dim: int) -> Tensor:
    """Radians per position of each rotated pair, fp32 (head_dim / 2,).

    Source: RoFormer (Su et al., 2021), equation 15; ``linear``: position interpolation (Chen et al., 2023);
    ``llama3``: long wavelengths divided by ``factor``, medium ones interpolated (Llama 3.1 model card).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "default":
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    longest = rope.original_positions / rope.low_freq_factor
    shortest = rope.original_positions / rope.high_freq_factor
    blend = (rope.original_positions / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    stretched = torch.where(wavelengths > longest, frequencies / rope.factor, blended)
    return torch.where(wavelengths < shortest, frequencies, stretched)


def rope_at(positions: Tensor, inverse: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines (..., D) at integer positions (...,); angles are always fp32.

    Args:
        inverse: (D / 2,) from ``inverse_frequencies``.
        dtype: of the result. The minus of rotate-half is in the first half of the sines.
    """
    angles = positions.unsqueeze(-1) * inverse  # (..., D / 2)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def rope_tables(settings: RopeSettings, head_dim: int, max_positions: int) -> tuple[Tensor, Tensor]:
    """``rope_at`` of positions 0 .. max_positions - 1: two fp32 tensors (max_positions, D)."""
    return rope_at(torch.arange(max_positions), inverse_frequencies(settings, head_dim))


def apply_rope(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + D/2) of (..., D) queries or keys by ``rope_at``'s cosines and sines.

    Source: RoFormer (Su et al., 2021), equation 34, in the half-split order of Hugging Face checkpoints.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
