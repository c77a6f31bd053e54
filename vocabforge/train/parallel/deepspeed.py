"""DeepSpeed ZeRO stages 1 to 3 through DeepSpeed's public engine.

The JSON file is ``deepspeed_config_file`` of the accelerate configuration. Batch sizes, clipping and the
optimiser come from the recipe; a contradicting file is an error. Checkpoints have the common layout, so a run
can resume with DDP or FSDP2. Resuming under DeepSpeed is not supported: its fp32 tensors cannot be set before
its first step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...core.config import shipped
from ...core.distributed import Group
from ...core.errors import ConfigError, UsageError
from ...core.files import read_json
from ..checkpoint import trained
from ..config import TrainConfig
from ..data import divide
from ..optim import make_optimizer
from ..step import TrainStep
from .strategy import Check, Strategy

_MOMENTS = ("exp_avg", "exp_avg_sq")


class _ReadyStates(dict[Any, dict[str, Tensor]]):
    # DeepSpeed links parameters to their optimiser states once, after the first group's first step. By then
    # the states of the other groups must exist.
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
        self.name, self.group = name, group
        settings = deepspeed_config(config, group.size)
        self._micro = settings["gradient_accumulation_steps"]
        adamw: Any = make_optimizer(trained(step), config.optim)
        adamw.state = _ReadyStates()
        buffers = {id(m): dict(m._buffers) for m in step.modules()}
        self._engine: Any = deepspeed.initialize(
            model=step, optimizer=adamw, config=settings, dist_init_required=False
        )[0]
        for module in step.modules():  # undo bf16 mode's cast of the target's tensors and rotary tables
            module._buffers.update(buffers.get(id(module), {}))
        self._utils: Any = deepspeed.utils
        self.parameters = trained(step)

    def forward(self, *inputs: Any) -> Any:
        return self._engine(*inputs)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self._engine.backward(loss * (self.group.size * self._micro))  # DeepSpeed divides by both
        if not last:
            self._engine.step()  # only counts the micro-batch

    def update(self, lr: float, clip: float, check: Check) -> Tensor:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        self._engine.step()
        norm = torch.as_tensor(self._engine.get_global_grad_norm())
        check(norm)
        return norm

    def weights(self) -> dict[str, Tensor]:
        return {name: _copied(self._utils.safe_get_full_fp32_param(p)) for name, p in self.parameters.items()}

    def optimizer_state(self) -> dict[str, Tensor]:
        tensors = {}
        for name, parameter in self.parameters.items():
            for key in _MOMENTS:
                value = self._utils.safe_get_full_optimizer_state(parameter, key)
                tensors[f"{name}/{key}"] = _copied(value)
            tensors[f"{name}/step"] = torch.tensor(float(self._engine.global_steps))
        return tensors

    def load(self, weights: dict[str, Tensor], state: dict[str, Tensor], step: int) -> None:
        raise UsageError(
            "a run cannot be resumed under DeepSpeed",
            got=f"a checkpoint of step {step}",
            expected="DDP or FSDP2, which resume from the same checkpoint",
            remedy="launch the same command with recipes/accelerate/fsdp2.yaml or multi_gpu.yaml",
        )

    def close(self) -> None:
        """Release DeepSpeed's hooks and buffers."""
        self._engine.destroy()


def _copied(value: Tensor) -> Tensor:
    return value.detach().float().cpu().contiguous().clone()
