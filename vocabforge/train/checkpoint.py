"""Checkpoints: weights, optimiser state and step in safetensors, written atomically, never a pickle."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..core.artifact import open_artifact, write_artifact
from ..core.errors import ArtifactError, MismatchError
from ..core.progress import say

KIND = "checkpoint"


def save_checkpoint(
    folder: Path,
    step: int,
    drafter: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write ``folder/step-N`` and remove all but the newest ``keep`` checkpoints.

    Args:
        identity: what must be equal on resume (resolved training settings and input hashes).
    """
    path = folder / f"step-{step:08d}"
    if path.exists():  # left by a run that was resumed from an older checkpoint
        shutil.rmtree(path)
    trained = {name: p.detach().cpu().contiguous() for name, p in drafter.named_parameters()}
    with write_artifact(path, KIND, {"step": step, "identity": dict(identity)}) as temporary:
        save_file(trained, temporary / "drafter.safetensors")
        save_file(_optimizer_tensors(drafter, optimizer), temporary / "optimizer.safetensors")
        save_file({"torch": torch.get_rng_state()}, temporary / "rng.safetensors")
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return path


def _optimizer_tensors(drafter: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in drafter.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    return tensors


def list_checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(p for p in folder.glob("step-*") if (p / "manifest.json").is_file())


def load_latest(
    folder: Path, drafter: nn.Module, optimizer: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> int:
    """Load the newest valid checkpoint into drafter and optimiser.

    A damaged checkpoint is named and the one before it is used.

    Returns:
        its step, or 0 when there is none.

    Raises:
        MismatchError: it was made with other settings or inputs.
    """
    for remains in folder.glob(".step-*"):  # what a killed run was writing or replacing
        shutil.rmtree(remains, ignore_errors=True)
    for path in reversed(list_checkpoints(folder)):
        try:
            artifact = open_artifact(path, KIND)
        except ArtifactError as error:
            say(f"Skipping a damaged checkpoint: {error.message} ({path})")
            continue
        check_identity(artifact.meta["identity"], identity, source=path)
        _restore(artifact.path, drafter, optimizer)
        return int(artifact.meta["step"])
    return 0


def check_identity(found: Mapping[str, Any], wanted: Mapping[str, Any], *, source: Path) -> None:
    """Refuse to continue a run under other settings, naming what changed.

    Raises:
        MismatchError: any difference.
    """
    changed = [key for key in sorted({*found, *wanted}) if found.get(key) != wanted.get(key)]
    if changed:
        raise MismatchError(
            "the run in this folder was started with other settings or inputs",
            got="; ".join(f"{key} = {wanted.get(key)!r}" for key in changed),
            expected="; ".join(f"{key} = {found.get(key)!r}" for key in changed),
            source=source,
            remedy="choose another output folder, undo the change, or pass --fresh to start over",
        )


def _restore(path: Path, drafter: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    weights = load_file(path / "drafter.safetensors")
    state = load_file(path / "optimizer.safetensors")
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            parameter.copy_(weights[name])
            entries = {k.rpartition("/")[2]: v for k, v in state.items() if k.rpartition("/")[0] == name}
            if entries:
                optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter) for key, value in entries.items()
                }
    torch.set_rng_state(load_file(path / "rng.safetensors")["torch"])
