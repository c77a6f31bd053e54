"""Loading of decoding targets with the lean model if it supports the architecture, else with Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..core.console import say
from ..core.errors import UnsupportedError, UsageError, VocabForgeError
from ..core.values import Backend
from .lean.config import LeanConfig
from .lean.model import load_target, share_target
from .target.hf import HFTarget
from .target.interface import Target
from .target.load import read_target_config


def lean_problem(path: Path) -> VocabForgeError | None:
    """Return why the lean model cannot run a target, or None if it can.

    Raises:
        DataError: the folder has no model, or its configuration is damaged.
    """
    read_target_config(path)
    try:
        LeanConfig.from_hf_config(path)
    except UnsupportedError as error:
        return error
    return None


def load_decoding_target(
    path: Path,
    backend: Backend = "auto",
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    device_map: str | Mapping[str, Any] | None = None,
    tp_plan: str | None = None,
    role: str = "target",
) -> Target:
    """Load a Hugging Face folder for decoding.

    Args:
        role: what the model is for, in messages.
        backend: ``lean``; ``transformers`` for the model's own code; ``auto`` for lean if it supports the
            architecture and the target is on one device.
        device, device_map, tp_plan: see :class:`~vocabforge.models.target.load.Placement`.

    Raises:
        UnsupportedError: the backend is ``lean``, which does not support this target.
        UsageError: the placement does not suit ``lean`` or how the processes were launched.
        DataError: the folder has no model, or it cannot be decoded.
    """
    spread = device_map is not None or tp_plan is not None
    if backend == "lean" and spread:
        raise UsageError(
            "the lean decoder keeps a target on one device",
            got=f"device_map {device_map}" if tp_plan is None else f"tp_plan {tp_plan}",
            remedy="use the backend transformers, or leave the placement out",
        )
    problem = None if backend == "transformers" or spread else lean_problem(path)
    if backend == "lean" and problem is not None:
        raise problem
    if backend == "lean" or (backend == "auto" and problem is None and not spread):
        return load_target(path, dtype=dtype, device=device)
    from .hf.model import load_transformers

    if problem is not None:
        say(f"The {role} runs by Transformers' own code: {problem.message} ({problem.got}).")
    return load_transformers(path, dtype=dtype, device=device, device_map=device_map, tp_plan=tp_plan)


def decoder_over(target: HFTarget) -> Target:
    """Create a decoding target over weights already loaded for training, with the lean model if possible.

    Raises:
        DataError: the target cannot be decoded.
    """
    from .hf.model import TransformersModel

    try:
        return share_target(target)
    except UnsupportedError:
        return TransformersModel(target.model, target.source)
