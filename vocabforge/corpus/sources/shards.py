"""Divide a corpus into shards without reading it whole.

Shards are read and hashed separately; together they are exactly the corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ...core.errors import DataError, UsageError
from . import bytes as reading
from .bytes import ByteSpan, Problems, file_size, unreadable
from .document import Document, ReadContext, SourceOptions
from .inputs import SourceKind, expand_paths, is_hub, kind_of, split_suffix
from .remote import input_path, open_bytes
from .sources import documents_between

if TYPE_CHECKING:
    from ..tokenizer.cuts import CutRule


@dataclass(frozen=True)
class Shard:
    """Part [start, stop) of a source.

    The unit is bytes (``text``, ``lines``), row groups (``parquet``) or shards (``hub``).

    Attributes:
        stop: None for the end of the source.
        domain: name of the domain, ``""`` for none.
        stored_bytes: 0 if unknown (``hub``).
    """

    source: str
    kind: SourceKind
    start: int
    stop: int | None
    domain: str
    stored_bytes: int


def plan_shards(
    inputs: Sequence[str | Path],
    options: SourceOptions,
    *,
    domains: Mapping[str, Sequence[str]] | None = None,
    shard_bytes: int,
) -> list[Shard]:
    """Divide inputs in order, then files listed only in domains; each file is read once.

    Uncompressed JSONL files, and text files of lines or paragraphs, are divided near each multiple of
    ``shard_bytes``. Parquet files are divided into runs of row groups, Hub data sets into their shards. Other
    files stay whole: compressed, ``.json`` and Arrow files, and text files with a separator or of one document.

    Raises:
        DataError: an input is missing, unsupported or unreadable.
        UsageError: no input, an empty domain, or ``shard_bytes`` below 1.
    """
    if shard_bytes < 1:
        raise UsageError("shard_bytes is too small", got=shard_bytes, expected="at least 1")
    named = {name: expand_paths(paths) for name, paths in (domains or {}).items()}
    plain = expand_paths(inputs) if inputs or not named else []
    owner: dict[str, str] = {}
    for name, paths in named.items():
        for path in paths:
            owner.setdefault(_identity(path), name)
    shards: list[Shard] = []
    seen: set[str] = set()
    for path in (path for paths in (plain, *named.values()) for path in paths):
        if (key := _identity(path)) not in seen:
            seen.add(key)
            shards += _divide(path, options, owner.get(key, ""), shard_bytes)
    return shards


def _identity(path: Path) -> str:
    return str(path) if is_hub(path) else str(path.resolve())


def _divide(path: Path, options: SourceOptions, domain: str, shard_bytes: int) -> list[Shard]:
    kind = kind_of(path)
    if kind == "hub":
        from .hub import hub_shards

        count = hub_shards(str(path))
        return [Shard(str(path), kind, index, index + 1, domain, 0) for index in range(count)]
    if kind == "parquet":
        from .parquet import row_groups

        runs = _runs([size for _, size in row_groups(path)], shard_bytes)
        return [Shard(str(path), kind, start, stop, domain, size) for start, stop, size in runs]
    size = file_size(path)
    find = _finder(path, kind, options)
    points = [] if find is None else split_points(path, size, shard_bytes, find)
    parts = pairwise([0, *points, size])
    return [
        Shard(str(path), kind, start, None if stop == size else stop, domain, stop - start)
        for start, stop in (parts if size else [(0, 0)])
    ]


def _finder(path: Path, kind: SourceKind, options: SourceOptions) -> Finder | None:
    """Return a function that finds where a file may be divided, or None if it stays whole."""
    if split_suffix(path)[1]:
        return None
    if kind == "lines":
        return after_newline
    if kind == "text" and options.separator is None:
        return {"line": after_newline, "paragraph": after_blank_line}.get(options.text_unit)
    return None


def _runs(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, size) of runs of consecutive row groups, within ``limit`` if possible."""
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > limit:
            yield start, index, total
            start, total = index, 0
        total += size
    if sizes:
        yield start, len(sizes), total


