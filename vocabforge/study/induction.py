"""An induction circuit, built into a small Llama before it learns: attention that copies from the prompt.

Most of what is rare in a large model's answer stands in its prompt. Large models take it from there with two heads
(Elhage et al. 2021; Olsson et al. 2022), which form after billions of tokens: far more than a small target ever sees.
So they are built here and frozen; the embeddings, MLPs and layers above learn to use them.

The first coordinate of every embedding is a constant, ``CONSTANT`` times the deviation s of the others. It makes up
most of the norm, so that RMSNorm divides by nearly the same number when the embeddings grow.

* Layer 0 attends one position back: queries and keys come from the constant alone, and a key is turned by one position
  more than a query. Values and outputs carry r coordinates of the token there, P e, to other directions U.
* Layer 1 looks up the present token: queries are P e, keys what was written in the directions U, in rotary pairs that
  hardly turn within ``reach`` positions. Values and outputs raise a part of the token found.
"""

from __future__ import annotations

import math
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


@torch.no_grad()
def build_induction(model: Any, reach: int) -> None:
    """Build the circuit into a fresh Llama with tied embeddings, on the CPU, and freeze its eight matrices.

    It looks ``reach`` positions back.

    Raises:
        UsageError: fewer than three layers, or too few slow rotary pairs or coordinates.
    """
    config = model.config
    hidden, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    half, shared, std = hidden // heads // 2, heads // groups, config.initializer_range
    head = 2 * half
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)  # radians a position
    slow = (angles < 1 / reach).nonzero()[:, 0]
    width = min(2 * len(slow), (hidden - 1) // (2 * groups))  # r
    if config.num_hidden_layers < 3 or width < _FEWEST:
        raise UsageError(
            "the model is too small for an induction circuit",
            got=f"{config.num_hidden_layers} layers, hidden size {hidden}, {groups} key heads; {len(slow)} rotary "
            f"pairs turn by less than a radian within {reach} positions",
            expected=f"three layers, and {_FEWEST} coordinates a key head to know a token by",
            remedy="set rope_theta: 1.0e6, a larger hidden_size, or induction: false",
        )
    norm = math.sqrt((CONSTANT**2 + hidden - 1) / hidden)  # divisor of the first RMSNorms, in units of s
    model.model.embed_tokens.weight[:, 0] = CONSTANT * std
    model.model.norm.weight.fill_(norm)
    model.model.norm.weight[0] = 0.0
    names = torch.zeros(2 * groups, width, hidden)  # orthonormal rows: P of each key head, then U
    names[..., 1:] = _directions(2 * groups * width, hidden - 1).view(2 * groups, width, -1)
    known, written = names[:groups], names[groups:]

    def inputs(projection: Any) -> Tensor:  # (key heads, query heads of it or 1, D, H)
        weight: Tensor = projection.weight.data.zero_()
        return weight.view(groups, -1, head, hidden)

    def outputs(projection: Any) -> Tensor:  # (H, key heads, query heads of it, D)
        weight: Tensor = projection.weight.data.zero_()
        return weight.view(hidden, groups, shared, head)

    first, second = (layer.self_attn.requires_grad_(False) for layer in model.model.layers[:2])
    fast = (angles > _FAST).float()
    apart = float((fast * (1 - angles.cos())).sum())
    size = math.sqrt(_BACK * math.sqrt(head) / apart) * fast / (CONSTANT / norm)
    inputs(first.q_proj)[..., 0] = torch.cat([size, torch.zeros_like(size)])
    inputs(first.k_proj)[..., 0] = torch.cat([size * angles.cos(), size * angles.sin()])
    inputs(first.v_proj)[:, 0, :width] = known * norm
    outputs(first.o_proj)[..., :width] = _WRITTEN * std / shared * written.permute(2, 0, 1)[:, :, None]

    places = torch.cat([slow, slow + half])[:width]
    scale = norm * math.sqrt(_MATCH * math.sqrt(head) / width)
    inputs(second.q_proj)[:, :, places] = scale * known[:, None]
    inputs(second.k_proj)[:, :, places] = scale / _WRITTEN * written[:, None]
    count = min(groups * head, hidden - 1)
    parts = torch.zeros(groups * head, hidden)  # of the token found, D coordinates of each key head
    parts[:count, 1:] = _directions(hidden - 1, hidden - 1)[-count:]
    parts = parts.view(groups, head, hidden)
    inputs(second.v_proj).copy_(norm * parts[:, None])
    outputs(second.o_proj).copy_(_RAISED * std / shared * parts.permute(2, 0, 1)[:, :, None])
    for layer in model.model.layers[2:]:
        layer.self_attn.o_proj.weight.mul_(_OTHERS)


def _directions(count: int, size: int) -> Tensor:
    """(count, size) orthonormal rows, the same for every seed: what tells tokens apart are their embeddings."""
    square = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    return torch.linalg.qr(square)[0][:count]
