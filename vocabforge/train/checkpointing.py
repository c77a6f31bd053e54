"""Activation checkpointing of the unroll: a step's inputs are kept, the rest is computed again (Chen et al. 2016)."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..models.drafter import Drafter
from ..models.ttt_attention import TTTState


def checkpointed_step(drafter: Drafter, ids: Tensor, g: Tensor, position: Tensor, state: TTTState) -> Tensor:
    """``drafter.ttt_step`` that keeps g, the step's keys and its result only.

    The drafter's step appends to the state that it is given. Here it is given a copy of the state as it was, in
    the forward pass and again in the backward pass; the first copy becomes the state. Loss and
    gradients are those of the plain step, bit for bit.
    """
    if not torch.is_grad_enabled():
        return drafter.ttt_step(ids, g, position, state)
    before = _copy(state)

    def run(fed: Tensor) -> tuple[Tensor, TTTState]:
        after = _copy(before)
        return drafter.ttt_step(ids, fed, position, after), after

    out, after = checkpoint(run, g, use_reentrant=False)
    for name, value in vars(after).items():
        setattr(state, name, value)
    return out


def _copy(state: TTTState) -> TTTState:
    return dataclasses.replace(state, k=list(state.k), v=list(state.v))
