"""A counting run: plan the shards, divide them, count or take over each, add up.

The same inputs and options give the same table for any number of workers, launched processes and interruptions.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter as Multiset
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..core.distributed import Group, joined
from ..core.errors import DataError, MismatchError, UsageError
from ..core.progress import ProgressBar, human_rate, say
from ..corpus.cutting import CutRule, NoCut, cut_rule
from ..corpus.shards import Shard, plan_shards, read_shard
from ..corpus.sources import Problems
from ..corpus.tokenizer import TextTokenizer
from .count_shards import ShardCounter, count_here, count_in_workers, make_units
from .counts import CountOptions
from .engines import Choice, choose_engine
from .partials import PartialResults, Unit, UnitResult
from .special import SpecialTokens
from .table import FrequencyTable, Tally

_SAMPLE_SHARDS = 8
_UNIT_BYTES = 16 << 20  # small files are counted together up to this: keeping a result flushes the disk
_SMALL_BYTES = 1 << 20  # below, the plain engine is done before a faster one is loaded
_SAMPLE_CHARACTERS = 96 << 10


@dataclass(frozen=True)
class CountRun:
    """A finished run: the table and how it came about.

    Attributes:
        table: the frequency table.
        engine: name of the engine that counted.
        reasons: why no faster engine was taken, and what else is worth saying.
        problems: skipped lines and rows, by reason.
        start_s: seconds of planning, and of choosing and checking the engine.
        seconds: seconds of counting.
        stored_bytes: bytes of the input as stored.
        units: number of parts that are kept apart until the run is whole.
        resumed: parts whose result was taken over from an interrupted run.
    """

    table: FrequencyTable
    engine: str
    reasons: Sequence[str]
    problems: Mapping[str, int]
    start_s: float
    seconds: float
    stored_bytes: int
    units: int
    resumed: int = 0


def partial_folder(output: Path) -> Path:
    """Where the partial results of a run with this output stand until it is whole."""
    return output.with_name(f"{output.name}.partial")


def count_corpus(
    tokenizer: TextTokenizer,
    inputs: Sequence[str | Path],
    options: CountOptions,
    folder: Path,
    *,
    domains: Mapping[str, Sequence[str]] | None = None,
    keep: Callable[[CountRun], None] | None = None,
) -> CountRun:
    """Count inputs, with a progress bar; under a launcher every process calls this and gets the whole result.

    Args:
        tokenizer: the target's.
        inputs: files, folders, globs, ``hub:NAME`` data sets.
        options: how.
        folder: for partial results.
        domains: name -> inputs that are counted apart.
        keep: saves the result (called on rank 0); the partial results are removed when it has.

    Raises:
        DataError: unreadable input, nothing to count, or (strict) the first unreadable line.
        UsageError: options that exclude each other.
        MismatchError: the launched processes do not see the same input.
    """
    if options.mode == "assistant" and tokenizer.chat_template is None:
        tokenizer.render([])  # raises: says which template is missing, before anything is read
    began = time.monotonic()
    rule = cut_rule(tokenizer)
    cut = None if isinstance(rule, NoCut) else rule
    with joined() as group:
        if options.max_tokens is not None and (group.size > 1 or options.workers > 1):
            raise UsageError(
                "a token limit is counted in order, by one process",
                got=f"{group.size} launched processes, {options.workers} workers",
                expected="--max-tokens with one process and --workers 1",
            )
        shards = plan_shards(
            inputs, options.sources, domains=domains or {}, cut=cut, shard_bytes=options.shard_bytes
        )
        _check_files(shards)
        _check_same_plan(group, shards, options, tokenizer)
        choice = _choose(tokenizer, shards, options, cut)
        partials = PartialResults(folder, options.deciding(tokenizer), tokenizer.vocab_size)
        if options.max_tokens is None:
            partials.prepare()
        units = make_units(shards, min(options.shard_bytes, _UNIT_BYTES))
        resumed = 0 if options.max_tokens is not None else sum(partials.path(one).is_file() for one in units)
        if resumed:
            say(f"Taking over {resumed:,} of {len(units):,} parts from {folder}")
        start = time.monotonic()
        counter = ShardCounter(tokenizer, choice.engine, cut, options)
        results = _count(counter, _share(units, group), partials, len(units), group)
        table, problems = _add_up(tokenizer, options, shards, results, group, domains or {})
        _say_problems(problems)
        _check_counted(table, problems, inputs)
        run = CountRun(
            table=table,
            engine=choice.engine.name,
            reasons=choice.reasons,
            problems=problems,
            start_s=start - began,
            seconds=time.monotonic() - start,
            stored_bytes=_stored(shards),
            units=len(units),
            resumed=resumed,
        )
        if keep is not None:
            if group.rank == 0:
                keep(run)
            group.wait()
            partials.remove()
    return run


def _check_files(shards: Sequence[Shard]) -> None:
    for shard in shards:
        if shard.kind != "hub" and not Path(shard.source).is_file():
            raise DataError(
                "the input is no ordinary file, and it is read more than once (to check it and to resume)",
                got=shard.source,
                remedy="write it to a file first",
            )


def _check_same_plan(
    group: Group, shards: Sequence[Shard], options: CountOptions, tokenizer: TextTokenizer
) -> None:
    plan = json.dumps([[asdict(shard) for shard in shards], options.deciding(tokenizer)], sort_keys=True)
    digests = group.gather((hashlib.sha256(plan.encode()).hexdigest(), len(shards)))
    if len(set(digests)) > 1:
        raise MismatchError(
            "the launched processes do not see the same input",
            got=", ".join(f"rank {rank}: {count:,} shards" for rank, (_, count) in enumerate(digests)),
            expected="the same files, sizes and options on every machine",
            remedy="copy the input to the same place on every machine, or use a shared file system",
        )


def _choose(
    tokenizer: TextTokenizer, shards: Sequence[Shard], options: CountOptions, cut: CutRule | None
) -> Choice:
    """The engine for this corpus, checked on a piece of several shards."""
    only = options.engine
    if only is None and all(shard.kind != "hub" for shard in shards) and _stored(shards) < _SMALL_BYTES:
        only = "plain"
    sample: list[str] = []
    step = max(1, len(shards) // _SAMPLE_SHARDS)
    for shard in shards[::step][:_SAMPLE_SHARDS]:
        taken = 0
        documents = read_shard(
            shard, options.sources, cut=cut, problems=Problems(shown=0), on_bytes=lambda _: None
        )
        for document in documents:
            text = document.plain_text()[: _SAMPLE_CHARACTERS - taken]
            sample.append(text)
            taken += len(text)
            if taken >= _SAMPLE_CHARACTERS:
                break
    choice = choose_engine(tokenizer, sample, only=only)
    for reason in choice.reasons:
        say(reason)
    return choice


def _share(units: Sequence[Unit], group: Group) -> list[Unit]:
    """This rank's units: the largest first, each to the rank with the least; then in their order."""
    load = [0] * group.size
    mine = []
    for index in sorted(range(len(units)), key=lambda at: (-_stored(units[at]), at)):
        owner = load.index(min(load))
        load[owner] += max(1, _stored(units[index]))
        if owner == group.rank:
            mine.append(index)
    return [units[index] for index in sorted(mine)]


