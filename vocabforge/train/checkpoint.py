"""Checkpoints: weights and optimiser state in safetensors, written atomically, without pickles.

All strategies use one layout: full fp32 tensors by name. A run can therefore resume with another number of
processes or another strategy.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core.artifact import MANIFEST, open_artifact, write_artifact
from ..core.console import say
from ..core.errors import ArtifactError, DataError
from ..core.files import form_errors, read_json
from ..core.folders import take_away
from ..core.journal import check_identity

KIND = "checkpoint"
_REMEDY = (
    "choose another output folder (drafter.init continues from a finished drafter), undo the change, or pass --fresh "
    "to start over"
)
_WEIGHTS, _OPTIMIZER = "weights.safetensors", "optimizer.safetensors"


@dataclass(frozen=True)
class RunState:
    """State that a run resumes from, in addition to the step.

    Attributes:
        optimizer: ``name/key`` tensors of the optimiser.
        facts: other values, such as the best evaluation so far.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, step: int, state: RunState, identity: Mapping[str, Any], keep: int) -> Path:
    """Write ``folder/step-N`` and remove all but the newest ``keep``; ``identity`` must match on resume."""
    path = folder / f"step-{step:08d}"
    if path.exists():  # the run was resumed from an older checkpoint
        take_away(path)
    meta = {"step": step, "identity": dict(identity), "facts": state.facts}
    with write_artifact(path, KIND, meta) as temporary:
        save_file(state.weights, temporary / _WEIGHTS)
        save_file(state.optimizer, temporary / _OPTIMIZER)
    remove_old(folder, step, keep)
    return path


def remove_old(folder: Path, step: int, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints up to ``step``; a killed run may have left more."""
    for old in [path for path in list_checkpoints(folder) if path.name <= f"step-{step:08d}"][:-keep]:
        take_away(old)


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the finished checkpoints, oldest first."""
    return sorted(p for p in folder.glob("step-*") if (p / MANIFEST).is_file())


def remove_remains(folder: Path) -> None:
    """Remove temporary folders of a killed run; call it in one process, before any process loads."""
    for remains in folder.glob(".step-*"):
        shutil.rmtree(remains, ignore_errors=True)


def load_latest(folder: Path, identity: Mapping[str, Any]) -> tuple[int, RunState] | None:
    """Return step and state of the newest valid checkpoint; report and skip damaged ones.

    Raises:
        UsageError: the checkpoint was made with other settings or inputs.
        ArtifactError: all checkpoints are damaged.
    """
    damaged: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            with form_errors("the checkpoint cannot be read", path):
                # Compare the settings even if the weights are damaged.
                saved = read_json(path / MANIFEST, "manifest")["meta"]["identity"]
                check_identity(saved, dict(identity), source=path, remedy=_REMEDY)
                artifact = open_artifact(path, KIND)
                step, facts = int(artifact.meta["step"]), dict(artifact.meta.get("facts", {}))
                weights, optimizer = (load_file(artifact.file(name)) for name in (_WEIGHTS, _OPTIMIZER))
        except (ArtifactError, DataError) as error:
            say(f"Skipping a damaged checkpoint: {error.message} ({path})")
            damaged.append(path.name)
            continue
        return step, RunState(weights, optimizer, facts)
    if damaged:
        raise ArtifactError(
            "every checkpoint of this run is damaged",
            got=", ".join(damaged),
            source=folder,
            remedy="restore one, or pass --fresh to start over",
        )
    return None


def discard(folder: Path) -> None:
    """Remove the checkpoints of a run, and the folder if it is then empty."""
    for path in folder.glob("step-*"):
        if (path / MANIFEST).is_file():
            take_away(path)
    remove_remains(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor (collective); return other tensors unchanged."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def full_state(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return the optimiser state as full ``name/key`` tensors on the CPU, without masters: the weights."""
    return {
        f"{name}/{key}": whole(torch.as_tensor(value)).detach().cpu().contiguous().clone()
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if key != "master"
    }


def entries(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the optimiser entries of one parameter from a ``name/key`` dictionary."""
    return {k.rpartition("/")[2]: v for k, v in state.items() if k.rpartition("/")[0] == name}


@torch.no_grad()
def restore(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
    weights: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    place: Callable[[Tensor, nn.Parameter], Tensor] = lambda value, like: value.to(like.device),
) -> None:
    """Restore full fp32 tensors and the state of :func:`full_state`.

    Args:
        place: moves (and shards) a tensor like a parameter.
    """
    fused = bool(optimizer.defaults.get("fused"))  # only fused optimisers keep the step on the device
    for name, parameter in parameters.items():
        parameter.copy_(place(weights[name], parameter))
        known = optimizer.state.get(parameter, {})
        if "master" in known:
            known["master"].copy_(weights[name])
        if saved := entries(state, name):
            optimizer.state[parameter] = known | {
                key: value if key == "step" and not fused else place(value, parameter)
                for key, value in saved.items()
                if key != "master"  # written by earlier versions
            }
