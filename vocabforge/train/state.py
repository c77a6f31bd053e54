"""Weights and optimiser state as plain tensors by name: what checkpoints hold, whatever way a run was trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .checkpoint import RunState, restore_rng, rng_state


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor made whole (collective); any other as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def full_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Optimiser state as ``name/key`` tensors on the CPU, sharded ones made whole."""
    tensors = {}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = whole(torch.as_tensor(value)).detach().cpu().contiguous().clone()
    return tensors


def entries(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """One parameter's optimiser entries of a ``name/key`` dictionary."""
    return {k.rpartition("/")[2]: v for k, v in state.items() if k.rpartition("/")[0] == name}


@torch.no_grad()
def restore(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    weights: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
) -> None:
    """Put full tensors back into parameters that are whole here, and into their optimiser.

    Args:
        weights: by name, in fp32.
        state: of :func:`full_state`; a parameter without entries is one that does not learn, or did not yet.
    """
    fused = bool(optimizer.defaults.get("fused"))  # only then steps are counted on the device
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])
        if found := entries(state, name):
            optimizer.state[parameter] = {
                key: value if key == "step" and not fused else value.to(parameter.device)
                for key, value in found.items()
            }


def state_of(
    module: nn.Module, optimizer: torch.optim.Optimizer, facts: Mapping[str, Any] | None = None
) -> RunState:
    """Everything that a run of one process over a whole module goes on from."""
    named = dict(module.named_parameters())
    weights = {name: p.detach().cpu().contiguous() for name, p in named.items()}
    return RunState(weights, full_state(optimizer, named), rng_state(0), dict(facts or {}))


def restore_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: RunState) -> None:
    """The opposite of :func:`state_of`."""
    restore(optimizer, dict(module.named_parameters()), state.weights, state.optimizer)
    restore_rng(state.rng, 0)
