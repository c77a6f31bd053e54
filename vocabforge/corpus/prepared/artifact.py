"""Prepared data: an artefact of packed rows with loss masks, found by content.

Its key is a hash of everything that determines a row: the content of the source files (never their names or
times), the tokenizer, the chat template, all options, and the format version.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.artifact import MANIFEST, Artifact, open_artifact, write_artifact
from ...core.console import say
from ...core.distributed import rank
from ...core.errors import ArtifactError, MismatchError, UsageError
from ...core.files import form_errors
from ...core.folders import clear_up, take_away
from ..tokenizer.tokenizer import TextTokenizer, check_fingerprint
from .options import READ_FORMATS, PrepareOptions, content_key
from .packing import PackedRows
from .writer import ARRAYS, PROMPTS, SPLITS, SplitFigures, map_tensor, write_splits

KIND = "prepared-data"
_KEY_NAME = 20  # characters of the key in a folder's name


@dataclass(frozen=True, eq=False)
class PreparedData:
    """Opened prepared-data artefact; its rows are memory-mapped."""

    artifact: Artifact
    train: PackedRows
    heldout: PackedRows

    @property
    def key(self) -> str:
        """Hash of everything that determines the rows."""
        return str(self.artifact.meta["key"])

    @property
    def figures(self) -> Mapping[str, Any]:
        """Counts, as returned by :func:`~vocabforge.corpus.prepared.writer.write_splits`."""
        return self.artifact.meta["figures"]

    @property
    def prompts(self) -> Path:
        """Held-out questions in Spec-Bench format."""
        return self.artifact.file(PROMPTS)

    def digest(self) -> str:
        """Return the SHA-256 of the packed arrays' hashes; equal digests mean equal batches."""
        files = self.artifact.manifest["files"]
        names = sorted(_file(split, name) for split in SPLITS for name in ARRAYS)
        return hashlib.sha256("".join(files[name]["sha256"] for name in names).encode()).hexdigest()


def _file(split: str, name: str) -> str:
    return f"{split}.{name}.safetensors"


def prepare_in(
    folder: Path,
    tokenizer: TextTokenizer,
    train: Sequence[Path | str],
    heldout: Sequence[Path | str],
    options: PrepareOptions,
) -> PreparedData:
    """Find prepared data by key in a cache folder, or create them there; safe for concurrent processes.

    Raises:
        DataError: nothing to learn from, or an unreadable source.
        ConfigError: too few documents to hold some out.
    """
    key, body = content_key(tokenizer, train, heldout, options)
    path = folder / key[:_KEY_NAME]
    clear_up(path)  # leftovers of killed processes
    if (prepared := find_prepared(path, key)) is not None:
        say(f"Using prepared data with the same content: {path}")
        return prepared
    try:
        return write_prepared(path, tokenizer, train, heldout, options, keyed=(key, body), overwrite=False)
    except UsageError:
        prepared = find_prepared(path, key)  # another process was faster
        if prepared is None:
            raise
        return prepared


def find_prepared(path: Path, key: str) -> PreparedData | None:
    """Return the artefact at ``path`` if it is complete and has this key; a damaged artefact is removed.

    Rank 0 hashes every file, other ranks only compare sizes.
    """
    if not (path / MANIFEST).is_file():
        return None
    try:
        prepared = load_prepared(path, verify=rank() == 0)
    except ArtifactError as error:
        say(f"{error.message} ({path}); preparing it again")
        with contextlib.suppress(OSError):
            take_away(path)
        return None
    return prepared if prepared.key == key else None


