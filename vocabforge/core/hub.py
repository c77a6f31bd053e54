"""Resolve models and tokenizers: local folders, GGUF files and names of the Hugging Face Hub.

A model is a folder, a GGUF file or a Hub name: ``Qwen/Qwen3-0.6B``, ``Qwen/Qwen3-0.6B@REVISION`` or
``OWNER/NAME:FILE.gguf``.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from .distributed import rank
from .errors import DataError, VocabForgeError

# Names that huggingface_hub accepts.
_NAME = re.compile(r"(?!.*(?:--|\.\.))([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(\w[\w./-]*))?")
# A file in a repository: OWNER/NAME:FILE.gguf, OWNER/NAME@REVISION:FILE.gguf.
_HUB_GGUF = re.compile(r"(.+?):([\w./ -]+\.gguf)", re.IGNORECASE)
# Recorded name of a converted file: NAME.gguf@sha256:HASH.
_CONVERTED = re.compile(r"([^/]+\.gguf)@sha256:([0-9a-f]{12,64})", re.IGNORECASE)
_SNAPSHOT = re.compile(r"models--(.+?)--(.+)/snapshots/([0-9a-f]{40})$")
_CARD = "README.md"
# Drafters shipped with the package, by folder name.
_SHIPPED = Path(__file__).resolve().parents[1] / "drafters"
_TEXTS = ["*.json", "*.jinja", "*.model", "*.txt", _CARD]
_LEFT_OUT = ["*/*", "consolidated*"]  # the same weights in another layout
_PICKLES = ["pytorch_model*.bin", "medusa_lm_head.pt"]  # of drafters that have no safetensors


def model_folder(path: Path, *, weights: bool = True) -> Path:
    """Resolve ``path`` to a local Hugging Face folder.

    Lookup order: an existing path, a drafter shipped with the package, a Hub name. A GGUF file, or a folder
    with one, is converted once into the cache (:func:`~vocabforge.core.gguf.gguf_folder`). A Hub name is
    looked up in the cache of huggingface_hub, then downloaded: configuration, tokenizer, model card and
    safetensors weights (pickles of a drafter without any), or the named GGUF file. Any other path is returned
    unchanged.

    Args:
        weights: False for the tokenizer only.

    Raises:
        DataError: the Hub has no such model or revision, or denies access; or the GGUF file cannot be
            converted.
        VocabForgeError: the model is not cached and the Hub cannot be reached.
    """
    from .gguf import find_gguf, gguf_folder  # imports safetensors: too slow for --help

    # Path.exists raises for names that are too long.
    if os.path.exists(path):
        file = find_gguf(path)
        return path if file is None else gguf_folder(file, weights=weights)
    if len(path.parts) == 1 and os.path.isfile(_SHIPPED / path / "manifest.json"):
        return _SHIPPED / path
    if (recorded := _CONVERTED.fullmatch(path.name)) is not None:
        return _converted(path, recorded[1], recorded[2], weights)
    part = _HUB_GGUF.fullmatch(path.as_posix())
    if part is not None and _NAME.fullmatch(part[1]):
        return gguf_folder(_hub_file(path, part[1], part[2]), weights=weights)
    match = _NAME.fullmatch(path.as_posix())
    if match is None or path.suffix.lower() == ".gguf":  # a missing file, not a repository
        return path
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
    from huggingface_hub.utils import disable_progress_bars

    def snapshot(*more: str, **where: Any) -> Path:
        patterns = [*_TEXTS, *(["*.safetensors"] if weights else []), *more]
        return Path(
            huggingface_hub.snapshot_download(
                match[1], revision=match[2], allow_patterns=patterns, ignore_patterns=_LEFT_OUT, **where
            )
        )

    cached = None
    with contextlib.suppress(LocalEntryNotFoundError):
        cached = snapshot(local_files_only=True)
    if cached is not None and _is_whole(cached, weights):
        return cached
    if rank() > 0:
        disable_progress_bars()
    try:
        folder = snapshot()
        return snapshot(*_PICKLES) if weights and _is_pickled_drafter(folder) else folder
    except Exception as error:  # includes errors of the HTTP library
        if cached is not None and isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
            return cached  # the reader reports missing files
        raise _refusal(path, match[1], error) from error


def _converted(path: Path, name: str, digest: str, weights: bool) -> Path:
    from .gguf import find_converted

    folder = find_converted(name, digest, weights=weights)
    if folder is None:
        raise DataError(
            "this converted GGUF file is not in the cache",
            got=path,
            expected=f"a file {name} with SHA-256 {digest[:12]}… that was converted on this machine",
            remedy="pass the GGUF file itself",
        )
    return folder


def _hub_file(path: Path, name: str, file: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    match = _NAME.fullmatch(name)
    assert match is not None
    where = {"repo_id": match[1], "filename": file, "revision": match[2]}
    try:
        return Path(huggingface_hub.hf_hub_download(**where))
    except Exception as error:  # includes errors of the HTTP library
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise DataError(
                "the repository has no such file",
                got=file,
                source=f"{huggingface_hub.constants.ENDPOINT}/{match[1]}/tree/main",
                remedy="check the file's name there",
            ) from error
        raise _refusal(path, match[1], error) from error


def _is_whole(folder: Path, weights: bool) -> bool:
    """Check that all files are present: other programs download single files into the cache."""
    from .files import read_json

    if not (folder / "tokenizer.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not weights:
        return True
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    return all((folder / name).is_file() for name in set(read_json(index)["weight_map"].values()))


def _is_pickled_drafter(folder: Path) -> bool:
    """Return whether a folder without safetensors is a drafter's by its size: a target's pickles are not read."""
    from .files import read_json

    if any(folder.glob("*.safetensors")):
        return False
    with contextlib.suppress(DataError):
        body = read_json(folder / "config.json", finite=False)
        return isinstance(body, dict) and (body.get("num_hidden_layers") == 1 or "medusa_num_heads" in body)
    return False


def _refusal(path: Path, repository: str, error: Exception) -> VocabForgeError:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = constants.ENDPOINT
    if isinstance(error, GatedRepoError):
        return DataError(
            "the model is gated: the Hub gives it only to users who accepted its terms",
            got=path,
            source=f"{hub}/{repository}",
            remedy="accept the terms there, then set HF_TOKEN or run: hf auth login",
        )
    if isinstance(error, RepositoryNotFoundError):
        return DataError(
            "there is no such model",
            got=f"{path}: no folder here, and no model at {hub}",
            expected="a folder, or a Hub name such as Qwen/Qwen3-0.6B",
            remedy="check the name; for a private model set HF_TOKEN or run: hf auth login",
        )
    if isinstance(error, RevisionNotFoundError):
        return DataError(
            "the model has no such revision",
            got=path,
            expected="NAME@REVISION with a branch, a tag or a commit",
            source=f"{hub}/{repository}/commits",
        )
    if isinstance(error, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        offline = constants.HF_HUB_OFFLINE
        return VocabForgeError(
            "the model is neither here nor in the cache, and the Hub cannot be asked",
            got=f"{path}: {'HF_HUB_OFFLINE is set' if offline else f'no usable answer from {hub}'}",
            expected="a folder, or a Hub name that was downloaded before",
            source=constants.HF_HUB_CACHE,
            remedy=f"check the path; or {'unset HF_HUB_OFFLINE' if offline else 'check the network'}, or copy a folder "
            "from a machine with a network (hf download NAME --local-dir DIR)",
        )
    return VocabForgeError(
        "the model cannot be fetched from the Hub",
        got=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
        source=f"{hub}/{repository}",
        remedy="check disk space and network; the same command resumes",
    )


def hub_name(path: Path, *, revision: bool = True) -> str:
    """Return a machine-independent name of a model for records.

    ``NAME@COMMIT`` for a folder in the Hub cache, ``FILE.gguf@sha256:HASH`` for a converted GGUF file,
    otherwise the path.
    """
    from .gguf import gguf_source

    if (source := gguf_source(path)) is not None:
        return f"{source[0]}@sha256:{source[1]}" if revision else source[0]
    if path.parent == _SHIPPED:
        return path.name
    match = _SNAPSHOT.search(path.as_posix())
    if match is None:
        return str(path)
    return f"{match[1]}/{match[2]}" + (f"@{match[3]}" if revision else "")


def model_name(path: Path) -> str:
    """Return the last part of a model's name."""
    from .gguf import gguf_source

    if (source := gguf_source(path)) is not None:
        return Path(source[0]).stem
    match = _SNAPSHOT.search(path.as_posix())
    return path.resolve().name if match is None else match[2]


def model_licence(folder: Path) -> str | None:
    """Return the licence stated in the model card of a folder, or None."""
    if not (folder / _CARD).is_file():
        return None
    import huggingface_hub
    import yaml

    try:
        facts = huggingface_hub.metadata_load(folder / _CARD) or {}
    except (OSError, ValueError, yaml.YAMLError):
        return None
    licence = facts.get("license_name") or facts.get("license")
    # One line: it is copied into other model cards.
    return " ".join(str(licence).split())[:80] if licence else None
