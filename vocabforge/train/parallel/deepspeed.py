"""DeepSpeed ZeRO stages 1 to 3 through DeepSpeed's public engine.

The JSON file is ``deepspeed_config_file`` of the accelerate configuration. Batch sizes, clipping and the
optimiser come from the recipe; a contradicting file is an error. Checkpoints have the common layout instead of
DeepSpeed's, which are pickles for one number of processes. The engine partitions the weights that the module
has when it is created, so it is created after they are restored.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.config import shipped
from ...core.distributed import Group
from ...core.errors import ConfigError, UsageError
from ...core.files import read_json
from ..checkpoint import entries, trained
from ..config import TrainConfig
from ..data import divide
from ..optim import make_optimizer, set_learning_rate
from ..step import TrainStep
from .strategy import Check, Strategy

_MOMENTS = ("exp_avg", "exp_avg_sq")


class _ReadyStates(dict[Any, dict[str, Tensor]]):
    # DeepSpeed links parameters to optimiser states that the optimiser has created. These exist from the start.
    def __missing__(self, partition: Tensor) -> dict[str, Tensor]:
        moments = {key: torch.zeros_like(partition) for key in _MOMENTS}
        self[partition] = {"step": torch.zeros(()), **moments}
        return self[partition]


def deepspeed_config(config: TrainConfig, size: int) -> dict[str, Any]:
    """Return the launcher's settings, completed by the recipe for ``size`` processes.

    Raises:
        ConfigError: the file contradicts the recipe, or uses unsupported settings.
    """
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    body: Any = {"zero_optimization": {"stage": 2}}
    if file:
        path = Path(file)  # launch recipes are found from any folder
        path = shipped("recipes").parent / path if not path.exists() and path.parts[0] == "recipes" else path
        body = read_json(path, "DeepSpeed configuration")
        if not isinstance(body, dict) or not isinstance(body.get("zero_optimization", {}), dict):
            raise ConfigError(
                "the DeepSpeed configuration, or its zero_optimization, is not a JSON object", source=file
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
    if stage not in (1, 2, 3) or (stage == 3 and config.drafter.freeze):
        wrong.append(f"zero_optimization.stage {stage}")
    if wrong:
        raise ConfigError(
            "the DeepSpeed configuration does not go with the recipe",
            got="; ".join(wrong),
            expected="zero_optimization.stage 1, 2 or 3 (with drafter.freeze 1 or 2); batch sizes and "
            "clipping unset or auto; no optimizer, scheduler or fp16 section",
            source=file,
            remedy="correct the file, or use one of recipes/deepspeed",
        )
    return {
        **body,
        **fixed,
        "bf16": {"enabled": config.memory.weights == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


class DeepSpeed(Strategy):
    """Training with DeepSpeed's engine."""

    def __init__(
        self, name: str, step: TrainStep, config: TrainConfig, group: Group, device: torch.device
    ) -> None:
        try:
            import deepspeed
        except ImportError as error:
            raise UsageError("DeepSpeed is not installed", remedy="pip install deepspeed") from error
        self.name, self.group, self._step, self._deepspeed = name, group, step, deepspeed
        self._settings = deepspeed_config(config, group.size)
        self.parameters = trained(step)
        self.optimizer = make_optimizer(self.parameters, config.optim)
        self.optimizer.state = _ReadyStates()  # type: ignore[assignment]

    @cached_property
    @torch.enable_grad()  # the first pass may be an evaluation
    def _engine(self) -> Any:
        buffers = {module: dict(module._buffers) for module in self._step.modules()}
        engine: Any = self._deepspeed.initialize(
            model=self._step, optimizer=self.optimizer, config=self._settings, dist_init_required=False
        )[0]
        for module, kept in buffers.items():
            module._buffers.update(kept)  # undo bf16 mode's cast of the target's tensors and rotary tables
        if self._settings["zero_optimization"]["stage"] != 3:
            engine.optimizer._lazy_init_hp_params_optimizer_state()  # otherwise after the first step
        return engine

    def forward(self, *inputs: Any) -> Any:
        return self._engine(*inputs)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        passes = self._settings["gradient_accumulation_steps"]
        self._engine.backward(loss * (self.group.size * passes))  # DeepSpeed divides by both
        if not last:
            self._engine.step()  # only counts the micro-batch

    def update(self, lr: float, clip: float, check: Check) -> Tensor:
        set_learning_rate(self._engine.optimizer, lr)
        self._engine.step()
        norm = torch.as_tensor(self._engine.get_global_grad_norm())
        check(norm)
        return norm

    def weights(self) -> dict[str, Tensor]:
        full = self._deepspeed.utils.safe_get_full_fp32_param
        return {name: _copied(full(p)) for name, p in trained(self._engine.module).items()}

    def optimizer_state(self) -> dict[str, Tensor]:
        full = self._deepspeed.utils.safe_get_full_optimizer_state
        tensors: dict[str, Tensor] = {}
        for name, parameter in trained(self._engine.module).items():
            tensors |= {f"{name}/{key}": _copied(full(parameter, key)) for key in _MOMENTS}
            tensors[f"{name}/step"] = torch.tensor(float(self._engine.global_steps))
        return tensors

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor], state: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(weights[name])
        for name, parameter in trained(self._engine.module).items():
            self._set(parameter, weights[name])  # with bf16 weights the engine has rounded them
            kept = entries(state, name)  # none before the first step
            for key in kept.keys() & {*_MOMENTS}:
                self._set(parameter, kept[key], key)
            self._engine.global_steps = int(kept.get("step", 0))
        for moments in self.optimizer.state.values():
            moments["step"].fill_(self._engine.global_steps)

    def _set(self, parameter: nn.Parameter, value: Tensor, *key: str) -> None:
        """Set the fp32 tensor of a parameter, or its moment ``key``, to a full value."""
        utils, rank, size = self._deepspeed.utils, self.group.rank, self.group.size
        change = utils.safe_set_full_optimizer_state if key else utils.safe_set_full_fp32_param
        if self._settings["zero_optimization"]["stage"] == 3:  # shares of equal size, the last one padded
            change = utils.safe_set_local_optimizer_state if key else utils.safe_set_local_fp32_param
            share = -(-value.numel() // size)
            value = F.pad(value.flatten(), (0, share * size - value.numel())).view(size, share)[rank]
        change(parameter, value.to(parameter.device), *key)

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers."""
        self._engine.destroy()


def _copied(value: Tensor) -> Tensor:
    return value.detach().float().cpu().contiguous().clone()
