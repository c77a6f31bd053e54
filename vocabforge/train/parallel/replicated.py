"""Single process, or replicas of the whole drafter in several processes (torch's DistributedDataParallel)."""

from __future__ import annotations

import contextlib
import gc
import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ...core.distributed import Group
from ..checkpoint import trained
from ..config import RouterTrainConfig, TrainConfig
from ..optim import clip_global_norm, make_optimizer
from .strategy import Strategy


class Replicated(Strategy):
    """Every process holds the whole module; DDP sums the gradients."""

    def __init__(
        self,
        name: str,
        step: nn.Module,
        config: TrainConfig | RouterTrainConfig,
        group: Group,
        device: torch.device,
    ) -> None:
        self.name, self.group, self.step = name, group, step
        self.parameters = trained(step)
        self.optimizer = make_optimizer(
            self.parameters,
            config.optim,
            lower=torch.bfloat16 if config.memory.weights == "bf16" else None,
            fp32_gradients=group.size == 1,  # DDP's buckets have the parameters' dtype
        )
        # Buffers belong to the target: equal on all ranks, and too large to broadcast at every step.
        self._wrapped: nn.Module = _ddp(step) if group.size > 1 else step

    def forward(self, *inputs: Any) -> Any:
        return self._wrapped(*inputs)

    def syncing(self, *, last: bool) -> AbstractContextManager[None]:
        # Synchronise only in a step's last micro-batch; DDP reads this setting in the forward pass.
        if last or self.group.size == 1:
            return contextlib.nullcontext()
        return self._wrapped.no_sync()  # type: ignore[operator]

    def clip(self, limit: float) -> Tensor:
        return clip_global_norm(self.parameters.values(), limit)

    def close(self) -> None:
        """Free all references to the process group; otherwise a process may abort at exit."""
        if self.group.size > 1:
            self._wrapped = self.step
            gc.collect()


def _ddp(step: nn.Module) -> nn.Module:
    """Wrap in DDP without broadcasting buffers; torch 2.13 renamed the option."""
    wrapper: Any = nn.parallel.DistributedDataParallel
    known = inspect.signature(wrapper.__init__).parameters
    key = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return wrapper(step, **{key: False})
