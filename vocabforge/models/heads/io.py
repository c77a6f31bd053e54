"""Trained draft heads on disk: ``draft-head`` artefacts, bound to a drafter, target and tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...core.artifact import MANIFEST, Artifact, open_artifact, write_artifact
from ...core.errors import ArtifactError, DataError, MismatchError
from ...core.files import atomic_write_json, form_errors, read_json, sha256_file
from ...core.registry import resolve
from ..checkpoint import INDEX, checkpoint_files, disagreements
from ..drafters.io import WEIGHTS as DRAFTER_WEIGHTS
from .interface import HeadSizes
from .registry import HEADS
from .router import Router

KIND = "draft-head"
WEIGHTS, CONFIG, ASSIGNMENT = "head.safetensors", "head.json", "assignment"
_DRAFTER_FILES = (DRAFTER_WEIGHTS, "model.safetensors")
_SUFFIXES = (".safetensors", ".bin", ".pt")
# HeadOwner's fields -> their keys in the artefact's meta
_OWNER_KEYS = {
    "drafter": "drafter_digest",
    "target": "target_fingerprint",
    "tokenizer": "tokenizer_fingerprint",
}


@dataclass(frozen=True)
class HeadOwner:
    """The owner of a draft head: :func:`drafter_digest`, and the fingerprints of target and tokenizer."""

    drafter: str
    target: str
    tokenizer: str

    def to_meta(self) -> dict[str, str]:
        return {key: getattr(self, name) for name, key in _OWNER_KEYS.items()}


@dataclass(frozen=True)
class LoadedHead:
    """A loaded draft head: its kind, frozen weights and artefact.

    The artefact's meta may have default values of ``shortlist`` or ``budgets``.
    """

    kind: str
    module: nn.Module
    artifact: Artifact


def drafter_digest(path: Path) -> str:
    """Identify the drafter in a folder: the SHA-256 of its weight file, or of its shards' hashes by name.

    Raises:
        DataError: the folder has no weights.
    """
    for name in _DRAFTER_FILES:
        if not (path / name).is_file():
            continue
        if (path / MANIFEST).is_file():
            entry = open_artifact(path, verify=False).manifest["files"].get(name)
            if entry is not None:
                return str(entry["sha256"])
        return sha256_file(path / name)
    if (path / INDEX).is_file() or any(file.suffix in _SUFFIXES for file in path.glob("*")):
        shards = "".join(sha256_file(file) for file in checkpoint_files(path, pickles=True))
        return hashlib.sha256(shards.encode()).hexdigest()
    raise DataError("no drafter here", got=path, expected=" or ".join(_DRAFTER_FILES))


def save_head(
    path: Path,
    kind: str,
    module: nn.Module,
    owner: HeadOwner,
    meta: Mapping[str, Any] | None = None,
    *,
    parents: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write the artefact: parameters, a router's clusters, sizes and metadata."""
    head: Any = module
    body = {"kind": kind, "sizes": head.head_sizes.to_dict()}
    with write_artifact(
        path,
        KIND,
        {"head": kind, **owner.to_meta(), **dict(meta or {})},
        parents=parents,
        config=config,
        overwrite=overwrite,
    ) as folder:
        save_file(head_tensors(module), folder / WEIGHTS)
        atomic_write_json(folder / CONFIG, body)


