"""Artefacts: folders of data with a manifest that is written last and verified on every load.

A folder without a valid ``manifest.json`` is not an artefact. Writers fill a hidden sibling folder and
rename it into place, so an interrupted run leaves nothing under the final name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from .errors import ArtifactError, UsageError
from .files import atomic_write_json, disk_errors, fsync_path, read_json, sha256_file

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_REQUIRED = ("schema_version", "kind", "files", "content_hash")


@dataclass(frozen=True)
class Artifact:
    """A verified artefact folder.

    Attributes:
        path: the folder.
        kind: ``counts``, ``subset``, ``drafter``, ...
        manifest: the parsed manifest; ``manifest["meta"]`` holds what the writer recorded.
    """

    path: Path
    kind: str
    manifest: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.manifest["meta"]

    @property
    def content_hash(self) -> str:
        """Hash over kind, meta and every file's hash; equal hashes mean equal artefacts."""
        return str(self.manifest["content_hash"])

    def file(self, name: str) -> Path:
        """Path of a file that the manifest lists.

        Raises:
            ArtifactError: the manifest does not list it.
        """
        if name not in self.manifest["files"]:
            raise ArtifactError(
                f"the {self.kind} artefact holds no {name}",
                got=sorted(self.manifest["files"]),
                expected=name,
                source=self.path,
            )
        return self.path / name


def _content_hash(kind: str, meta: Mapping[str, Any], files: Mapping[str, Any]) -> str:
    import hashlib
    import json

    body = {"kind": kind, "meta": meta, "files": {n: f["sha256"] for n, f in sorted(files.items())}}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _git_revision() -> str | None:
    """Revision of the source tree that VocabForge runs from, or None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"vocabforge": __version__, "python": sys.version.split()[0]}
    for name in ("torch", "transformers", "tokenizers", "accelerate"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


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
    """Write an artefact: the body of the ``with`` fills the yielded folder, then it becomes ``path``.

    Args:
        path: final folder.
        kind: artefact kind.
        meta: JSON-serialisable facts that define the content (sizes, fingerprints, options).
        parents: content hashes of the artefacts it was made from, by role.
        config: the resolved configuration, for the record.
        overwrite: replace an existing artefact at ``path``; a folder that is none is never replaced.

    Raises:
        UsageError: ``path`` exists and may not be replaced.
    """
    check_output(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    try:
        with disk_errors(path):
            yield temporary
            files = {}
            for file in sorted(p for p in temporary.rglob("*") if p.is_file()):
                name = file.relative_to(temporary).as_posix()
                files[name] = {"sha256": sha256_file(file), "bytes": file.stat().st_size}
                fsync_path(file)
            manifest = {
                "schema_version": SCHEMA_VERSION,
                "kind": kind,
                "meta": dict(meta),
                "files": files,
                "content_hash": _content_hash(kind, dict(meta), files),
                "parents": dict(parents or {}),
                "config": dict(config) if config is not None else None,
                "versions": _versions(),
                "git_revision": _git_revision(),
                "command": sys.argv,
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            atomic_write_json(temporary / MANIFEST, manifest)
            _swap(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(temporary: Path, path: Path) -> None:
    """Rename ``temporary`` to ``path``; what stood there is moved aside first and then removed."""
    aside = path.with_name(f".{path.name}.old-{os.getpid()}")
    if path.exists():
        os.replace(path, aside)
    os.replace(temporary, path)
    fsync_path(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def check_output(path: Path, *, overwrite: bool = False) -> None:
    """Refuse, before any work is done, an output path that could not be written at the end.

    Raises:
        UsageError: ``path`` is a file, a foreign folder, or an artefact and ``overwrite`` is off.
    """
    if not path.exists():
        return
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
        return
    if not path.is_dir() or not (path / MANIFEST).exists():
        raise UsageError(
            "the output exists and is not an artefact of VocabForge",
            got=path,
            expected="a new folder",
            remedy="choose another --output; nothing was changed",
        )
    if not overwrite:
        raise UsageError(
            "the output exists already",
            got=path,
            expected="a new folder",
            remedy="choose another --output, or pass --overwrite to replace it",
        )


def open_artifact(path: Path, kind: str | tuple[str, ...] | None = None, *, verify: bool = True) -> Artifact:
    """Open an artefact and verify every file against its manifest.

    Args:
        path: the folder.
        kind: required kind or kinds; None accepts any.
        verify: also hash the files (sizes are always compared).

    Raises:
        ArtifactError: no manifest, unreadable manifest, wrong kind, missing or altered file.
    """
    kinds = (kind,) if isinstance(kind, str) else kind
    wanted = " or ".join(kinds) if kinds else "any"
    if not (path / MANIFEST).is_file():
        raise ArtifactError(
            "this is not a VocabForge artefact",
            got=f"{path} ({'no manifest.json in it' if path.is_dir() else 'no such folder'})",
            expected=f"an artefact folder of kind {wanted}",
            remedy="an interrupted run leaves no artefact: check the path or run the command again",
        )
    manifest = read_json(path / MANIFEST, "artefact manifest")
    if not isinstance(manifest, dict) or any(key not in manifest for key in _REQUIRED):
        raise ArtifactError(
            "the artefact's manifest is incomplete", expected=f"keys {', '.join(_REQUIRED)}", source=path / MANIFEST
        )
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise ArtifactError(
            "the artefact was written by another version of the format",
            got=f"schema {manifest['schema_version']}",
            expected=f"schema {SCHEMA_VERSION}",
            source=path,
            remedy="make it again with this version, or use the version that wrote it",
        )
    if kinds and manifest["kind"] not in kinds:
        raise ArtifactError(
            "the artefact is of another kind", got=manifest["kind"], expected=wanted, source=path
        )
    _verify_files(path, manifest, hashes=verify)
    return Artifact(path, str(manifest["kind"]), manifest)


def _verify_files(path: Path, manifest: Mapping[str, Any], *, hashes: bool) -> None:
    remedy = "the folder was changed or cut short after it was written; make it again"
    for name, entry in manifest["files"].items():
        file = path / name
        if path.resolve() not in file.resolve().parents:
            raise ArtifactError("the manifest names a file outside its folder", got=name, source=path)
        if not file.is_file():
            raise ArtifactError("a file of the artefact is missing", expected=file, source=path, remedy=remedy)
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise ArtifactError(
                "a file of the artefact has another size than its manifest says",
                got=f"{size:,} bytes",
                expected=f"{entry['bytes']:,} bytes",
                source=file,
                remedy=remedy,
            )
        if hashes and (found := sha256_file(file)) != entry["sha256"]:
            raise ArtifactError(
                "a file of the artefact has another content than its manifest says",
                got=f"sha256 {found[:16]}…",
                expected=f"sha256 {entry['sha256'][:16]}…",
                source=file,
                remedy=remedy,
            )
    expected = _content_hash(manifest["kind"], manifest.get("meta", {}), manifest["files"])
    if expected != manifest["content_hash"]:
        raise ArtifactError(
            "the artefact's manifest was edited", source=path / MANIFEST, remedy=remedy
        )
