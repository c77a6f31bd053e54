"""Modules in training, made ready to decode beside it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def for_decoding(module: Any, dtype: torch.dtype) -> Any:
    """A copy to decode with, in evaluation mode: the original keeps its mode, its tables and its gradients.

    All tensors are shared, but for trained parameters of another dtype: those are converted, as loading the saved
    drafter onto the target would.
    """
    parameters = dict(module.named_parameters())
    shared = {id(tensor): tensor for tensor in (*module.buffers(), *parameters.values())}
    copied = copy.deepcopy(module, shared)
    for name, parameter in parameters.items():
        if parameter.dtype != dtype:
            owner, _, own = name.rpartition(".")
            frozen = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
            copied.get_submodule(owner).register_parameter(own, frozen)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and buffer.dtype != dtype:
            owner, _, own = name.rpartition(".")
            setattr(copied.get_submodule(owner), own, buffer.to(dtype))
    return copied.eval()


def divided(drafter: Any, heads: Mapping[str, nn.Module]) -> str | None:
    """Why these modules cannot decode in this process alone; None where they can."""
    from torch.distributed.tensor import DTensor

    tensors = [*drafter.parameters(), *(p for head in heads.values() for p in head.parameters())]
    if any(isinstance(tensor, DTensor) or tensor.numel() == 0 for tensor in tensors):
        return "the drafter's weights are divided over processes"
    return None