def write_prepared(
    path: Path,
    tokenizer: TextTokenizer,
    train: Sequence[Path | str],
    heldout: Sequence[Path | str],
    options: PrepareOptions,
    *,
    keyed: tuple[str, dict[str, Any]] | None = None,
    ray: str | None = None,
    overwrite: bool = False,
) -> PreparedData:
    """Read, render, tokenise and pack all documents into the artefact ``path``, in bounded memory.

    Without ``heldout``, the last documents of ``train`` are held out. ``keyed`` is a known
    :func:`content_key`, ``ray`` the address of a cluster that makes the sequences.

    Raises:
        DataError: nothing to learn from, or an unreadable source.
        ConfigError: too few documents to hold some out.
        UsageError: ``path`` exists.
    """
    key, body = keyed or content_key(tokenizer, train, heldout, options)
    meta: dict[str, Any] = {
        "key": key,
        "key_of": body,
        "length": options.length,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "chat_template": body["tokenizer"]["chat_template"],
        "options": body["options"],
    }
    record = {
        "tokenizer": str(tokenizer.source),
        "train": [str(path) for path in train],
        "heldout": [str(path) for path in heldout],
        "chat_template": tokenizer.chat_template,
        "named_templates": dict(tokenizer.named_templates),
    }
    with write_artifact(path, KIND, meta, config=record, overwrite=overwrite) as folder:
        meta["figures"] = write_splits(folder, tokenizer, (train, heldout), options, ray)
    return load_prepared(path, verify=False)


def load_prepared(path: Path, *, verify: bool = True) -> PreparedData:
    """Open a prepared-data artefact; without ``verify`` only sizes are compared.

    Raises:
        ArtifactError: not a prepared-data artefact, damaged, or of another version.
    """
    artifact = open_artifact(path, KIND, verify=verify)
    with form_errors("the prepared data cannot be read", path, remedy="run prepare-data again"):
        return _opened(artifact)


def _opened(artifact: Artifact) -> PreparedData:
    path = artifact.path
    version = artifact.meta.get("key_of", {}).get("format")
    if version not in READ_FORMATS:
        raise ArtifactError(
            "the prepared data were made by another version of the format",
            got=f"format {version}",
            expected=f"format {' or '.join(map(str, READ_FORMATS))}",
            source=path,
            remedy="run prepare-data again",
        )
    rows = {}
    for split in SPLITS:
        figures = SplitFigures.from_dict(artifact.meta["figures"][split])
        arrays = {}
        for name in ARRAYS:
            file = artifact.file(_file(split, name))
            with form_errors("the prepared data cannot be read", file, remedy="run prepare-data again"):
                arrays[name] = map_tensor(file, name)
        shapes = {name: array.shape for name, array in arrays.items()}
        if len(set(shapes.values())) != 1 or shapes["input_ids"][1:] != (artifact.meta["length"],):
            raise ValueError(f"{split} rows of {shapes}, of {artifact.meta['length']} tokens each")
        rows[split] = PackedRows(**arrays, tokens=figures.tokens)
    return PreparedData(artifact, rows["train"], rows["heldout"])


def check_belongs(prepared: PreparedData, tokenizer: TextTokenizer) -> None:
    """Check that prepared data match the tokenizer; print a note if the chat template differs.

    Raises:
        MismatchError: the tokenizer differs, or token ids are beyond its range.
    """
    meta, path = prepared.artifact.meta, prepared.artifact.path
    check_fingerprint(
        tokenizer.fingerprint,
        str(meta["tokenizer_fingerprint"]),
        expected_from=tokenizer.source,
        got_from=f"the prepared data {path}",
        remedy="run prepare-data again with the target's own tokenizer.json",
    )
    if int(meta["vocab_size"]) > tokenizer.vocab_size:
        raise MismatchError(
            "the prepared data hold token ids beyond the tokenizer's",
            got=f"ids below {meta['vocab_size']}",
            expected=f"ids below {tokenizer.vocab_size}",
            source=path,
            remedy="run prepare-data again with the target's own tokenizer.json",
        )
    if meta["chat_template"] != tokenizer.templates_digest:
        say(
            f"Note: the prepared data {path} were rendered with another chat template than the target's; "
            "prepare them again if the target is served with its own template"
        )
