"""Modules wrapped by torch: one process, replicas (DistributedDataParallel), or shards (FSDP2)."""

from __future__ import annotations

import contextlib
import gc
import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from ...core.distributed import Group
from ..checkpoint import restore, trained, whole
from ..config import TrainConfig
from ..optim import clip_global_norm, make_optimizer
from .strategy import Strategy


class Replicated(Strategy):
    """Every process holds the whole module; DDP sums the gradients."""

    def __init__(
        self, name: str, step: nn.Module, config: TrainConfig, group: Group, device: torch.device
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
        self._wrapped = self.step
        gc.collect()


def _ddp(step: nn.Module) -> nn.Module:
    """Wrap in DDP without broadcasting buffers; torch 2.13 renamed the option."""
    wrapper: Any = nn.parallel.DistributedDataParallel
    known = inspect.signature(wrapper.__init__).parameters
    key = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    return wrapper(step, **{key: False})


class FullyShard(Strategy):
    """Every process holds a shard of each parameter, gradient and moment.

    The whole step is one unit: its parameters are gathered for the forward pass and sharded again after the
    backward pass.
    """

    def __init__(
        self, name: str, step: nn.Module, config: TrainConfig, group: Group, device: torch.device
    ) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self.name, self.group = name, group
        low = config.memory.weights == "bf16"
        # Inputs keep their dtype, as with the other strategies: row counts and offsets are not activations.
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if low else None, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        mesh = init_device_mesh(device.type, (group.size,))
        frozen = {p for p in step.parameters() if not p.requires_grad}
        self.step: Any = fully_shard(
            step, mesh=mesh, mp_policy=policy, reshard_after_forward=False, ignored_params=frozen
        )
        self.parameters = trained(step)
        self.optimizer = make_optimizer(self.parameters, config.optim)

    def forward(self, *inputs: Any) -> Any:
        outputs = self.step(*inputs)
        if not torch.is_grad_enabled():  # no backward pass will reshard the parameters
            self.step.reshard()
        return outputs

    def syncing(self, *, last: bool) -> AbstractContextManager[None]:
        self.step.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        return whole(torch.nn.utils.clip_grad_norm_(self.parameters.values(), limit))

    def load(self, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        restore(self.optimizer, self.parameters, weights, state, _divide)

    def close(self) -> None:
        self.step = self.parameters = self.optimizer = None  # type: ignore[assignment]
        gc.collect()


def _divide(value: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