def read_shard(
    shard: Shard,
    options: SourceOptions,
    *,
    cut: CutRule | None,
    problems: Problems | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    """Yield the documents of a shard in bounded memory.

    All shards together yield the documents of :func:`~vocabforge.corpus.sources.sources.iter_documents`. With
    ``cut``, a text file that is one document is split into pieces, with ``begins`` False from the second on;
    joined, they are its text.

    Raises:
        DataError: see ``iter_documents``; also a text above ``DOCUMENT_LIMIT`` bytes without a safe cut.
    """
    problems = Problems(strict=options.strict) if problems is None else problems
    context = ReadContext(options, problems, on_bytes, cut, reading.DOCUMENT_LIMIT)
    return documents_between(input_path(shard.source), shard.kind, context, shard.start, shard.stop)


def shard_digest(shard: Shard) -> str:
    """Return the SHA-256 of a shard's stored bytes, or of the revision of its files for a Hub data set.

    Raises:
        DataError: the source cannot be read, or has become shorter.
    """
    if shard.kind == "parquet":
        from .parquet import groups_digest

        return groups_digest(input_path(shard.source), shard.start, shard.stop)
    if shard.kind == "hub":
        from .hub import hub_digest

        return hub_digest(shard.source, shard.start, shard.stop)
    digest = hashlib.sha256()
    for block in ByteSpan(input_path(shard.source), shard.start, shard.stop).stored_blocks():
        digest.update(block)
    return digest.hexdigest()


def shard_mark(shard: Shard) -> str:
    """Return a hash of the size of a shard's file and of the shard's first and last bytes.

    Another machine recognises the file by it without reading all of it. A Hub data set is recognised by its
    revision.

    Raises:
        DataError: the source cannot be read.
    """
    if shard.kind == "hub":
        return shard_digest(shard)
    path = input_path(shard.source)
    size = file_size(path)
    stop = size if shard.stop is None or shard.kind == "parquet" else shard.stop
    digest = hashlib.sha256(str(size).encode())
    try:
        with open_bytes(path) as handle:
            for place in (0 if shard.kind == "parquet" else shard.start, max(0, stop - _WINDOW)):
                handle.seek(place)
                digest.update(handle.read(_WINDOW))
    except OSError as error:
        raise unreadable(path, error) from error
    return digest.hexdigest()


def check_marks(shards: Sequence[Shard], marks: Sequence[str]) -> None:
    """Check that this machine reads the same files as the machine that computed ``marks``.

    Raises:
        DataError: a file is missing or differs.
    """
    remedy = "put the inputs at the same path on every machine (a shared folder), or at URLs"
    for shard, mark in zip(shards, marks, strict=True):
        try:
            same = shard_mark(shard) == mark
        except DataError as error:
            raise DataError(
                "a machine of the cluster cannot read an input",
                got=error.got,
                source=error.source,
                remedy=remedy,
            ) from error
        if not same:
            raise DataError(
                "an input is another file on a machine of the cluster",
                got="another size or content",
                source=shard.source,
                remedy=remedy,
            )


Unit = tuple[Shard, ...]
"""Consecutive shards of one domain that are read together."""
_FILE_BYTES = 4096  # opening a file costs about as much as reading this many bytes


def make_units(shards: Sequence[Shard], size: int) -> list[Unit]:
    """Group shards in order; files of one domain are combined up to ``size`` bytes."""
    units: list[Unit] = []
    held = 0
    for shard in shards:
        # The size of a Hub's shard is unknown.
        weight = size + 1 if shard.kind == "hub" else shard.stored_bytes + _FILE_BYTES
        if units and units[-1][0].domain == shard.domain and held + weight <= size:
            units[-1] = (*units[-1], shard)
            held += weight
        else:
            units.append((shard,))
            held = weight
    return units


_WINDOW = 64 << 10
_SHORT_LINE = 64 << 10

Finder = Callable[[IO[bytes], int, int], int]
"""(file, nominal byte, size) -> first byte from there on where the file may be divided, at most ``size``."""


def split_points(path: Path, size: int, every: int, find: Finder) -> list[int]:
    """Return the ascending bytes that divide a file near each multiple of ``every`` (0 and the end excluded).

    Raises:
        DataError: the file cannot be read.
    """
    points: list[int] = []
    try:
        with open_bytes(path) as handle:
            nominal = every
            while nominal < size and (point := find(handle, nominal, size)) < size:
                points.append(point)
                nominal = max(point + 1, nominal + every)
    except OSError as error:
        raise unreadable(path, error) from error
    return points


def after_newline(handle: IO[bytes], at: int, size: int) -> int:
    """Return the first position from ``at`` on that follows a newline."""
    handle.seek(at - 1)
    place = at - 1
    while block := handle.read(_WINDOW):
        if (newline := block.find(b"\n")) >= 0:
            return place + newline + 1
        place += len(block)
    return size


def after_blank_line(handle: IO[bytes], at: int, size: int) -> int:
    """Return the first position from ``at`` on that follows a blank line, which separates paragraphs."""
    handle.seek(after_newline(handle, at, size))
    begins = True
    while line := handle.readline(_SHORT_LINE):
        ends = line.endswith(b"\n")
        if begins and ends and _blank(line):
            return handle.tell()
        begins = ends
    return size


def _blank(line: bytes) -> bool:
    try:
        return not line.decode("utf-8").strip()
    except UnicodeDecodeError:  # the line will be skipped and separates nothing
        return False
