"""DeepSpeed ZeRO stages 1 to 3.

The JSON file is the one that the launcher was given (``deepspeed_config_file`` of the accelerate
configuration). Batch sizes, clipping and the optimiser come from the recipe; a file that contradicts it is
refused. Checkpoints are written in the common layout, not in DeepSpeed's own (which is a pickle).
"""

from __future__ import annotations

import contextlib
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.distributed import Group
from ...core.errors import ConfigError, UsageError
from ...core.files import read_json
from ..checkpoint import entries, trained
from ..config import TrainConfig
from ..data import divide
from ..optim import make_optimizer
from ..step import TrainStep
from .strategy import Check

_MOMENTS = ("exp_avg", "exp_avg_sq")


class _ReadyStates(dict[Any, dict[str, Tensor]]):
    # AdamW's state of a flat partition is there when it is asked for, not only after the first step: DeepSpeed then
    # finds it for every parameter, and a resumed run can fill it.
    def __missing__(self, partition: Tensor) -> dict[str, Tensor]:
        moments = {key: torch.zeros_like(partition) for key in _MOMENTS}
        self[partition] = {"step": torch.zeros(()), **moments}
        return self[partition]


def deepspeed_config(config: TrainConfig, size: int) -> dict[str, Any]:
    """DeepSpeed's settings: the launcher's file, completed with what the recipe says.

    Args:
        size: number of processes.

    Raises:
        ConfigError: the file contradicts the recipe, or asks for what this trainer does not do.
    """
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    body: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    if file:
        body = read_json(Path(file), "DeepSpeed configuration")
        if not isinstance(body, dict) or not isinstance(body.get("zero_optimization", {}), dict):
            raise ConfigError(
                "the DeepSpeed configuration is no table, or its zero_optimization is none",
                expected="a JSON object; zero_optimization in it an object too",
                source=file,
            )
    division = divide(config.optim, 0, size)
    fixed = {
        "train_micro_batch_size_per_gpu": division.micro,
        "gradient_accumulation_steps": division.passes,
        "gradient_clipping": config.optim.clip,
        "train_batch_size": config.optim.batch_size,
    }
    wrong = [
        f"{key} {body[key]} (the recipe makes it {value})"
        for key, value in fixed.items()
        if body.get(key, "auto") not in ("auto", value)
    ]
    wrong += [f"a section {key}" for key in ("optimizer", "scheduler", "fp16") if key in body]
    stage = body.get("zero_optimization", {}).get("stage")
    if stage not in (1, 2, 3):
        wrong.append(f"zero_optimization.stage {stage}")
    if stage == 3 and config.drafter.freeze:
        wrong.append("zero_optimization.stage 3 with drafter.freeze (use stage 2: there is little to divide)")
    if wrong:
        raise ConfigError(
            "the DeepSpeed configuration does not go with the recipe",
            got="; ".join(wrong),
            expected="zero_optimization.stage 1, 2 or 3; batch sizes and clipping left out or auto; "
            "no optimizer, scheduler or fp16 section (the recipe's optim and memory say those)",
            source=file,
            remedy="correct the file, or take one of recipes/deepspeed",
        )
    return {
        **body,
        **fixed,
        "bf16": {"enabled": config.memory.weights == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


class DeepSpeed:
    """See :class:`~vocabforge.train.parallel.strategy.Strategy`."""

    def __init__(
        self, name: str, step: TrainStep, config: TrainConfig, group: Group, device: torch.device
    ) -> None:
        try:
            import deepspeed
        except ImportError as error:
            raise UsageError(
                "DeepSpeed is not installed", remedy="pip install 'vocabforge[deepspeed]'"
            ) from error
        self.name, self.group = name, group
        settings = deepspeed_config(config, group.size)
        self._stage = settings["zero_optimization"]["stage"]
        self._micro = settings["gradient_accumulation_steps"]
        adamw: Any = make_optimizer(trained(step).values(), config.optim)
        adamw.state, self._adamw = _ReadyStates(), adamw
        buffers = {id(m): dict(m._buffers) for m in step.modules()}
        engine, *_ = deepspeed.initialize(
            model=step, optimizer=self._adamw, config=settings, dist_init_required=False
        )
        for module in step.modules():  # bf16 mode casts the target's tensors and rotary tables too
            module._buffers.update(buffers.get(id(module), {}))
        self._deepspeed: Any = deepspeed
        self._engine: Any = engine
        self.parameters = trained(step)

    def forward(self, *inputs: Any) -> Any:
        return self._engine(*inputs)

    def syncing(self, *, last: bool) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self._engine.backward(loss * (self.group.size * self._micro))  # DeepSpeed divides by both
        if not last:
            self._engine.step()  # counts the micro-batch, changes nothing

    def update(self, lr: float, clip: float, check: Check) -> Tensor:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        norm = torch.as_tensor(self._engine.get_global_grad_norm())
        check(norm)
        return norm

    def weights(self) -> dict[str, Tensor]:
        read = self._deepspeed.utils.safe_get_full_fp32_param
        return {
            name: read(p).detach().float().cpu().contiguous().clone() for name, p in self.parameters.items()
        }

    def optimizer_state(self) -> dict[str, Tensor]:
        read = self._deepspeed.utils.safe_get_full_optimizer_state
        steps, tensors = self._steps(), {}
        for name, parameter in self.parameters.items():
            for key in _MOMENTS:
                tensors[f"{name}/{key}"] = read(parameter, key).detach().cpu().contiguous().clone()
            tensors[f"{name}/step"] = steps[0].detach().cpu().clone()
        return tensors

    def load(self, weights: dict[str, Tensor], state: dict[str, Tensor], step: int) -> None:
        utils, whole = self._deepspeed.utils, contextlib.nullcontext()
        if self._stage < 3:  # otherwise done in the first step; stage 3 looks states up each time
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()
        else:
            named = list(self.parameters.values())
            whole = self._deepspeed.zero.GatheredParameters(named, modifier_rank=0)
        for name, parameter in self.parameters.items():
            utils.safe_set_full_fp32_param(parameter, weights[name])
            for key, value in entries(state, name).items():
                if key != "step":
                    utils.safe_set_full_optimizer_state(parameter, value, key)
        for count in self._steps():
            count.fill_(step)
        # The tensors that a forward pass reads follow the fp32 ones at the next update only. Under stage 3 they are
        # whole inside, and what rank 0 writes is divided again.
        with whole, torch.no_grad():
            for name, parameter in self.parameters.items():
                if self._stage < 3 or self.group.rank == 0:
                    parameter.copy_(weights[name])

    def _steps(self) -> list[Tensor]:
        return [entry["step"] for entry in self._adamw.state.values()]

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers."""
        self._engine.destroy()
