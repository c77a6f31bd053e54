"""Wider copies of a target and its drafter that compute the same functions: the cost of a larger pair, measured.

Net2WiderNet (Chen et al. 2016) with every unit repeated: heads, inner units and the residual stream m times, and each
matrix divided by the repetitions of its input. Logits stay what they were, up to rounding, and so does every
accepted length; weights, and the bytes that a pass reads, grow by m squared.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..models.checkpoint import EMBEDDING, LM_HEAD
from ..models.eagle3 import Eagle3Drafter
from ..models.lean import LeanModel

_JOINED = ("fc.weight", "input_norm.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight")


@torch.no_grad()
def widen_target(model: LeanModel, times: int) -> LeanModel:
    """A lean target ``times`` as wide, with an LM head of its own."""
    c = model.config
    config = replace(
        c,
        hidden_size=times * c.hidden_size,
        intermediate_size=times * c.intermediate_size,
        num_heads=times * c.num_heads,
        num_kv_heads=times * c.num_kv_heads,
        tie_word_embeddings=False,
    )
    wide = LeanModel(config, dtype=model.dtype, device=model.device, own_lm_head=True)
    narrow = {name: parts[0] for name, parts in model.checkpoint_views().items()}
    narrow[LM_HEAD] = model.lm_head_weight
    for name, parts in wide.checkpoint_views().items():
        for part in parts:
            part.copy_(_repeated(narrow[name], part.shape, divided=name != EMBEDDING))
    return wide


@torch.no_grad()
def widen_drafter(drafter: Eagle3Drafter, target: LeanModel, times: int) -> Eagle3Drafter:
    """An EAGLE-3 drafter ``times`` as wide, over a target widened by :func:`widen_target`."""
    c = drafter.config
    config = replace(
        c,
        hidden_size=times * c.hidden_size,
        intermediate_size=times * c.intermediate_size,
        num_heads=times * c.num_heads,
        num_kv_heads=times * c.num_kv_heads,
    )
    ids = drafter.target_ids if drafter.has_own_head else None
    wide = Eagle3Drafter(config, target.embedding, target.lm_head_weight, ids).to(target.device, target.dtype)
    narrow = drafter.state_dict()
    for name, tensor in wide.state_dict().items():
        # These read several vectors of the residual stream's width, one after the other.
        joined = name.endswith(_JOINED)
        parts = narrow[name].split(c.hidden_size, -1) if joined else (narrow[name],)
        shape = (*tensor.shape[:-1], tensor.shape[-1] // len(parts))
        tensor.copy_(torch.cat([_repeated(part, shape, divided=True) for part in parts], -1))
    return wide.eval()


def _repeated(tensor: Tensor, shape: tuple[int, ...], *, divided: bool) -> Tensor:
    """A norm (n,) or a matrix (out, in) repeated to ``shape``; a matrix is divided by its input's repetitions."""
    times = [wide // narrow for wide, narrow in zip(shape, tensor.shape)]
    wide = tensor.repeat(times)
    return wide / times[-1] if divided and tensor.dim() == 2 else wide
