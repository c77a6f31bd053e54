"""Parameters, gradients and optimiser state sharded over the processes (torch's ``fully_shard``, FSDP2).

The whole step is one unit: its parameters are gathered for the forward pass and sharded again after the
backward pass. torch's function is used on every device, because a launcher's FSDP plugin silently does
something else on a CPU.
"""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import torch
from torch import Tensor, nn

from ...core.distributed import Group
from ..checkpoint import restore, trained, whole
from ..config import RouterTrainConfig, TrainConfig
from ..optim import make_optimizer
from .strategy import Strategy


class FullyShard(Strategy):
    """Every process holds a shard of each tensor."""

    def __init__(
        self,
        name: str,
        step: nn.Module,
        config: TrainConfig | RouterTrainConfig,
        group: Group,
        device: torch.device,
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

    def syncing(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        self.step.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        return whole(torch.nn.utils.clip_grad_norm_(self.parameters.values(), limit))

    def load(self, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        restore(self.optimizer, self.parameters, weights, state, _divide)

    def close(self) -> None:
        """Free all references to the process group; otherwise a process may abort at exit."""
        self.step = self.parameters = self.optimizer = None  # type: ignore[assignment]
        gc.collect()


def _divide(value: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