def _stored(shards: Sequence[Shard]) -> int:
    return sum(shard.stored_bytes for shard in shards)


def _count(
    counter: ShardCounter, mine: Sequence[Unit], partials: PartialResults, total: int, group: Group
) -> dict[Unit, UnitResult]:
    results: dict[Unit, UnitResult] = {}
    counted = 0
    start = time.monotonic()
    name = "count tokens" if group.size == 1 else f"count tokens (rank 0 of {group.size})"
    count = count_here if counter.options.workers == 1 else count_in_workers
    with ProgressBar(name, sum(map(_stored, mine)), "B") as bar:

        def progress(read: int, tokens: int) -> None:
            nonlocal counted
            if tokens:  # bytes are reported by the thread that reads, tokens by the one that counts
                counted += tokens
            rate = human_rate(counted / max(time.monotonic() - start, 1e-9), "tokens")
            bar.update(read, note=f"{counted:,} tokens, {rate}")

        try:
            for unit, result in count(counter, mine, partials, progress):
                results[unit] = result
        except KeyboardInterrupt:
            if partials.kept():
                say(
                    f"{len(results):,} of {total:,} parts are kept in {partials.folder}: "
                    "run the same command again to go on"
                )
            raise
    return results


def _add_up(
    tokenizer: TextTokenizer,
    options: CountOptions,
    shards: Sequence[Shard],
    results: Mapping[Unit, UnitResult],
    group: Group,
    domains: Mapping[str, Sequence[str]],
) -> tuple[FrequencyTable, dict[str, int]]:
    """One table of all ranks' results; the parts are added in the order of the plan."""
    names = ["", *domains]
    width = tokenizer.vocab_size
    sums = np.zeros((len(names), width + 2), dtype=np.int64)  # counts, then documents and bytes
    problems: Multiset[str] = Multiset()
    for unit, result in results.items():
        row = sums[names.index(unit[0].domain)]
        row[:width] += result.tally.counts
        row[width] += result.tally.documents
        row[width + 1] += result.tally.bytes
        problems.update(dict(result.problems))
    sums = group.sum(sums)
    known: dict[Shard, str] = {}
    everywhere: Multiset[str] = Multiset()
    for digests, skipped in group.gather(
        ({s: d for unit, result in results.items() for s, d in zip(unit, result.digests)}, dict(problems))
    ):
        known |= digests
        everywhere.update(skipped)
    tallies = [Tally(row[:width].copy(), int(row[width]), int(row[width + 1])) for row in sums]
    whole = sum(tallies[1:], tallies[0])
    apart = dict(zip(names, tallies)) if domains else {}
    if apart and not (apart[""].documents or apart[""].tokens):
        del apart[""]
    if "" in apart:
        apart = {"other": apart.pop(""), **apart}
    table = FrequencyTable(
        whole.counts,
        whole.documents,
        whole.bytes,
        options.mode,
        tokenizer.fingerprint,
        _source_digests(shards, known),
        SpecialTokens.of(tokenizer),
        apart,
        _origin(tokenizer, options),
    )
    return table, dict(everywhere.most_common())


