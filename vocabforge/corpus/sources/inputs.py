"""Supported inputs: files by suffix, folders, globs, Hub data sets."""

from __future__ import annotations

import functools
import glob
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...core.artifact import MANIFEST
from ...core.console import say
from ...core.errors import DataError, UsageError, VocabForgeError, did_you_mean
from .known import DATASETS
from .remote import RemotePath, input_path, remote_files

SourceKind = Literal["text", "lines", "json", "parquet", "arrow", "hub"]
_PACKABLE: dict[str, SourceKind] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "json",
}
_KINDS: dict[str, SourceKind] = {**_PACKABLE, ".parquet": "parquet", ".arrow": "arrow"}
_PACKED = (".gz", ".xz", ".zst")
SUPPORTED = f"{', '.join(_PACKABLE)}, each also with {' or '.join(_PACKED)}; .parquet; .arrow"
_HUB = "hub:"
_SAVED = ("dataset_info.json", "state.json")


@dataclass(frozen=True)
class HubName:
    """Name of a Hub data set (``owner/name``), or of a local folder that ``datasets`` can load."""

    name: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None


def is_hub(path: Path | str) -> bool:
    """Return whether an input is written as a Hub data set."""
    return str(path).startswith(_HUB)


def parse_hub(path: Path | str) -> HubName:
    """Parse ``hub:NAME``, ``hub:NAME:CONFIG`` or ``hub:NAME:CONFIG:SPLIT``.

    An empty CONFIG means none; NAME may be ``NAME@REVISION``.

    Raises:
        UsageError: the name is missing, or there are too many parts.
    """
    name, *rest = str(path)[len(_HUB) :].split(":")
    if not name or len(rest) > 2:
        raise UsageError(
            "the name of a Hub data set is malformed",
            got=path,
            expected="hub:NAME, hub:NAME:CONFIG or hub:NAME:CONFIG:SPLIT; NAME@REVISION pins it",
        )
    config, split = [*rest, "", ""][:2]
    revision = None
    if "@" in name and not Path(name).exists():
        name, _, revision = name.rpartition("@")
    return HubName(name, config or None, split or "train", revision)


@dataclass(frozen=True)
class DataOrigin:
    """Origin of an input, safe to publish.

    Attributes:
        name: short name, Hub name, or file name without folders.
        repository: repository on the Hub, None if the input is not from the Hub.
        licence: see ``KnownDataset``.
    """

    name: str
    repository: str | None = None
    licence: str | None = None


def origin_of(source: Path | str) -> DataOrigin:
    """Return the origin of an input, given by the user or returned by ``expand_paths``."""
    for name in DATASETS.usable():
        row = DATASETS[name]
        if str(source) in (name, row.source):
            return DataOrigin(name, parse_hub(row.source).name, row.licence)
    if is_hub(source) and not Path(hub := parse_hub(source).name).exists():
        return DataOrigin(hub, hub)
    return DataOrigin(Path(str(source)).name)


def known_field(source: str) -> str | None:
    """Return the field with the texts of a Hub data set in :data:`DATASETS`, None for the usual fields."""
    rows = (DATASETS[name] for name in DATASETS.usable())
    return next((row.field for row in rows if parse_hub(row.source).name == parse_hub(source).name), None)


@functools.cache  # printed once
def _known_source(name: str) -> str:
    row = DATASETS[name]
    licence = row.licence or "its card states none"
    say(f"{name} is the Hub's data set {row.source.removeprefix('hub:')}; licence: {licence}")
    return row.source


