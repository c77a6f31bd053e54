"""Artefacts: folders of data with a manifest that is written last and verified on every load.

A folder without a valid ``manifest.json`` is not an artefact. Writers fill a hidden sibling folder and
rename it into place, so an interrupted run leaves nothing under the final name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ArtifactError, DataError, UsageError
from .files import atomic_write_json, check_writable, disk_errors, fsync_path, read_json, sha256_file
from .folders import is_vacant, leftovers, mend, put_in_place, sibling
from .progress import ProgressBar
from .provenance import git_revision, hide_secrets, package_versions

REQUIRED = {"schema_version": int, "kind": str, "meta": dict, "files": dict, "content_hash": str}
_RECORD = {"parents", "config", "versions", "git_revision", "command", "created"}


def content_hash(kind: str, meta: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    """Hash the kind, the meta and the hash of every file."""
    body = {"kind": kind, "meta": meta, "files": {n: f["sha256"] for n, f in sorted(files.items())}}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def record_hash(manifest: Mapping[str, Any]) -> str:
    """Hash the whole manifest except ``record_hash``, including fields that are not part of the content."""
    # A JSON round trip turns all keys into strings, so they sort the same way after reading.
    body = json.loads(json.dumps({key: value for key, value in manifest.items() if key != "record_hash"}))
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def record_holds(manifest: Mapping[str, Any]) -> bool:
    """Return whether the manifest is unchanged, including the fields outside the content hash."""
    recorded = manifest.get("record_hash")
    if recorded is None:  # earlier versions wrote no record_hash and only these keys
        return set(manifest) <= {*REQUIRED, *_RECORD, "record_hash"}
    return bool(recorded == record_hash(manifest))


MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_RECORDED = {"parents": dict, "versions": dict, "command": list}
_CARD = "README.md"  # not in the manifest, so that it can be edited, also on the Hub
_LOOKS, _LOOK_S = 5, 0.002
_REMEDY = "the folder was modified or truncated after it was written; create it again"


@dataclass(frozen=True)
class Artifact:
    """Verified artefact folder.

    Attributes:
        kind: ``counts``, ``subset``, ``drafter``, ...
        manifest: the parsed manifest; ``manifest["meta"]`` holds what the writer recorded.
    """

    path: Path
    kind: str
    manifest: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        """Facts that the writer recorded about the content."""
        return self.manifest["meta"]

    @property
    def content_hash(self) -> str:
        """Hash over kind, meta and every file's hash; equal hashes mean equal artefacts."""
        return str(self.manifest["content_hash"])

    def file(self, name: str) -> Path:
        """Return the path of a file listed in the manifest.

        Raises:
            ArtifactError: the manifest does not list the file.
        """
        if name not in self.manifest["files"]:
            raise ArtifactError(
                f"the {self.kind} artefact holds no {name}",
                got=sorted(self.manifest["files"]),
                expected=name,
                source=self.path,
            )
        return self.path / name