def _origin(tokenizer: TextTokenizer, options: CountOptions) -> dict[str, object]:
    facts = {key: value for key, value in options.deciding(tokenizer).items() if value is not None}
    del facts["fingerprint"]
    return facts | ({"max_tokens": options.max_tokens} if options.max_tokens is not None else {})


def _source_digests(shards: Sequence[Shard], known: Mapping[Shard, str]) -> dict[str, str]:
    """SHA-256 of each source; of one that was read in several shards, over the digests of these."""
    parts: dict[str, list[str]] = {}
    for shard in shards:
        if shard in known:
            parts.setdefault(shard.source, []).append(known[shard])
    return {
        source: digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()
        for source, digests in parts.items()
    }


def _say_problems(problems: Mapping[str, int]) -> None:
    if problems:
        say("Skipped " + "; ".join(f"{count:,} x {kind}" for kind, count in problems.items()))


def _check_counted(table: FrequencyTable, problems: Mapping[str, int], inputs: Sequence[str | Path]) -> None:
    if table.tokens:
        return
    skipped = "; ".join(f"{count:,} x {kind}" for kind, count in problems.items())
    raise DataError(
        f"there is nothing to count: the input has no {'token' if table.documents else 'document'}",
        got=skipped or "only empty files or blank lines",
        expected="text, or rows with a text or a conversation",
        source=", ".join(map(str, inputs)) or None,
    )
