"""What is known about the named benchmarks, for people who choose one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .find import cache_folder, file_of, look_up
from .table import BENCHMARKS
from .types import Scorer


@dataclass(frozen=True)
class BenchmarkListing:
    """One named benchmark.

    Attributes:
        name: as ``--benchmark`` takes it.
        about: one sentence.
        questions: in the published file.
        max_new_tokens: its limit for one turn.
        scorer: what scores its answers beside speed, if anything does.
        path: its file on this machine; None where there is none (yet).
        where: in words: that file, ``made here``, or from where to where it would be fetched.
    """

    name: str
    about: str
    questions: int
    max_new_tokens: int
    scorer: Scorer | None
    path: Path | None
    where: str


def describe_benchmarks(data: Path | None = None) -> list[BenchmarkListing]:
    """A row for each named benchmark; nothing is fetched or read.

    Args:
        data: folder that is searched before all others.

    Raises:
        UsageError: ``data`` is no folder.
    """
    listings = []
    for name, row in BENCHMARKS.items():
        path = look_up(row, data)
        if path is not None:
            where = str(path)
        elif not row.sources:
            where = "made here"
        else:
            source = row.sources[0]
            where = f"to be fetched from {source.url} to {cache_folder() / file_of(row, source)}"
        listings.append(
            BenchmarkListing(name, row.about, row.questions, row.max_new_tokens, row.scorer, path, where)
        )
    return listings
