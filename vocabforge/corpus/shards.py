"""A corpus in shards: divided without reading it, each part read and hashed apart, together exactly the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ..core.errors import UsageError
from . import reading
from .document import Cutter, Document, ReadContext, SourceOptions
from .inputs import SourceKind, expand_paths, is_hub, kind_of, split_suffix
from .reading import Problems, Span, file_size
from .sources import documents_between
from .splitting import after_newline, split_points, text_points


@dataclass(frozen=True)
class Shard:
    """A part of one source.

    Attributes:
        source: path as given, or the Hub data set as written.
        kind: how it is read.
        start: first byte (``text``, ``lines``), row group (``parquet``) or shard (``hub``).
        stop: the one behind the last, None for the source's end.
        domain: name of its domain, ``""`` without.
        stored_bytes: stored bytes, 0 where unknown (``hub``).
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
    cut: Cutter | None,
    shard_bytes: int,
) -> list[Shard]:
    """Divide inputs, in their order, then the files that only domains name.

    A file that several name is read once: under the first domain that names it, else without a domain.
    Uncompressed text and JSONL files are divided near each multiple of ``shard_bytes``, at an exact byte
    found there; Parquet files into runs of row groups; Hub data sets into their own shards. Compressed and
    ``.json`` files, and text files parted by a separator, stay whole.

    Args:
        inputs: files, folders, globs, Hub data sets.
        options: how documents are cut: it decides where a text file may be divided.
        domains: name -> inputs of this domain.
        cut: where a text that is one document may be cut; None divides no such text.
        shard_bytes: stored bytes of a shard, roughly (a shard ends at the first certain place behind them).

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
            shards += _divide(path, options, owner.get(key, ""), cut, shard_bytes)
    return shards


def _identity(path: Path) -> str:
    return str(path) if is_hub(path) else str(path.resolve())


def _divide(
    path: Path, options: SourceOptions, domain: str, cut: Cutter | None, shard_bytes: int
) -> list[Shard]:
    kind = kind_of(path)
    if kind == "hub":
        from .hub import hub_shards

        count = hub_shards(str(path))
        return [Shard(str(path), kind, index, index + 1, domain, 0) for index in range(count)]
    if kind == "parquet":
        from .parquet import row_groups

        runs = _runs(row_groups(path).stored, shard_bytes)
        return [Shard(str(path), kind, start, stop, domain, size) for start, stop, size in runs]
    size = file_size(path)
    points: list[int] = []
    if not split_suffix(path)[1] and kind == "text":
        points = text_points(path, shard_bytes, options, cut)
    elif not split_suffix(path)[1] and kind == "lines":
        points = split_points(path, shard_bytes, after_newline)
    parts = pairwise([0, *points, size])
    return [
        Shard(str(path), kind, start, None if stop == size else stop, domain, stop - start)
        for start, stop in (parts if size else [(0, 0)])
    ]


def _runs(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int, int]]:
    """(start, stop, size) of runs of consecutive row groups that stay within ``limit`` where they can."""
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
    cut: Cutter | None,
    problems: Problems | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    """Documents of a shard, in bounded memory.

    A text file that is one document comes as consecutive pieces, ``begins`` False from the second on (over
    all shards of the file); joined they are its text exactly. Over all shards, documents are those of
    :func:`~vocabforge.corpus.sources.iter_documents`. Hub data sets report no bytes.

    Raises:
        DataError: see :func:`~vocabforge.corpus.sources.iter_documents`; also a text of more than
            ``reading.DOCUMENT_LIMIT`` bytes without a place to cut it.
    """
    problems = Problems(strict=options.strict) if problems is None else problems
    context = ReadContext(options, problems, on_bytes, cut, reading.DOCUMENT_LIMIT)
    return documents_between(Path(shard.source), shard.kind, context, shard.start, shard.stop)


def shard_digest(shard: Shard) -> str:
    """SHA-256 of the shard's stored bytes; of a Hub data set over the revision of its files.

    Raises:
        DataError: the source cannot be read, or has become shorter.
    """
    if shard.kind == "parquet":
        from .parquet import groups_digest

        return groups_digest(Path(shard.source), shard.start, shard.stop)
    if shard.kind == "hub":
        from .hub import hub_digest

        return hub_digest(shard.source, shard.start, shard.stop)
    digest = hashlib.sha256()
    for block in Span(Path(shard.source), shard.start, shard.stop).stored_blocks():
        digest.update(block)
    return digest.hexdigest()
