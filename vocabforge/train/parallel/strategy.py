"""Strategies for sharing a training step between processes: one interface, one small class per strategy.

Every strategy wraps the module whose forward pass is trained: a drafter's
:class:`~vocabforge.train.step.TrainStep`, or a router. The loss of a process is its share of the whole
batch's loss, so gradients must be SUMMED over processes. All wrappers average them, hence the factor ``size``
in ``backward``.

The launcher (accelerate launch, torchrun) starts the processes and sets the strategy in the environment; the
wrappers are those of torch and DeepSpeed. Unsupported combinations are errors, so that processes never train
separately.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ...core.distributed import Group
from ...core.errors import UsageError
from ...core.registry import resolve
from ..checkpoint import full_state, restore, whole
from ..config import TrainConfig
from ..optim import set_learning_rate

STRATEGIES: dict[str, str] = {
    "single": "vocabforge.train.parallel.wrapped:Replicated",
    "ddp": "vocabforge.train.parallel.wrapped:Replicated",
    "fsdp": "vocabforge.train.parallel.wrapped:FullyShard",
    "deepspeed": "vocabforge.train.parallel.deepspeed:DeepSpeed",
}

Check = Callable[[Tensor], None]


class Strategy:
    """Interface for the training loop; collective methods are called by all processes together."""

    name: str
    group: Group
    parameters: dict[str, nn.Parameter]
    optimizer: torch.optim.Optimizer

    def forward(self, *inputs: Any) -> Any:
        """Run the wrapped step. Collective."""
        raise NotImplementedError

    def syncing(self, *, last: bool) -> AbstractContextManager[None]:
        """Wrap forward and backward of a micro-batch; ``last`` is True for the last one of a step."""
        return contextlib.nullcontext()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add this micro-batch's gradient. Collective."""
        (loss * self.group.size).backward()

    def clip(self, limit: float) -> Tensor:
        """Clip the gradient norm to ``limit``; return the norm before clipping. Collective."""
        raise NotImplementedError

    def update(self, lr: float, clip: float, check: Check) -> Tensor:
        """Clip, check the norm, step, clear the gradients; return the norm before clipping. Collective."""
        norm = self.clip(clip)
        check(norm)  # before the weights are updated and saved
        set_learning_rate(self.optimizer, lr)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def weights(self) -> dict[str, Tensor]:
        """Return the full fp32 trained tensors on the CPU, by name in the step. Collective."""
        states = self.optimizer.state
        return {
            name: whole(states.get(p, {}).get("master", p)).detach().float().cpu().contiguous()
            for name, p in self.parameters.items()
        }

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the full optimiser tensors on the CPU as ``name/key``. Collective."""
        return full_state(self.optimizer, self.parameters)

    def load(self, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        """Restore full tensors. Collective."""
        restore(self.optimizer, self.parameters, weights, state)

    def close(self) -> None:
        """Release references to the process group; otherwise a process may abort at exit."""


def wanted_strategy(name: str, group: Group) -> str:
    """Return the named strategy, or the launcher's for ``auto``.

    Raises:
        UsageError: the strategy contradicts the launched processes.
    """
    launched = "single" if group.size == 1 else "ddp"
    for variable, strategy in (("ACCELERATE_USE_FSDP", "fsdp"), ("ACCELERATE_USE_DEEPSPEED", "deepspeed")):
        if os.environ.get(variable, "").lower() in ("1", "true"):
            launched = strategy
    chosen = launched if name == "auto" else name
    if chosen in ("ddp", "fsdp") and group.size == 1:
        raise UsageError(
            f"the strategy {chosen} needs more than one process",
            got="one process",
            expected="a launcher with --num_processes 2 or more",
            remedy="accelerate launch --config_file recipes/accelerate/multi_gpu.yaml -m vocabforge ...",
        )
    if chosen == "single" and group.size > 1:
        raise UsageError(
            "run.strategy single was launched as several processes, each of which would train its own drafter",
            got=f"{group.size} processes",
            expected="1",
            remedy="leave run.strategy at auto, or launch one process",
        )
    if name != "auto" and launched in ("fsdp", "deepspeed") and chosen != launched:
        raise UsageError(
            "the launcher's configuration and run.strategy disagree",
            got=f"run.strategy {name} under a launcher configured for {launched}",
            remedy="leave run.strategy at auto, or use another file of recipes/accelerate",
        )
    return chosen


def make_strategy(
    name: str, step: nn.Module, config: TrainConfig, group: Group, device: torch.device
) -> Strategy:
    """Wrap a module to train.

    Raises:
        UsageError: the strategy is not available, or does not support ``optim.fused`` or ``optim.name``.
    """
    if config.optim.name == "muon" and name == "deepspeed":
        raise UsageError(
            "Muon needs matrices, and DeepSpeed flattens what it divides",
            got=f"strategy {name}",
            expected="one process, DDP or FSDP2",
            source="optim.name",
            remedy="launch with recipes/accelerate/fsdp2.yaml, or set optim.name: adamw",
        )
    if config.optim.fused and name in ("fsdp", "deepspeed"):
        raise UsageError(
            "optim.fused needs whole tensors",
            got=f"strategy {name}",
            expected="one process, or DDP",
            source="optim.fused",
            remedy="leave optim.fused out",
        )
    strategy: Strategy = resolve(STRATEGIES, name, "strategy")(name, step, config, group, device)
    return strategy