def split_suffix(path: Path) -> tuple[str, str]:
    """Return the (content, compression) suffixes of a file name, each ``""`` if not supported."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in _PACKED else ""
    content = suffixes[-1] if suffixes else ""
    return (content if content in (_PACKABLE if packed else _KINDS) else ""), packed


def kind_of(path: Path | str) -> SourceKind:
    """Return the kind of a supported input, which selects its reader."""
    if is_hub(path):
        return "hub"
    return _KINDS[split_suffix(Path(path))[0]]


def expand_paths(paths: Iterable[Path | str]) -> list[Path]:
    """Return the distinct files in ``paths``; files in folders and globs are sorted by name.

    A name in :data:`DATASETS` that is not a local file becomes its ``hub:`` name, and its licence is printed.

    Raises:
        DataError: a path is missing or unsupported, or a folder or glob contains no supported file.
        UsageError: no path at all, or a malformed Hub data set.
    """
    files: dict[str, Path] = {}
    for path in paths:
        if str(path) in DATASETS and not Path(path).exists():
            path = _known_source(str(path))
        if is_hub(path):
            parse_hub(path)
            files.setdefault(str(path), Path(path))
            continue
        for file in _files(input_path(path)):
            files.setdefault(str(file.resolve()), file)
    if not files:
        raise UsageError("no input was given", expected="--input PATH")
    return list(files.values())


def _files(path: Path) -> list[Path]:
    if isinstance(path, RemotePath):
        if split_suffix(path)[0] and not glob.has_magic(str(path)):
            return [path]
        files: list[Path] = [file for file in remote_files(path) if _is_source(file)]
        if not files:
            raise DataError("the URL holds no supported file", got=path, expected=SUPPORTED)
        return files
    if path.is_dir():
        inside = _inside(path)
        if not inside:
            raise DataError("the folder holds no supported file", got=path, expected=SUPPORTED)
        return inside
    if path.exists():
        if split_suffix(path)[0]:
            return [path]
        raise DataError(
            "this kind of file is not supported",
            got=path,
            expected=SUPPORTED,
            remedy="unpack it, or rename it to a suffix that matches its content",
        )
    if glob.has_magic(str(path)):
        return _matches(path)
    raise DataError(
        "the input is missing",
        expected=f"{path}, or a data set: {', '.join(DATASETS)}",
        remedy=did_you_mean(str(path), DATASETS) or "check the path",
    )


def _inside(folder: Path) -> list[Path]:
    if (folder / "dataset_dict.json").is_file() and (folder / "train").is_dir():
        others = sorted(split.name for split in folder.iterdir() if split.is_dir() and split.name != "train")
        if others:
            say(f"{folder}: reading the split train; for another, give its folder ({', '.join(others)})")
        folder = folder / "train"
    return sorted(file for file in folder.rglob("*") if _is_source(file))


def _is_source(file: Path) -> bool:
    named = not file.name.startswith(".") and file.name != MANIFEST  # an artefact's manifest is not text
    return named and file.is_file() and bool(split_suffix(file)[0]) and not _describes(file)


def _describes(file: Path) -> bool:
    """Return whether a file written by ``save_to_disk`` of ``datasets`` holds no rows (metadata, caches)."""
    if file.name in ("dataset_dict.json", *_SAVED):
        return file.name == "dataset_dict.json" or all((file.parent / name).is_file() for name in _SAVED)
    return file.suffix == ".arrow" and file.name.startswith(("cache-", "indices"))


def _matches(pattern: Path) -> list[Path]:
    """Return the supported files that match a glob or are in matching folders; other files are ignored."""
    files: list[Path] = []
    for match in sorted(map(Path, glob.glob(str(pattern), recursive=True))):
        files += _inside(match) if match.is_dir() else [match] if _is_source(match) else []
    if not files:
        raise DataError(
            "the pattern matches no supported file",
            got=pattern,
            expected=SUPPORTED,
            remedy="check the path, and quote the pattern so that the shell does not expand it",
        )
    return files


def import_extra(package: str, what: str, source: object) -> Any:
    """Import a package of the extra ``data``.

    Raises:
        VocabForgeError: the package is not installed, or broken.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise VocabForgeError(
            f"{what} needs the package {package}",
            got=error,
            source=source,
            remedy=f"pip install {package.partition('.')[0]}",
        ) from error
