"""Checkpoints: weights and optimiser state in safetensors, written atomically, never a pickle.

One layout for every strategy: full fp32 tensors by name. A run may therefore go on with another number of
processes or another strategy.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Mapping
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
    """What a run resumes from, beside the step.

    Attributes:
        weights: trained tensors by name.
        optimizer: ``name/key`` tensors of the optimiser.
            facts: such as the best evaluation so far.
    """

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, step: int, state: RunState, identity: Mapping[str, Any], keep: int) -> Path:
    """Write ``folder/step-N`` and remove all but the newest ``keep``; ``identity`` must be equal on resume."""
    path = folder / f"step-{step:08d}"
    if path.exists():  # left by a run that was resumed from an older checkpoint
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
    """Finished checkpoints, oldest first."""
    return sorted(p for p in folder.glob("step-*") if (p / MANIFEST).is_file())


def remove_remains(folder: Path) -> None:
    """Remove what a killed run was writing or replacing; by one process, before any loads."""
    for remains in folder.glob(".step-*"):
        shutil.rmtree(remains, ignore_errors=True)


def load_latest(folder: Path, identity: Mapping[str, Any]) -> tuple[int, RunState] | None:
    """The newest valid checkpoint: its step and state. A damaged one is named, and the one before it is used.

    Raises:
        UsageError: it was made with other settings or inputs.
        ArtifactError: there are checkpoints, and every one is damaged.
    """
    damaged: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            with form_errors("the checkpoint cannot be read", path):
                # The settings count also where weights are damaged.
                found = read_json(path / MANIFEST, "manifest")["meta"]["identity"]
                check_identity(found, dict(identity), source=path, remedy=_REMEDY)
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
    """Remove the checkpoints of a run, and the folder if nothing else is in it."""
    for path in folder.glob("step-*"):
        if (path / MANIFEST).is_file():
            take_away(path)
    remove_remains(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def discard_run(
    output: Path, artifacts: Mapping[str, str], files: Iterable[str], *, keep: Path | None = None
) -> None:
    """Remove a former run's checkpoints, ``artifacts`` (name -> kind) other than ``keep``, and ``files``."""
    discard(output / "checkpoints")
    for name, kind in artifacts.items():
        if output / name != keep:
            with contextlib.suppress(ArtifactError):
                take_away(open_artifact(output / name, kind, verify=False).path)
    for name in files:
        (output / name).unlink(missing_ok=True)


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
    place: Callable[[Tensor, nn.Parameter], Tensor] = lambda value, like: value.to(like.device),
) -> None:
    """Put full fp32 tensors, and state of :func:`full_state`, back; ``place`` puts one where a parameter is."""
    fused = bool(optimizer.defaults.get("fused"))  # only then steps are counted on the device
    for name, parameter in parameters.items():
        parameter.copy_(place(weights[name], parameter))
        if found := entries(state, name):
            optimizer.state[parameter] = {
                key: value if key == "step" and not fused else place(value, parameter)
                for key, value in found.items()
            }


def state_of(
    module: nn.Module, optimizer: torch.optim.Optimizer, facts: Mapping[str, Any] | None = None
) -> RunState:
    """Everything that a run of one process over a whole module goes on from."""
    named = dict(module.named_parameters())
    weights = {name: p.detach().cpu().contiguous() for name, p in named.items()}
    return RunState(weights, full_state(optimizer, named), dict(facts or {}))


def restore_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: RunState) -> None:
    """The opposite of :func:`state_of`."""
    restore(optimizer, dict(module.named_parameters()), state.weights, state.optimizer)
