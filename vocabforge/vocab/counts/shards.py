"""Count units of shards, in this process or in several; each result is saved as soon as it is complete.

A partial result is one small file per unit, written atomically and reused only after verification.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ...core.cluster import Cluster, Piece
from ...core.console import say
from ...core.errors import DataError, VocabForgeError
from ...core.files import atomic_write, disk_errors
from ...core.threads import core_count
from ...corpus.sources.bytes import Problems
from ...corpus.sources.shards import Shard, Unit, check_marks, read_shard, shard_digest, shard_mark
from ...corpus.tokenizer.cuts import NoCut, cut_rule
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from .engines import PlainEngine, choose_engine
from .table import Tally
from .tally import CountOptions, TokenCounter

Progress = Callable[[int, int], None]
"""Called with stored bytes read and tokens counted since the last call."""
_SHOWN = 5
_FORMAT = 1
UNIT_BYTES = 16 << 20
"""Small files are counted together up to this size, because saving a result flushes the disk. A unit is the
most that a killed run loses per worker."""


def stored(shards: Sequence[Shard]) -> int:
    """Return the total stored bytes of shards."""
    return sum(shard.stored_bytes for shard in shards)


@dataclass(frozen=True)
class UnitResult:
    """Counts, documents and bytes of one unit, a digest for each shard, and problems by kind."""

    tally: Tally
    digests: tuple[str, ...]
    problems: Mapping[str, int]


class PartialResults:
    """Folder of a run's partial results.

    A result is found by a key over all settings that determine it, and reused only if its checksum matches
    and its sources still have the counted digests.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], vocab_size: int) -> None:
        self.folder, self.vocab_size = folder, vocab_size
        self._settings = json.dumps({"format": _FORMAT, **settings}, sort_keys=True)

    def path(self, unit: Unit) -> Path:
        """Return the file of a unit's result."""
        # The domain is a label: the same bytes give the same counts in every domain.
        places = json.dumps([{**asdict(shard), "domain": ""} for shard in unit], sort_keys=True)
        key = hashlib.sha256((self._settings + places).encode()).hexdigest()
        return self.folder / f"shard-{key[:24]}.safetensors"

    def load(self, unit: Unit, digests: Sequence[str]) -> UnitResult | None:
        """Return the result of an earlier run, or None if there is none for exactly these bytes."""
        path = self.path(unit)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                meta = json.loads(file.metadata()["result"])
                ids, counts = file.get_tensor("ids"), file.get_tensor("counts")
            if meta.pop("checksum") != _checksum(meta, ids, counts) or (
                len(ids) and ids[-1] >= self.vocab_size
            ):
                raise ValueError("its checksum does not match")
            for shard, then, now in zip(unit, meta["digests"], digests, strict=True):
                if then != now:
                    say(f"{shard.source} changed since it was counted: counting it again")
                    return None
            dense = np.zeros(self.vocab_size, dtype=np.int64)
            dense[ids] = counts
            tally = Tally(dense, meta["documents"], meta["bytes"])
            return UnitResult(tally, tuple(digests), meta["problems"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            say(f"The partial result {path.name} is damaged ({error}): counting {unit[0].source} again")
            return None

    def save(self, unit: Unit, result: UnitResult) -> None:
        """Save the result of a unit."""
        ids = np.flatnonzero(result.tally.counts).astype(np.int64)
        counts = result.tally.counts[ids]
        meta = {
            "sources": [[shard.source, shard.start, shard.stop] for shard in unit],
            "documents": result.tally.documents,
            "bytes": result.tally.bytes,
            "digests": result.digests,
            "problems": dict(result.problems),
        }
        result_json = json.dumps({**meta, "checksum": _checksum(meta, ids, counts)})
        data = save({"ids": ids, "counts": counts}, metadata={"result": result_json})
        atomic_write(self.path(unit), data)

    def remove(self) -> None:
        """Delete all results, after the artefact is written; other files in the folder are kept."""
        for pattern in ("shard-*.safetensors", ".shard-*.safetensors.tmp-*"):
            for file in self.folder.glob(pattern):
                with contextlib.suppress(OSError):
                    file.unlink()
        self.kept()

    def kept(self) -> bool:
        """Return whether there is a result to resume from; an empty folder is removed."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        return self.folder.is_dir()

    def prepare(self) -> None:
        """Create the folder."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)


def _checksum(meta: Mapping[str, Any], ids: np.ndarray, counts: np.ndarray) -> str:
    """Return a checksum of the file's whole content, which detects any flipped bit."""
    facts = json.dumps(meta, sort_keys=True).encode()
    return hashlib.sha256(facts + ids.tobytes() + counts.tobytes()).hexdigest()


_Settings = tuple[str, bool, CountOptions, Path]
"""What a worker needs besides the tokenizer: engine, whether texts are cut, options, folder of results."""


class UnitCounter:
    """Counter of units in one process, which reuses the saved results of an earlier run and saves new ones."""

    def __init__(
        self, tokenizer: TextTokenizer, engine: PlainEngine, options: CountOptions, folder: Path
    ) -> None:
        self.tokenizer, self.engine, self.options = tokenizer, engine, options
        self.partials = PartialResults(folder, options.deciding(tokenizer), tokenizer.vocab_size)
        self._shown = _SHOWN
        self.settings: _Settings = (engine.name, engine.cut is not None, options, folder)

    def count(self, unit: Unit, progress: Progress, goal: float = math.inf) -> UnitResult:
        """Read and count a unit, up to the document with which ``goal`` tokens are counted.

        Raises:
            DataError: a source is damaged, or has become shorter since planning.
        """
        digests = tuple(shard_digest(shard) for shard in unit)
        saved = self.partials.load(unit, digests)
        if saved is not None and saved.tally.tokens < goal:
            progress(stored(unit), saved.tally.tokens)
            return saved
        result = self.fresh(unit, digests, progress, goal)
        self.save(unit, result, goal)
        return result

    def fresh(self, unit: Unit, digests: tuple[str, ...], progress: Progress, goal: float) -> UnitResult:
        """Count a unit whatever is saved, and save nothing; see :meth:`count`."""
        sources, cut = self.options.sources, self.engine.cut
        problems = Problems(strict=sources.strict, shown=self._shown)
        documents = itertools.chain.from_iterable(
            read_shard(shard, sources, cut=cut, problems=problems, on_bytes=lambda read: progress(read, 0))
            for shard in unit
        )
        counter = TokenCounter(self.tokenizer, self.engine, self.options.mode, cut)
        counter.add(documents, problems, lambda tokens: progress(0, tokens), goal=goal)
        self._shown -= len(problems.first)
        return UnitResult(counter.tally, digests, dict(problems.kinds))

    def save(self, unit: Unit, result: UnitResult, goal: float) -> None:
        """Save the result of a unit that was counted up to ``goal`` tokens, if it is complete."""
        if result.tally.tokens < goal:
            self.partials.save(unit, result)


def count_units(
    counter: UnitCounter, units: Sequence[Unit], progress: Progress
) -> Iterator[tuple[Unit, UnitResult]]:
    """Yield the result of each unit, with several workers or a cluster in order of completion.

    With a number of ``tokens`` in the options, the results come in input order up to that number.

    Raises:
        DataError: see :meth:`UnitCounter.count`.
        VocabForgeError: a worker was killed; finished units are kept.
    """
    options = counter.options
    goal = options.tokens or math.inf
    if options.ray is not None:
        yield from _count_on_cluster(options.ray, counter, units, progress)
        return
    if options.workers == 1:
        yield from _until(goal, units, 1, lambda unit, left: partial(counter.count, unit, progress, left))
        return
    processes = min(options.workers, max(1, len(units)))
    pool = futures.ProcessPoolExecutor(
        processes,
        multiprocessing.get_context("spawn"),
        _start_worker,
        (processes, counter.tokenizer.source, counter.settings),
    )
    try:
        if math.isinf(goal):
            waiting = {pool.submit(_count_in_worker, unit): unit for unit in units}
            results: Iterator[tuple[Unit, UnitResult]] = (
                (waiting[future], future.result()) for future in futures.as_completed(waiting)
            )
        else:
            results = _until(
                goal, units, processes, lambda *unit: pool.submit(_count_in_worker, *unit).result
            )
        for unit, result in results:
            progress(stored(unit), result.tally.tokens)
            yield unit, result
    except BrokenProcessPool as error:
        raise VocabForgeError(
            "a counting worker exited early",
            got="killed, or out of memory",
            remedy="finished shards are kept: run the same command again, with fewer --workers",
        ) from error
    finally:
        workers = list((getattr(pool, "_processes", None) or {}).values())  # shutdown drops them
        pool.shutdown(wait=False, cancel_futures=True)
        for process in workers:
            process.terminate()  # after a failure, some may still be counting; the others are idle


def _count_on_cluster(
    address: str, counter: UnitCounter, units: Sequence[Unit], progress: Progress
) -> Iterator[tuple[Unit, UnitResult]]:
    """Count on a Ray cluster; saved results are reused, and new ones saved, by this process alone."""
    goal = counter.options.tokens or math.inf
    with Cluster(address) as cluster:
        cluster.use(partial(_made, counter.tokenizer, counter.settings))

        def begin(unit: Unit, left: float = math.inf) -> Piece:
            return cluster.submit(_count_piece, unit, tuple(map(shard_mark, unit)), left)

        def end(unit: Unit, piece: Piece, left: float = math.inf) -> UnitResult:
            result: UnitResult = cluster.get(piece)
            counter.save(unit, result, left)
            progress(stored(unit), result.tally.tokens)
            return result

        def wait(unit: Unit, left: float) -> Callable[[], UnitResult]:
            if counter.partials.path(unit).is_file():
                return partial(counter.count, unit, progress, left)
            return partial(end, unit, begin(unit, left), left)

        if math.isinf(goal):
            saved = {unit for unit in units if counter.partials.path(unit).is_file()}
            begun: dict[Piece, Unit] = {}  # results are dropped with their pieces

            def pieces() -> Iterator[Piece]:
                for unit in units:
                    if unit not in saved:
                        piece = begin(unit)
                        begun[piece] = unit
                        yield piece

            yield from ((unit, counter.count(unit, progress)) for unit in units if unit in saved)
            for piece in cluster.as_completed(pieces()):
                unit = begun.pop(piece)
                yield unit, end(unit, piece)
        else:
            yield from _until(goal, units, cluster.ahead, wait)


def _count_piece(counter: UnitCounter, unit: Unit, marks: Sequence[str], goal: float) -> UnitResult:
    check_marks(unit, marks)
    digests = tuple(shard_digest(shard) for shard in unit)
    return counter.fresh(unit, digests, lambda *_: None, goal)


def _until(
    goal: float, units: Sequence[Unit], ahead: int, begin: Callable[[Unit, float], Callable[[], UnitResult]]
) -> Iterator[tuple[Unit, UnitResult]]:
    """Yield results in the order of units, up to the document with which they hold ``goal`` tokens.

    ``begin`` begins to count a unit up to a number of tokens, and returns how to wait for the result. For
    all but the first of ``ahead`` units that are begun at once, this number is too large. The unit with the
    last document is therefore counted again, shard by shard, to end exactly there.
    """
    queue, begun = deque(units), deque[tuple[Unit, float, Callable[[], UnitResult]]]()
    while goal > 0 and (queue or begun):
        while queue and len(begun) < ahead:
            unit = queue.popleft()
            begun.append((unit, goal, begin(unit, goal)))
        unit, limit, wait = begun.popleft()
        exact = math.isinf(goal) or (limit == goal and len(unit) == 1)
        result: UnitResult | None = None
        try:
            result = wait()
        except DataError:  # perhaps after the last document
            if exact:
                raise
        if result is None or (result.tally.tokens >= goal and not exact):
            queue, begun = deque((shard,) for shard in unit), deque()
        else:
            goal -= result.tally.tokens
            yield unit, result


_counters: list[UnitCounter] = []  # one in each worker


def _start_worker(processes: int, source: Path, settings: _Settings) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports the interruption
    os.environ["RAYON_NUM_THREADS"] = str(max(1, core_count() // processes))
    _counters.append(_made(load_tokenizer(source, settings[2].content_format), settings))


def _made(tokenizer: TextTokenizer, settings: _Settings) -> UnitCounter:
    """Return the counter of a worker process."""
    name, cuts, options, folder = settings
    rule = cut_rule(tokenizer) if cuts else NoCut("cuts failed on the sample")
    engine, _ = choose_engine(tokenizer, (), only=name, rule=rule)
    return UnitCounter(tokenizer, engine, options, folder)


def _count_in_worker(unit: Unit, goal: float = math.inf) -> UnitResult:
    return _counters[0].count(unit, lambda *_: None, goal)