def head_tensors(module: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return the parameters, optionally converted to another dtype, and a router's clusters."""
    tensors = {name: p.detach().to("cpu", dtype).contiguous() for name, p in module.named_parameters()}
    if isinstance(module, Router):
        tensors[ASSIGNMENT] = module.assignment.to("cpu", torch.int32)
    return tensors


def load_head(
    path: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> LoadedHead:
    """Load a draft head, strictly; ``dtype`` None keeps the stored dtype.

    Raises:
        ArtifactError: the artefact is damaged or not a draft head, or its tensors do not match its sizes.
    """
    artifact = open_artifact(path, KIND)
    body = read_json(artifact.file(CONFIG), "draft head's sizes")
    kind = body.get("kind") if isinstance(body, dict) else None
    if not isinstance(kind, str) or kind not in HEADS or kind != artifact.meta.get("head"):
        raise ArtifactError(
            "this kind of draft head is not known", got=kind, expected=", ".join(HEADS), source=path
        )
    with form_errors("the draft head's sizes cannot be read", artifact.path / CONFIG):
        sizes = HeadSizes.from_dict(body.get("sizes") or {})
    again = "train it again with train-drafter"
    with form_errors("the draft head's weights cannot be read", path, remedy=again):
        tensors = load_file(artifact.file(WEIGHTS))
    most = max((tensor.numel() for tensor in tensors.values()), default=0)
    if (sizes.depth or 0) > len(tensors) or any((size or 0) > most for size in astuple(sizes)):
        raise ArtifactError(
            "the draft head's tensors are not those of its sizes",
            got=f"{len(tensors)} tensors of at most {most:,} elements; {sizes}",
            source=path,
            remedy=again,
        )
    new_module = resolve(HEADS, kind, "draft head").new_module
    with torch.device("meta"):  # sizes that are only claimed allocate nothing
        blank = new_module(sizes)
    if blank is None:
        raise ArtifactError(
            "this kind of draft head has nothing to load",
            got=kind,
            expected="a kind with weights: a ranker, a low-rank head or a router",
            source=path,
        )
    _checked(blank, tensors, path)
    module: Any = new_module(sizes)
    fill_head(module, tensors, path)
    return LoadedHead(kind, module.to(device, dtype).eval().requires_grad_(False), artifact)


def fill_head(module: nn.Module, tensors: Mapping[str, Tensor], source: object) -> None:
    """Copy the output of :func:`head_tensors` into a module of the same sizes.

    Raises:
        ArtifactError: the tensors do not match its sizes.
    """
    with torch.no_grad():
        for name, tensor in _checked(module, tensors, source).items():
            tensor.copy_(tensors[name])


def _checked(module: nn.Module, tensors: Mapping[str, Tensor], source: object) -> dict[str, Tensor]:
    """Return the module's tensors by name, if those given have their shapes."""
    wanted: dict[str, Tensor] = dict(module.named_parameters())
    if isinstance(module, Router):
        wanted[ASSIGNMENT] = module.assignment
    problems = disagreements(tensors, wanted)
    if not problems and isinstance(module, Router):
        low, high = int(tensors[ASSIGNMENT].min()), int(tensors[ASSIGNMENT].max())
        if low < 0 or high >= module.clusters:
            problems.append(f"clusters {low} to {high} of {module.clusters}")
    if problems:
        raise ArtifactError(
            "the draft head's tensors are not those of its sizes",
            got="; ".join(problems[:5]),
            source=source,
            remedy="train or export it again",
        )
    return wanted


def owner_of(artifact: Artifact) -> HeadOwner:
    """Return the owner of a draft head.

    Raises:
        ArtifactError: the artefact does not record it.
    """
    try:
        return HeadOwner(**{name: str(artifact.meta[key]) for name, key in _OWNER_KEYS.items()})
    except KeyError as error:
        raise ArtifactError(
            "the draft head does not say what it belongs to",
            got=f"no {error}",
            expected=", ".join(_OWNER_KEYS.values()),
            source=artifact.path,
            remedy="train it again with train-drafter",
        ) from error


def check_owner(artifact: Artifact, owner: HeadOwner, *, drafter: object) -> None:
    """Check that a draft head was trained for this owner; otherwise it would silently lower acceptance.

    Raises:
        MismatchError: drafter, target or tokenizer differ from ``owner``.
    """
    made = owner_of(artifact)
    for what, remedy in (
        ("target", "give the target that it was trained for"),
        ("tokenizer", "give the tokenizer that it was trained with"),
        ("drafter", "train it again on this drafter, or give its own drafter"),
    ):
        expected, got = getattr(made, what), getattr(owner, what)
        if expected != got:
            raise MismatchError(
                f"this draft head belongs to another {what}",
                got=f"{what} {got[:12]}… ({drafter})" if what == "drafter" else f"{what} {got[:12]}…",
                expected=f"{what} {expected[:12]}…",
                source=artifact.path,
                remedy=remedy,
            )
