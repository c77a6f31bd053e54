"""Which code computes a decoding target: the lean model where it knows the architecture, Transformers elsewhere."""

from __future__ import annotations

from pathlib import Path

import torch

from ..core.console import say
from ..core.errors import UnsupportedError, VocabForgeError
from ..core.values import Backend
from .lean.config import LeanConfig
from .lean.model import load_target, share_target
from .target.hf import HFTarget
from .target.interface import Target
from .target.load import read_target_config


def lean_problem(path: Path) -> VocabForgeError | None:
    """Why the lean model does not compute a target; None where it does.

    Raises:
        DataError: there is no model, or its configuration is damaged.
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
) -> Target:
    """Load a Hugging Face folder for decoding.

    Args:
        backend: ``lean``; ``transformers``: the model's own code; ``auto``: lean where it knows the architecture.

    Raises:
        UnsupportedError: ``lean``, and it does not compute this target.
        DataError: no model, or one that cannot be decoded.
    """
    problem = None if backend == "transformers" else lean_problem(path)
    if backend == "lean" and problem is not None:
        raise problem
    if backend == "lean" or (backend == "auto" and problem is None):
        return load_target(path, dtype=dtype, device=device)
    from .hf.model import load_transformers

    if problem is not None:
        say(f"The target runs by Transformers' own code: {problem.message} ({problem.got}).")
    return load_transformers(path, dtype=dtype, device=device)


def decoder_over(target: HFTarget) -> Target:
    """A decoding target over the weights that training has loaded: lean where that is possible.

    Raises:
        DataError: the target cannot be decoded.
    """
    from .hf.model import TransformersModel

    try:
        return share_target(target)
    except UnsupportedError:
        return TransformersModel(target.model, target.source)
