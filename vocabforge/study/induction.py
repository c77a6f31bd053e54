"""An induction circuit, built into a small Llama before it learns: attention that copies from the prompt.

Most of what is rare in a large model's answer (names, numbers, words of other languages) stands in its prompt. Large
models take it from there with two heads (Elhage et al. 2021; Olsson et al. 2022): one of the first layer writes into
each position which token stood before it, one of the second looks for positions whose predecessor is the present token
and raises the token that stands there. They form after billions of tokens, far more than a small target ever sees. So
they are built here, and their weights are kept as they are: embeddings, MLPs and the layers above learn to use them.

With embeddings of which every coordinate has the deviation s, but the first, which is ``CONSTANT * s`` for every token:

* layer 0: queries and keys come from the constant alone. A key is turned by one position more than a query, so that
  rotary attention is highest one position back. Value and output matrices carry r coordinates of the token there, P e,
  to other directions U.
* layer 1: queries are P e of the present token, keys what was written in the directions U. Both use rotary pairs that
  hardly turn within ``reach`` positions. Value and output matrices raise a part of the token found.

The constant makes up most of the norm, so that RMSNorm divides by nearly the same number when the embeddings grow; the
final norm drops it and gives the scale back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import UsageError

CONSTANT = 32.0  # of the embeddings' deviation
_BACK = 12.0  # by how much the score one position back is above those beside it
_MATCH = 30.0  # score of a position whose predecessor is the present token; others have it at random, near 0
_WRITTEN, _RAISED = 2.0, 6.0  # of the embeddings' deviation
_OTHERS = 0.1  # of the output matrices of the layers above
_FAST = 0.02  # radians a position: pairs that tell neighbours apart
_FEWEST = 4  # coordinates to know a token by


@dataclass(frozen=True)
class _Sizes:
    """H, D, key heads, query heads a key head, angles per position (D / 2,), deviation, divisor of the first norms."""

    hidden: int
    head: int
    groups: int
    shared: int
    angles: Tensor
    std: float
    norm: float

    @classmethod
    def of(cls, config: Any) -> _Sizes:
        hidden, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        half = hidden // heads // 2
        angles = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
        norm = math.sqrt((CONSTANT**2 + hidden - 1) / hidden)
        return cls(hidden, 2 * half, groups, heads // groups, angles, config.initializer_range, norm)

    def by_head(self, projection: Any) -> Tensor:
        """(key heads, query heads of it, D, H) of a query matrix, (key heads, 1, D, H) of a key or value matrix."""
        weight: Tensor = projection.weight.data
        return weight.view(self.groups, -1, self.head, self.hidden)

    def outputs(self, projection: Any) -> Tensor:
        """(H, key heads, query heads of it, D)."""
        weight: Tensor = projection.weight.data
        return weight.view(self.hidden, self.groups, self.shared, self.head)


@torch.no_grad()
def build_induction(model: Any, reach: int) -> None:
    """Build the circuit into a fresh Llama with tied embeddings, on the CPU, and freeze its eight matrices.

    Args:
        reach: positions back that are looked up.

    Raises:
        UsageError: fewer than three layers, or too few slow rotary pairs or coordinates.
    """
    sizes = _Sizes.of(model.config)
    slow = (sizes.angles < 1 / reach).nonzero()[:, 0]
    width = min(2 * len(slow), (sizes.hidden - 1) // (2 * sizes.groups))
    if model.config.num_hidden_layers < 3 or width < _FEWEST:
        raise UsageError(
            "the model is too small for an induction circuit",
            got=f"{model.config.num_hidden_layers} layers, hidden size {sizes.hidden}, {sizes.groups} key heads; "
            f"{len(slow)} rotary pairs turn by less than a radian within {reach} positions",
            expected=f"three layers, and {_FEWEST} coordinates a key head to know a token by",
            remedy="set rope_theta: 1.0e6, a larger hidden_size, or induction: false",
        )
    embedding, final = model.model.embed_tokens.weight, model.model.norm.weight
    embedding[:, 0] = CONSTANT * sizes.std
    final.fill_(sizes.norm)
    final[0] = 0.0
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    names = torch.zeros(2 * sizes.groups, width, sizes.hidden)  # orthonormal rows: P of each key head, then U
    names[..., 1:] = _directions(2 * sizes.groups * width, sizes.hidden - 1).view(*names.shape[:2], -1)
    known, written = names[: sizes.groups], names[sizes.groups :]
    _look_back(first, sizes)
    _write(first, sizes, known, written)
    _look_up(second, sizes, known, written, torch.cat([slow, slow + sizes.head // 2])[:width])
    _raise(second, sizes)
    for attention in (first, second):
        attention.requires_grad_(False)
    for layer in model.model.layers[2:]:
        layer.self_attn.o_proj.weight.mul_(_OTHERS)


def _directions(count: int, size: int) -> Tensor:
    """(count, size) orthonormal rows, the same for every seed: what tells tokens apart are their embeddings."""
    square = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    return torch.linalg.qr(square)[0][:count]


def _look_back(attention: Any, sizes: _Sizes) -> None:
    """Scores by position: highest at the one before."""
    fast = (sizes.angles > _FAST).float()
    apart = float((fast * (1 - sizes.angles.cos())).sum())
    size = math.sqrt(_BACK * math.sqrt(sizes.head) / apart) * fast / (CONSTANT / sizes.norm)
    queries, keys = sizes.by_head(attention.q_proj).zero_(), sizes.by_head(attention.k_proj).zero_()
    queries[..., 0] = torch.cat([size, torch.zeros_like(size)])
    keys[..., 0] = torch.cat([size * sizes.angles.cos(), size * sizes.angles.sin()])


def _write(attention: Any, sizes: _Sizes, known: Tensor, written: Tensor) -> None:
    """What is known of the token one looks at, (key heads, r, H), to the directions ``written``."""
    width = known.shape[1]
    values, outputs = sizes.by_head(attention.v_proj).zero_(), sizes.outputs(attention.o_proj).zero_()
    values[:, 0, :width] = known * sizes.norm
    outputs[..., :width] = _WRITTEN * sizes.std / sizes.shared * written.permute(2, 0, 1)[:, :, None]


def _look_up(attention: Any, sizes: _Sizes, known: Tensor, written: Tensor, places: Tensor) -> None:
    """Scores by token: highest where the token before is the present one."""
    size = sizes.norm * math.sqrt(_MATCH * math.sqrt(sizes.head) / len(places))
    queries, keys = sizes.by_head(attention.q_proj).zero_(), sizes.by_head(attention.k_proj).zero_()
    queries[:, :, places] = size * known[:, None]
    keys[:, :, places] = size / _WRITTEN * written[:, None]


def _raise(attention: Any, sizes: _Sizes) -> None:
    """The part of the token found that D coordinates of each key head hold."""
    count = min(sizes.groups * sizes.head, sizes.hidden - 1)
    parts = torch.zeros(sizes.groups * sizes.head, sizes.hidden)
    parts[:count, 1:] = _directions(sizes.hidden - 1, sizes.hidden - 1)[-count:]
    parts = parts.view(sizes.groups, sizes.head, sizes.hidden)
    sizes.by_head(attention.v_proj).copy_(sizes.norm * parts[:, None])
    sizes.outputs(attention.o_proj).copy_(
        _RAISED * sizes.std / sizes.shared * parts.permute(2, 0, 1)[:, :, None]
    )