@contextlib.contextmanager
def write_artifact(
    path: Path,
    kind: str,
    meta: Mapping[str, Any],
    *,
    parents: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Iterator[Path]:
    """Write an artefact: the ``with`` body fills the yielded folder, which is then renamed to ``path``.

    Args:
        meta: JSON-serialisable facts that define the content (sizes, fingerprints, options).
        parents: content hashes of the source artefacts, by role.
        overwrite: replace an existing artefact at ``path``; other folders are never replaced.

    Raises:
        UsageError: ``path`` exists and may not be replaced.
        VocabForgeError: the disk is full or not writable.
    """
    check_output(path, overwrite=overwrite)
    final = Path(os.path.realpath(path))  # renaming must replace the folder, not a link to it
    temporary = sibling(final, "tmp")
    try:
        with disk_errors(path):
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
            yield temporary
            with ProgressBar(f"hash {path.name}"):
                described = _describe(temporary, kind, meta)
            manifest = {
                **described,
                "parents": dict(parents or {}),
                "config": dict(config) if config is not None else None,
                "versions": dict(package_versions()),
                "git_revision": git_revision(),
                "command": [hide_secrets(word) for word in sys.argv],
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            manifest["record_hash"] = record_hash(manifest)
            atomic_write_json(temporary / MANIFEST, manifest)
            check_output(path, overwrite=overwrite)  # another run may have written it meanwhile
            put_in_place(temporary, final, overwrite=overwrite)
            fsync_path(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _describe(folder: Path, kind: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the manifest that defines the content; flush the files to disk."""
    files = {}
    for item in sorted(folder.rglob("*")):
        fsync_path(item)
        name = item.relative_to(folder).as_posix()
        if item.is_file() and name != _CARD:
            files[name] = {"sha256": sha256_file(item), "bytes": item.stat().st_size}
    if MANIFEST in files:
        raise ValueError(f"{MANIFEST} must not be written by the body of write_artifact")
    # Store what a reader will get: tuples become lists, numeric keys become strings.
    plain = json.loads(json.dumps(dict(meta), allow_nan=False))
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "meta": plain,
        "files": files,
        "content_hash": content_hash(kind, plain, files),
    }


def check_output(path: Path, *, overwrite: bool = False) -> None:
    """Check before any work is done that the output path can be written.

    Also recover from a killed run: see :func:`~vocabforge.core.folders.mend`.

    Raises:
        UsageError: ``path`` is a file, a folder that is not an artefact, or an artefact while ``overwrite``
            is off; or the parent folder is not writable.
    """
    final = Path(os.path.realpath(path))
    with disk_errors(path):
        mend(final)
        for _ in range(_LOOKS):
            if is_vacant(final):
                check_writable(final.parent, path)
                return
            ours = final.is_dir() and _is_artifact(final)
            if ours:
                break
            time.sleep(_LOOK_S)  # another writer may be replacing it at this moment
    if not ours:
        raise UsageError(
            "the output exists and is not an artefact of VocabForge",
            got=path,
            expected="a new folder",
            remedy="choose another folder; nothing was changed",
        )
    if not overwrite:
        raise UsageError(
            "the output exists already",
            got=path,
            expected="a new folder",
            remedy="choose another folder, or pass --overwrite to replace it",
        )


def _is_artifact(path: Path) -> bool:
    """Check that the manifest is ours: other programs also write files named manifest.json."""
    try:
        manifest = read_json(path / MANIFEST)
    except DataError:
        return False
    return isinstance(manifest, dict) and all(key in manifest for key in REQUIRED)


def open_artifact(path: Path, kind: str | tuple[str, ...] | None = None, *, verify: bool = True) -> Artifact:
    """Open an artefact and verify every file against its manifest.

    Args:
        kind: required kind or kinds; None accepts any.
        verify: also compare the hashes of the files (sizes are always compared).

    Raises:
        ArtifactError: missing or unreadable manifest, wrong kind, missing or modified file.
    """
    kinds = (kind,) if isinstance(kind, str) else kind
    if not (path / MANIFEST).is_file():
        raise no_artifact(path, kinds or (), MANIFEST)
    manifest = _read_manifest(path)
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise ArtifactError(
            "the artefact was written by another version of the format",
            got=f"schema {manifest['schema_version']}",
            expected=f"schema {SCHEMA_VERSION}",
            source=path,
            remedy="create it again with this version, or use the version that wrote it",
        )
    if kinds and manifest["kind"] not in kinds:
        raise ArtifactError(
            "the artefact is of another kind",
            got=manifest["kind"],
            expected=" or ".join(kinds),
            source=path,
            remedy=maker_of(kinds),
        )
    try:
        with ProgressBar(f"check {path.name}"):
            _verify_files(path, manifest, hashes=verify)
    except (OSError, RuntimeError, ValueError) as error:  # including symlink loops and NUL bytes in names
        where = getattr(error, "filename", None) or path
        remedy = "check its permissions and the disk" if isinstance(error, OSError) else _REMEDY
        raise ArtifactError(
            "a file of the artefact cannot be read", got=error, source=where, remedy=remedy
        ) from error
    return Artifact(path, str(manifest["kind"]), manifest)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = read_json(path / MANIFEST, "artefact manifest")
    except DataError as error:
        raise ArtifactError(error.message, got=error.got, source=path / MANIFEST, remedy=_REMEDY) from error
    whole = (
        isinstance(manifest, dict)
        and all(isinstance(manifest.get(key), form) for key, form in REQUIRED.items())
        and all(isinstance(manifest.get(key) or form(), form) for key, form in _RECORDED.items())
        and all(
            isinstance(entry, dict)
            and isinstance(entry.get("sha256"), str)
            and isinstance(entry.get("bytes"), int)
            for entry in manifest["files"].values()
        )
    )
    if not whole:
        raise ArtifactError(
            "the artefact's manifest is incomplete",
            expected=f"keys {', '.join(REQUIRED)}, and sha256 and bytes of every file",
            source=path / MANIFEST,
            remedy=_REMEDY,
        )
    return manifest


def _verify_files(path: Path, manifest: Mapping[str, Any], *, hashes: bool) -> None:
    for name, entry in manifest["files"].items():
        file = path / name
        if path.resolve() not in file.resolve().parents:
            problem = "the manifest names a file outside its folder"
            raise ArtifactError(problem, got=name, source=path, remedy=_REMEDY)
        if not file.is_file():
            raise ArtifactError(
                "a file of the artefact is missing", expected=file, source=path, remedy=_REMEDY
            )
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise ArtifactError(
                "a file of the artefact differs in size from its manifest",
                got=f"{size:,} bytes",
                expected=f"{entry['bytes']:,} bytes",
                source=file,
                remedy=_REMEDY,
            )
        if hashes and (digest := sha256_file(file)) != entry["sha256"]:
            raise ArtifactError(
                "a file of the artefact differs in content from its manifest",
                got=f"sha256 {digest[:16]}…",
                expected=f"sha256 {entry['sha256'][:16]}…",
                source=file,
                remedy=_REMEDY,
            )
    expected = content_hash(manifest["kind"], manifest["meta"], manifest["files"])
    if expected != manifest["content_hash"] or not record_holds(manifest):
        raise ArtifactError("the artefact's manifest was edited", source=path / MANIFEST, remedy=_REMEDY)


_MAKERS = {
    "counts": "count-freq",
    "subset": "select-vocab",
    "clusters": "cluster-vocab",
    "overlap": "compare-vocab --output",
    "responses": "regenerate",
    "prepared-data": "prepare-data",
    "capture": "capture",
    "drafter": "train-drafter",
    "draft-head": "train-drafter",
    "evaluation": "eval",
}


def maker_of(kinds: Sequence[str]) -> str | None:
    """Return a sentence naming the command that creates the first creatable kind, or None."""
    return next((f"vocabforge {_MAKERS[kind]} makes one" for kind in kinds if kind in _MAKERS), None)


def no_artifact(path: Path, kinds: Sequence[str], manifest: str) -> ArtifactError:
    """Return the error for a folder without ``manifest`` that should be an artefact of one of ``kinds``."""
    maker = maker_of(kinds)
    remedy = f"check the path; {maker}, but only if the run completes" if maker else "check the path"
    inside = sorted(file.parent.name for file in path.glob(f"*/{manifest}"))
    if kinds == ("subset",) and re.fullmatch(r"\d+[kK]?", path.name):
        remedy = f"a folder is expected; vocabforge select-vocab --size {path.name} makes one"
    if inside:
        remedy = f"the folder contains artefacts: {', '.join(inside[:8])}"
    final = Path(os.path.realpath(path))
    if aside := leftovers(final, "old"):
        remedy = f"a run was killed while replacing it; the previous artefact is {aside[-1]}: move it back"
    return ArtifactError(
        "this is not a VocabForge artefact",
        got=f"{path} ({f'no {manifest} in it' if path.is_dir() else 'a file' if path.exists() else 'no such folder'})",
        expected=f"an artefact folder ({' or '.join(kinds or ('any kind',))})",
        remedy=remedy,
    )
