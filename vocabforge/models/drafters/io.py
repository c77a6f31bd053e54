"""Drafters on disk: the native artefact, and the checks of a drafter against its target."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...core.artifact import Artifact, open_artifact, write_artifact
from ...core.console import say
from ...core.errors import ArtifactError, MismatchError
from ...core.files import atomic_write_json, form_errors, read_json
from ...core.hub import model_name
from ..checkpoint import DTYPES, FLOATS, disagreements, read_headers
from ..target.fingerprint import norms_fingerprint
from ..target.head import TargetTensors
from .interface import Drafter
from .registry import DRAFTERS, drafter_class, new_drafter

KIND = "drafter"
WEIGHTS, CONFIG, TARGET_IDS = "drafter.safetensors", "drafter.json", "target_ids"
_ROWS = 8192  # rows compared at a time
_LAYER = re.compile(r"midlayer\b|layers\.\d+\b")


def save_drafter(
    path: Path,
    drafter: Drafter,
    meta: Mapping[str, Any],
    *,
    parents: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the native artefact; ``meta`` includes ``target_fingerprint`` and ``tokenizer_fingerprint``."""
    with write_artifact(path, KIND, meta, parents=parents, config=config, overwrite=overwrite) as folder:
        fill_native(folder, drafter, dtype)


def fill_native(folder: Path, drafter: Drafter, dtype: torch.dtype | None = None) -> None:
    """Write the files of the native artefact, optionally in another dtype than the drafter's."""
    buffers = {name: tensor.cpu() for name, tensor in drafter.state_dict().items()}
    tensors = buffers | {
        name: p.detach().to("cpu", dtype).contiguous() for name, p in drafter.named_parameters()
    }
    if drafter.has_own_head or drafter.restricted:
        tensors[TARGET_IDS] = drafter.target_ids.cpu()
    save_file(tensors, folder / WEIGHTS)
    atomic_write_json(folder / CONFIG, {"kind": drafter.kind, **drafter.config.to_dict()})


def stored_dtype(path: Path) -> torch.dtype:
    """Return the dtype in which a native drafter is stored."""
    stored = read_headers([path / WEIGHTS]).values()
    return next(DTYPES[tensor.dtype] for tensor in stored if tensor.dtype in FLOATS)


def trained_for(artifact: Artifact | None) -> str | None:
    """Return the fingerprint of the tokenizer that a drafter was trained with, if known."""
    expected = artifact.meta.get("tokenizer_fingerprint") if artifact is not None else None
    return str(expected) if expected else None


def load_native(path: Path, target: TargetTensors) -> tuple[Drafter, Artifact]:
    """Load a native drafter of any kind for decoding, sharing its target's tensors.

    Raises:
        ArtifactError: the artefact is damaged or not a drafter.
        MismatchError: the target's tensors do not fit.
    """
    sizes, tensors, ids, artifact = _read_native(path)
    return assemble(sizes, tensors, ids, target, source=path), artifact


def load_trainable(path: Path, target: TargetTensors) -> tuple[Drafter, Artifact]:
    """Load a native drafter for training: fp32 parameters with gradients, on the target's device."""
    sizes, tensors, ids, artifact = _read_native(path)
    drafter = _filled(sizes, tensors, ids, target, source=path)
    return drafter.to(target.embedding.device).train().requires_grad_(True), artifact


def native_sizes(path: Path) -> Any:
    """Read the sizes of a native drafter artefact without its tensors; ``.kind`` is its kind."""
    return _read_sizes(open_artifact(path, KIND))


def _read_native(path: Path) -> tuple[Any, dict[str, Tensor], Tensor | None, Artifact]:
    artifact = open_artifact(path, KIND)
    sizes = _read_sizes(artifact)
    with form_errors("the drafter's weights cannot be read", path / WEIGHTS):
        tensors = load_file(artifact.file(WEIGHTS))
    ids = tensors.pop(TARGET_IDS, None)
    return sizes, tensors, ids, artifact


def _read_sizes(artifact: Artifact) -> Any:
    body = read_json(artifact.file(CONFIG), "drafter configuration")
    with form_errors("the drafter's sizes cannot be read", artifact.path / CONFIG):
        kind = body.pop("kind", None)
        if kind not in DRAFTERS:
            raise ArtifactError(
                "this kind of drafter is not known",
                got=kind,
                expected=", ".join(DRAFTERS),
                source=artifact.path,
            )
        return drafter_class(kind).sizes_type.from_dict(body)


def assemble(
    sizes: Any,
    tensors: Mapping[str, Tensor],
    target_ids: Tensor | None,
    target: TargetTensors,
    *,
    source: object,
) -> Any:
    """Create a drafter from its sizes and tensors, strictly, with the target's device and dtype.

    Raises:
        ArtifactError: a tensor is missing, unknown or has the wrong shape.
    """
    drafter = _filled(sizes, tensors, target_ids, target, source=source)
    return drafter.to(target.embedding).eval().requires_grad_(False)


