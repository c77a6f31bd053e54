"""Counting units of shards, in this process or in several: each result is kept as soon as it is whole."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import DataError, VocabForgeError
from ...corpus.sources.shards import read_shard, shard_digest
from ...corpus.sources.sources import Problems
from ...corpus.tokenizer.cuts import CutRule, NoCut, cut_rule
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from .engines import choose_engine
from .partials import PartialResults, Unit, UnitResult
from .plan import Stamp, file_stamps, stored
from .tally import CountOptions, TokenCounter

Progress = Callable[[int, int], None]
"""Called with stored bytes read and tokens counted since the last call."""
_SHOWN = 5


@dataclass(frozen=True)
class ShardCounter:
    """What counts shards: tokenizer, engine, rule for cutting long texts, options, files as they were planned."""

    tokenizer: TextTokenizer
    engine: Any
    cut: CutRule | None
    options: CountOptions
    stamps: Mapping[str, Stamp | None]
    said: list[str] = field(default_factory=list)

    def count(
        self, unit: Unit, progress: Progress, *, digests: Sequence[str], max_tokens: int | None = None
    ) -> tuple[UnitResult, bool]:
        """The unit's result, and whether it was read to its end (False: ``max_tokens`` was reached).

        Raises:
            DataError: a source is damaged, or changed since the work was divided.
        """
        problems = Problems(strict=self.options.sources.strict, shown=_SHOWN - len(self.said))
        counter = TokenCounter(self.tokenizer, self.engine, self.options.mode, max_tokens)
        documents = itertools.chain.from_iterable(
            read_shard(
                shard,
                self.options.sources,
                cut=self.cut,
                problems=problems,
                on_bytes=lambda read: progress(read, 0),
            )
            for shard in unit
        )
        counter.add(documents, problems, lambda tokens: progress(0, tokens))
        self.said.extend(problems.first)
        for source, now in file_stamps(unit).items():
            if self.stamps[source] != now:
                raise DataError(
                    "the input changed while it was read",
                    source=source,
                    remedy="run again when nothing writes to it; finished shards are kept",
                )
        return UnitResult(counter.tally, tuple(digests), dict(problems.kinds)), not counter.full


def count_here(
    counter: ShardCounter, units: Sequence[Unit], partials: PartialResults, progress: Progress
) -> Iterator[tuple[Unit, UnitResult]]:
    """Results of units in their order, those of an earlier run taken over; stops at ``max_tokens``."""
    left = counter.options.max_tokens
    for unit in units:
        digests = [shard_digest(shard) for shard in unit]
        result = partials.load(unit, digests) if left is None else None
        if result is not None:
            progress(stored(unit), result.tally.tokens)
        else:
            result, whole = counter.count(unit, progress, digests=digests, max_tokens=left)
            if whole and left is None:
                partials.save(unit, result)
        yield unit, result
        if left is not None:
            left -= result.tally.tokens
            if left <= 0:
                return


@dataclass(frozen=True)
class _Task:
    tokenizer: Path
    engine: str
    options: CountOptions
    folder: Path
    cuts: bool
    threads: int
    stamps: Mapping[str, Stamp | None]


_state: dict[str, Any] = {}


def _start_worker(task: _Task, read: Any, counted: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent reports the interruption
    os.environ["RAYON_NUM_THREADS"] = str(task.threads)
    tokenizer = load_tokenizer(task.tokenizer)
    rule = cut_rule(tokenizer) if task.cuts else NoCut("cuts failed on the sample")
    engine = choose_engine(tokenizer, (), only=task.engine, rule=rule).engine
    cut = None if isinstance(rule, NoCut) else rule
    _state["counter"] = ShardCounter(tokenizer, engine, cut, task.options, task.stamps)
    _state["partials"] = PartialResults(task.folder, task.options.deciding(tokenizer), tokenizer.vocab_size)
    _state["read"], _state["counted"] = read, counted


def _count_in_worker(unit: Unit) -> UnitResult:
    def progress(read: int, counted: int) -> None:
        for name, value in (("read", read), ("counted", counted)):
            if value:
                with _state[name].get_lock():
                    _state[name].value += value

    ((_, result),) = count_here(_state["counter"], [unit], _state["partials"], progress)
    return result


def count_in_workers(
    counter: ShardCounter, units: Sequence[Unit], partials: PartialResults, progress: Progress
) -> Iterator[tuple[Unit, UnitResult]]:
    """:func:`count_here` by ``options.workers`` processes, in whatever order they finish.

    Raises:
        VocabForgeError: a worker failed or was killed; finished shards are kept.
    """
    options = counter.options
    context = multiprocessing.get_context("spawn")
    read, counted = context.Value("q", 0), context.Value("q", 0)
    threads = max(1, (os.cpu_count() or 1) // options.workers)
    cuts = counter.cut is not None
    task = _Task(
        counter.tokenizer.source,
        counter.engine.name,
        options,
        partials.folder,
        cuts,
        threads,
        counter.stamps,
    )
    pool = futures.ProcessPoolExecutor(
        min(options.workers, max(1, len(units))), context, _start_worker, (task, read, counted)
    )
    try:
        waiting = {pool.submit(_count_in_worker, unit): unit for unit in units}
        seen = [0, 0]
        while waiting:
            done, _ = futures.wait(waiting, timeout=0.5, return_when=futures.FIRST_COMPLETED)
            now = [int(read.value), int(counted.value)]
            progress(now[0] - seen[0], now[1] - seen[1])
            seen = now
            for future in done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
        raise VocabForgeError(
            "a counting worker ended before its work was done",
            got="killed, or out of memory",
            remedy="finished shards are kept: run the same command again, with fewer --workers",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        _end_processes(pool)


def _end_processes(pool: futures.ProcessPoolExecutor, patience_s: float = 2.0) -> None:
    """End workers that still count after a failure; after success they have nothing to do and end by themselves."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    deadline = time.monotonic() + patience_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.terminate()
