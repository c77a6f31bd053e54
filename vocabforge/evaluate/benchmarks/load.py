"""Load a benchmark by its name or the path of a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ...core.console import say
from ...core.errors import UsageError, did_you_mean
from ...core.files import sha256_file
from ...corpus.sources.inputs import split_suffix
from ...demo import QUESTIONS
from .find import find_file
from .registry import BENCHMARKS, FORMATS, detect_format, read_format
from .types import Benchmark, BenchmarkRow, asked_sha256

ItemT = TypeVar("ItemT")


def load_benchmark(name_or_path: str, limit: int | None = None, *, data: Path | None = None) -> Benchmark:
    """Read a benchmark by its table name or by the path of a question file.

    Args:
        limit: keep this many questions, evenly spread over the file so that every category is covered.
        data: folder that is searched first for a named benchmark.

    Raises:
        UsageError: neither a known name nor a file, or ``limit`` is not positive.
        DataError: the benchmark's file is missing, a row is invalid, or the format is unknown.
    """
    if limit is not None and limit < 1:
        raise UsageError("the limit must be at least 1", got=limit, source="--limit", expected="1 or more")
    row = BENCHMARKS.get(name_or_path)
    whole = _from_path(name_or_path) if row is None else _from_row(name_or_path, row, data)
    asked = whole.questions if limit is None else tuple(spread(whole.questions, limit))
    return replace(whole, questions=asked, of=len(whole.questions))


def spread(items: Sequence[ItemT], count: int) -> list[ItemT]:
    """Return ``count`` evenly spaced items including the first, or all items if there are fewer."""
    if count >= len(items):
        return list(items)
    return [items[index * len(items) // count] for index in range(count)]


def _from_row(name: str, row: BenchmarkRow, data: Path | None) -> Benchmark:
    limit = row.max_new_tokens or FORMATS[row.format].max_new_tokens
    if not row.files:
        made = tuple(read_format(row.format, QUESTIONS))
        return Benchmark(name, None, asked_sha256(made), limit, made, row.format)
    path = find_file(name, row, data=data)
    questions = tuple(read_format(row.format, path))
    digest = sha256_file(path)
    hashes = {value for source in row.sources for value in (source.sha256, source.unpacked)}
    published = digest in hashes if hashes else None
    if published is False:
        say(
            f"{path} is not the published file of {name} (sha256 {digest}): figures may not compare with others'"
        )
    return Benchmark(name, path, digest, limit, questions, row.format, published)


def _from_path(name: str) -> Benchmark:
    path = Path(name)
    if not os.path.isfile(path):
        raise UsageError(
            "there is no benchmark of this name and no such file",
            got=f"{name}, a folder" if path.is_dir() else name,
            expected=f"{', '.join(BENCHMARKS)}, or the path of a file (JSON, JSON lines, Parquet)",
            source="--benchmark",
            remedy=did_you_mean(name, BENCHMARKS) or "check the path",
        )
    format = detect_format(path)
    questions = tuple(read_format(format, path))
    return Benchmark(_stem(path), path, sha256_file(path), FORMATS[format].max_new_tokens, questions, format)


def _stem(path: Path) -> str:
    kind, packed = split_suffix(path)
    name = path.name[: len(path.name) - len(packed)]
    return (name[: len(name) - len(kind)] if kind else Path(name).stem) or path.name
