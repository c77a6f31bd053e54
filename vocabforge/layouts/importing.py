"""Convert drafters of any layout to native artefacts, from which training starts."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from ..core.artifact import MANIFEST, open_artifact
from ..core.errors import ArtifactError
from ..core.files import sha256_file
from ..core.hub import hub_name
from ..models.drafters.io import KIND, save_drafter
from ..models.target.fingerprint import target_facts, target_fingerprint
from ..models.target.head import load_target_tensors
from .registry import load_drafter

_KEPT = ("tokenizer_fingerprint", "eos_ids")  # metadata that also holds for the converted drafter
_READ = (".json", ".safetensors", ".bin", ".pt", ".gguf")  # suffixes of the files that layouts consist of


def is_native(path: Path) -> bool:
    """Return whether a folder holds a native drafter artefact, which needs no conversion."""
    with contextlib.suppress(ArtifactError):
        return (path / MANIFEST).is_file() and open_artifact(path, verify=False).kind == KIND
    return False


def import_drafter(path: Path, target: Path, output: Path) -> bool:
    """Convert a drafter in any layout to a native fp32 artefact.

    An existing conversion of the same files for the same target is kept.

    Returns:
        Whether the artefact was written by this call.

    Raises:
        VocabForgeError: the drafter cannot be read or does not fit the target.
    """
    fingerprint = target_fingerprint(target)
    digest = fingerprint if path.resolve() == target.resolve() else folder_digest(path)
    with contextlib.suppress(ArtifactError):
        made = open_artifact(output, KIND)
        made_from = made.manifest["parents"].get("layout"), made.meta.get("target_fingerprint")
        if made_from == (digest, fingerprint):
            return False
    drafter, artifact = load_drafter(path, load_target_tensors(target), target)
    meta = {} if artifact is None else {name: artifact.meta[name] for name in _KEPT if name in artifact.meta}
    save_drafter(
        output,
        drafter,
        meta | target_facts(target),
        parents={"layout": digest},
        config={"target": hub_name(target), "imported": hub_name(path)},
        overwrite=True,
    )
    return True


def folder_digest(path: Path) -> str:
    """Return a SHA-256 over names and contents of a layout's files; equal for copies of a folder."""
    files = sorted(
        file for file in path.glob("*") if file.suffix in _READ and file.name != MANIFEST and file.is_file()
    )
    body = json.dumps([[file.name, sha256_file(file)] for file in files])
    return hashlib.sha256(body.encode()).hexdigest()