def _filled(
    sizes: Any,
    tensors: Mapping[str, Tensor],
    target_ids: Tensor | None,
    target: TargetTensors,
    *,
    source: object,
) -> Drafter:
    _check_ids(sizes, target_ids, source)
    shared = target.embedding, target.head, target_ids, target.transform
    said = getattr(sizes, "num_layers", 1)
    problems = [f"num_layers {said:,}"] if said > len(tensors) else []
    try:
        with torch.device("meta"):  # sizes from a damaged file may not fit in memory
            problems = problems or disagreements(
                tensors, new_drafter(sizes.kind, sizes, *shared).state_dict()
            )
    except (RuntimeError, OverflowError, TypeError) as error:  # TypeError for sizes beyond 64 bits
        problems = [str(error).partition("\n")[0][:300]]
    layers = {match[0] for name in tensors if (match := _LAYER.match(name))}
    if problems and layers and len(layers) != said:
        raise ArtifactError(
            "the drafter's configuration and its weights differ in the number of layers",
            got=f"num_hidden_layers (num_layers) {said:,} in the configuration, weights of {len(layers):,}",
            source=source,
            remedy=f"correct the configuration to {len(layers)} if it is a copy of the target's; else fetch the "
            "drafter again",
        )
    if problems:
        raise ArtifactError(
            "the drafter's tensors are not those of its configuration",
            got="; ".join(problems[:5]),
            source=source,
            remedy="the folder was put together from several drafters; export or train it again",
        )
    drafter = new_drafter(sizes.kind, sizes, *shared)
    with torch.no_grad():
        for name, parameter in drafter.state_dict().items():
            parameter.copy_(tensors[name])
    return drafter


def _check_ids(sizes: Any, target_ids: Tensor | None, source: object) -> None:
    if target_ids is not None and (
        target_ids.dtype not in (torch.int64, torch.int32)
        or target_ids.dim() != 1
        or not len(target_ids)
        or len(target_ids.unique()) != len(target_ids)
        or not 0 <= int(target_ids.min()) <= int(target_ids.max()) < sizes.vocab_size
    ):
        raise ArtifactError(
            "the drafter's target ids are not ids of the vocabulary",
            got=f"{target_ids.dtype}, {tuple(target_ids.shape)}",
            expected=f"whole numbers, each once, below {sizes.vocab_size:,}",
            source=source,
        )


def check_own_embedding(tensor: Tensor, shared: TargetTensors, source: object) -> None:
    """Check that a drafter's own input embedding (V, H) is the target's, up to rounding to bf16 or fp16.

    Raises:
        MismatchError: its shape or values differ.
    """
    ours = shared.embedding
    if tensor.shape != ours.shape:
        raise MismatchError(
            "the drafter's own input embedding does not have the target's shape",
            got=f"shape {tuple(tensor.shape)}",
            expected=f"shape {tuple(ours.shape)}",
            source=source,
            remedy="give the target that it was trained for",
        )
    rows = 0
    for a, b in zip(tensor.split(_ROWS), ours.cpu().split(_ROWS)):
        near = torch.isclose(a.cpu().float(), b.float(), rtol=2.0**-7, atol=2.0**-24)
        rows += int((~near).any(1).sum())
    if rows:
        raise MismatchError(
            "the drafter was trained with its own input embedding, and would be run with the target's",
            got=f"{rows:,} of {len(ours):,} rows differ",
            expected="the target's rows, up to rounding",
            source=source,
            remedy="give the target that it was trained for; a drafter whose embedding was trained can be run by "
            "vLLM, which keeps it",
        )


def check_target(artifact: Artifact, fingerprint: str, *, target: Path, quiet: bool = False) -> bool:
    """Check that a drafter was trained for a target, or for another quantisation of it, which is reported.

    Returns:
        whether it was trained for exactly these weights, as far as is known.

    Raises:
        MismatchError: it was trained for another target.
    """
    expected = artifact.meta.get("target_fingerprint")
    if expected is not None and expected != fingerprint:
        norms = artifact.meta.get("target_norms")
        if norms is not None and norms == norms_fingerprint(target):
            if quiet:
                return False
            say(
                f"The drafter was trained for {artifact.meta.get('target_name')}, which has the same norms as "
                f"{model_name(target)}: another quantisation of it, or a fine-tune. The accepted length may differ."
            )
            return False
        raise MismatchError(
            "this drafter was trained for another target",
            got=f"target {target} with fingerprint {fingerprint[:12]}…",
            expected=f"fingerprint {str(expected)[:12]}… ({artifact.meta.get('target_name', 'unknown')})",
            source=artifact.path,
            remedy="give the target that it was trained for, or train a drafter for this one",
        )
    return True
