"""Find the file of a named benchmark in a data folder or the cache, or fetch it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ...core.console import say
from ...core.errors import DataError, UsageError
from ...core.files import atomic_write
from ...core.gguf import cache_root
from .types import BenchmarkRow, Source

DATA_VARIABLE = "VOCABFORGE_DATA"
HUB_OFFLINE = "HF_HUB_OFFLINE"
_TRUE = ("1", "ON", "YES", "TRUE")
_TIMEOUT_S = 30.0


def cache_folder() -> Path:
    """Return the folder of fetched question files, shared by all projects of a user."""
    return cache_root() / "benchmarks"


def folders(data: Path | None) -> list[Path]:
    """Return data folders in search order, the cache last; raise UsageError if ``data`` is not a folder."""
    if data is not None and not os.path.isdir(data):
        raise UsageError("the data folder is missing", expected=data, source="--data")
    named = os.environ.get(DATA_VARIABLE)
    wanted = [data, Path(named) if named else None, Path("data"), cache_folder()]
    return list(dict.fromkeys(folder for folder in wanted if folder is not None))


def find_file(name: str, row: BenchmarkRow, *, data: Path | None = None) -> Path:
    """Return the path of the benchmark's file; fetch it into the cache if it is not found.

    Nothing is fetched with ``HF_HUB_OFFLINE=1``.

    Raises:
        DataError: the file was not found and could not, or must not, be fetched.
        UsageError: ``data`` is not a folder.
    """
    for place in (folder / file for folder in folders(data) for file in row.files):
        if os.path.isfile(place):
            return place
    offline = os.environ.get(HUB_OFFLINE, "")
    if offline.upper() in _TRUE:
        raise _absent(name, row, data, f"nothing may be fetched ({HUB_OFFLINE}={offline})")
    failures = []
    for source in row.sources:
        place = cache_folder() / file_of(row, source)
        say(f"Fetching {name} from {source.url} to {place}")
        try:
            fetch(source, place)
        except NotFetched as error:
            failures.append(f"{source.url}: {error}")
        else:
            return place
    raise _absent(name, row, data, "; ".join(failures) or "no single file can be fetched")


def file_of(row: BenchmarkRow, source: Source) -> str:
    """Return the benchmark file that an address provides."""
    name = source.url.rsplit("/", 1)[-1]
    return next(file for file in row.files if Path(file).name == name)


def _absent(name: str, row: BenchmarkRow, data: Path | None, why: str) -> DataError:
    gap = "\n" + " " * 12  # aligned with the value of the line above
    looked = [str(folder / file) for folder in folders(data) for file in row.files]
    ways = [f"{source.about}{gap}{source.url}{gap}sha256 {source.sha256}" for source in row.sources]
    first = data or Path(os.environ.get(DATA_VARIABLE) or "data")
    return DataError(
        f"the questions of the benchmark {name} are not on this machine",
        got=why.replace("\n", gap),
        expected=f"{gap}or ".join(ways) or row.about,
        source=f"looked for {gap.join(looked)}",
        remedy=f"put the first of these files at {first / row.files[0]}, or name a folder that holds "
        f"{row.files[0]} with --data or {DATA_VARIABLE}",
    )


class NotFetched(Exception):
    """The file was not fetched; the message gives the reason."""


def fetch(source: Source, path: Path) -> None:
    """Fetch a published file to ``path`` atomically, and only if its hash is the published one.

    Raises:
        NotFetched: no connection, no answer, an error status, a truncated file, or another hash.
        VocabForgeError: no HTTP client is installed, or the folder is not writable.
    """
    from ...corpus.regenerate.server import http_library

    library = http_library()
    # Store the bytes as published, without decompressing them.
    how = {"follow_redirects": True, "timeout": _TIMEOUT_S, "headers": {"Accept-Encoding": "identity"}}
    try:
        with library.stream("GET", source.url, **how) as reply:
            reply.raise_for_status()
            data = b"".join(reply.iter_raw())
    except (OSError, ValueError, library.HTTPError, library.InvalidURL) as error:
        raise NotFetched(f"{type(error).__name__}: {error}") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != source.sha256:
        raise NotFetched(
            f"another file came ({len(data):,} bytes, sha256 {digest}; published: {source.sha256})"
        )
    atomic_write(path, data)
