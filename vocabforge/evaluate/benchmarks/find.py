"""Where a named benchmark's file is: in a data folder, in the cache, or to be fetched."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ...core.errors import DataError, UsageError, VocabForgeError
from ...core.progress import say
from .types import BenchmarkRow, Source

DATA_VARIABLE = "VOCABFORGE_DATA"
CACHE_VARIABLE = "VOCABFORGE_CACHE"
HUB_OFFLINE = "HF_HUB_OFFLINE"
_TRUE = ("1", "ON", "YES", "TRUE")


def cache_folder() -> Path:
    """Where fetched question files are kept, the same for every project of a user.

    Raises:
        UsageError: neither a cache nor a home folder is known.
    """
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own) / "benchmarks"
    shared = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):  # the standard says to ignore others
        return Path(shared) / "vocabforge" / "benchmarks"
    try:
        return Path.home() / ".cache" / "vocabforge" / "benchmarks"
    except RuntimeError as error:
        raise UsageError(
            "there is no folder to keep benchmarks in",
            got=error,
            expected=f"{CACHE_VARIABLE}, XDG_CACHE_HOME or HOME",
            remedy=f"set {CACHE_VARIABLE}",
        ) from error


def folders(data: Path | None) -> list[Path]:
    """Data folders in the order in which they are searched, the cache last.

    Raises:
        UsageError: ``data`` is no folder.
    """
    if data is not None and not os.path.isdir(data):
        raise UsageError("the data folder is missing", expected=data, source="--data")
    named = os.environ.get(DATA_VARIABLE)
    wanted = [data, Path(named) if named else None, Path("data")]
    with contextlib.suppress(UsageError):  # whoever has the file needs no cache
        wanted.append(cache_folder())
    return list(dict.fromkeys(folder for folder in wanted if folder is not None))


def look_up(row: BenchmarkRow, data: Path | None) -> Path | None:
    """The first of the benchmark's files in the first folder that has one."""
    places = (folder / file for folder in folders(data) for file in row.files)
    return next((place for place in places if os.path.isfile(place)), None)


def find_file(name: str, row: BenchmarkRow, *, data: Path | None = None, offline: bool = False) -> Path:
    """The benchmark's file; fetched into the cache where it is nowhere.

    Args:
        name: of the benchmark.
        row: what is known about it.
        data: folder to search before all others.
        offline: nothing is fetched; ``HF_HUB_OFFLINE=1`` has the same effect.

    Raises:
        DataError: it is nowhere and could not, or must not, be fetched.
        UsageError: ``data`` is no folder.
    """
    found = look_up(row, data)
    if found is not None:
        return found
    if switch := offline_switch(offline):
        raise _absent(name, row, data, f"nothing may be fetched ({switch})")
    from .fetch import NotFetched, fetch

    failures = []
    for source in row.sources:
        place = cache_folder() / file_of(row, source)
        say(f"Fetching {name} from {source.url} to {place}")
        try:
            fetch(source, place)
        except NotFetched as error:
            failures.append(f"{source.url}: {error}")
        except VocabForgeError as error:
            raise _absent(name, row, data, error.render()) from error
        else:
            return place
    raise _absent(name, row, data, "; ".join(failures))


def offline_switch(offline: bool) -> str | None:
    """What forbids fetching, None where nothing does."""
    if offline:
        return "--offline"
    if os.environ.get(HUB_OFFLINE, "").upper() in _TRUE:
        return f"{HUB_OFFLINE}={os.environ[HUB_OFFLINE]}"
    return None


def file_of(row: BenchmarkRow, source: Source) -> str:
    """Which of the benchmark's files an address gives."""
    name = source.url.rsplit("/", 1)[-1]
    return next(file for file in row.files if Path(file).name == name)


def _absent(name: str, row: BenchmarkRow, data: Path | None, why: str) -> DataError:
    gap = "\n" + " " * 12  # under the value of the line above
    looked = [str(folder / file) for folder in folders(data) for file in row.files]
    ways = [f"{source.about}{gap}{source.url}{gap}sha256 {source.sha256}" for source in row.sources]
    first = data or Path(os.environ.get(DATA_VARIABLE) or "data")
    return DataError(
        f"the questions of the benchmark {name} are not on this machine",
        got=why.replace("\n", gap),
        expected=f"{gap}or ".join(ways),
        source=f"looked for {gap.join(looked)}",
        remedy=f"put the first of these files at {first / row.files[0]}, or name a folder that holds "
        f"{row.files[0]} with --data or {DATA_VARIABLE}",
    )
