"""Counting run: plan the shards, count or reuse each, and add the results.

The same inputs and options give the same table for any number of workers and interruptions.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter as Multiset
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from ...core.artifact import check_output
from ...core.console import say
from ...core.errors import DataError, UsageError
from ...core.progress import ProgressBar, human_rate
from ...core.values import split_pair
from ...corpus.sources.bytes import summarize_problems
from ...corpus.sources.document import check_parting
from ...corpus.sources.shards import Shard
from ...corpus.sources.sources import SourceOptions
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..subset.select import SpecialTokens
from .plan import Unit, make_plan, stored
from .request import CountRequest
from .shards import PartialResults, ShardCounter, UnitResult, count_here, count_in_workers
from .table import REST, FrequencyTable, Tally, save_counts
from .tally import CountOptions


@dataclass(frozen=True)
class CountRun:
    """Finished run: the table and how it was made.

    Attributes:
        reasons: why no faster engine was used, and other notes.
        start_s: seconds of planning, including the choice and check of the engine.
        units: number of parts; ``resumed`` of them were reused from an interrupted run.
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
    """Return the folder for the partial results of an unfinished run with this output."""
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
    """Count inputs, with a progress bar.

    ``domains`` are name -> inputs that are counted separately. ``keep`` saves the result; the partial results
    are then removed.

    Raises:
        DataError: unreadable input, nothing to count, or (strict) the first unreadable line.
    """
    if options.mode == "assistant":
        tokenizer.forms()  # raise errors of the chat template before reading any input
    began = time.monotonic()
    shards, units, choice = make_plan(tokenizer, inputs, options, domains or {})
    partials = PartialResults(folder, options.deciding(tokenizer), tokenizer.vocab_size)
    partials.prepare()
    if resumed := sum(partials.path(unit).is_file() for unit in units):
        say(f"Reusing {resumed:,} of {len(units):,} parts from {partials.folder}")
    start = time.monotonic()
    counter = ShardCounter(tokenizer, choice.engine, choice.rule.cutter, options)
    results = _count(counter, units, partials)
    tallies, digests, problems = _add_up(tokenizer.vocab_size, results, ["", *(domains or {})])
    run = CountRun(
        table=_table(tokenizer, options, tallies, _source_digests(shards, digests)),
        engine=choice.engine.name,
        reasons=choice.reasons,
        problems=problems,
        start_s=start - began,
        seconds=time.monotonic() - start,
        stored_bytes=stored(shards),
        units=len(units),
        resumed=resumed,
    )
    if skipped := summarize_problems(problems):
        say(skipped)
    _say_special(tokenizer, run.table)
    if not run.table.tokens:
        partials.remove()  # there is nothing to resume
        raise DataError(
            f"there is nothing to count: the input has no {'token' if run.table.documents else 'document'}",
            got=skipped or "only empty files or blank lines",
            expected="text, or rows with a text or a conversation",
            source=", ".join(map(str, inputs)) or None,
            remedy="convert or remove the skipped inputs" if skipped else "give files with text",
        )
    if keep is not None:
        keep(run)
        partials.remove()
    return run


def _count(counter: ShardCounter, units: Sequence[Unit], partials: PartialResults) -> dict[Unit, UnitResult]:
    results: dict[Unit, UnitResult] = {}
    counted = 0
    start = time.monotonic()
    count = count_here if counter.options.workers == 1 else count_in_workers
    with ProgressBar("count tokens", sum(map(stored, units)), "B") as bar:

        def progress(read: int, tokens: int) -> None:
            nonlocal counted
            counted += tokens
            rate = human_rate(counted / max(time.monotonic() - start, 1e-9), "tokens")
            bar.update(read, note=f"{counted:,} tokens, {rate}")

        try:
            for unit, result in count(counter, units, partials, progress):
                results[unit] = result
        except KeyboardInterrupt:
            if partials.kept():
                say(
                    f"{len(results):,} of {len(units):,} parts are kept in {partials.folder}: "
                    "run the same command again to resume"
                )
            raise
    return results


def _add_up(
    width: int, results: Mapping[Unit, UnitResult], names: Sequence[str]
) -> tuple[dict[str, Tally], dict[Shard, str], dict[str, int]]:
    """Return a tally for each domain, digests of the shards that were read, and problems by kind."""
    tallies = {name: Tally(np.zeros(width, dtype=np.int64), 0, 0) for name in names}
    problems: Multiset[str] = Multiset()
    digests: dict[Shard, str] = {}
    for unit, result in results.items():
        tallies[unit[0].domain] += result.tally
        problems.update(dict(result.problems))
        digests |= dict(zip(unit, result.digests))
    return tallies, digests, dict(problems.most_common())


def _table(
    tokenizer: TextTokenizer,
    options: CountOptions,
    tallies: Mapping[str, Tally],
    sources: Mapping[str, str],
) -> FrequencyTable:
    """Return the table of all tallies; if there are domains, the rest becomes the domain ``other``."""
    rest, *named = tallies.values()
    facts = options.deciding(tokenizer)
    whole = sum(named, rest)
    domains = {name: tally for name, tally in tallies.items() if name}
    if domains and (rest.documents or rest.tokens):
        domains[REST] = rest + domains[REST] if REST in domains else rest
    return FrequencyTable(
        counts=whole.counts,
        documents=whole.documents,
        bytes=whole.bytes,
        mode=options.mode,
        fingerprint=tokenizer.fingerprint,
        sources=sources,
        special=SpecialTokens.of(tokenizer),
        domains=domains,
        origin={key: one for key, one in facts.items() if one is not None and key != "fingerprint"},
    )


def _source_digests(shards: Sequence[Shard], digests: Mapping[Shard, str]) -> dict[str, str]:
    """Return the SHA-256 of each source; for a source in several shards, of the shards' digests."""
    parts: dict[str, list[str]] = {}
    for shard in shards:
        if shard in digests:
            parts.setdefault(shard.source, []).append(digests[shard])
    return {
        source: found[0] if len(found) == 1 else hashlib.sha256(" ".join(found).encode()).hexdigest()
        for source, found in parts.items()
    }


def _say_special(tokenizer: TextTokenizer, table: FrequencyTable) -> None:
    """Report special tokens in the text, such as ends of documents, which may be meant as separators."""
    if table.mode != "corpus":
        return
    special = table.special
    for token in sorted({*special.eos, *special.control, *special.others}):
        if count := int(table.counts[token]):
            say(
                f"Note: the special token {tokenizer.backend.id_to_token(token)} occurs {count:,} times in the text "
                "and is counted; pass it as --separator to split the text into documents instead"
            )


def run_count(asked: CountRequest, *, overwrite: bool = False) -> CountRun:
    """Count the inputs of a request and save the table.

    Raises:
        VocabForgeError: the input is missing, unreadable or empty, or the output exists.
    """
    paths, output = [*asked.input, *asked.more_inputs], asked.output
    domains = _domains(asked.domain)
    if not paths and not domains:
        raise UsageError("no input was given", expected="--input PATH …, or --domain NAME=PATH")
    check_parting(asked.separator, asked.text_unit)
    sources = SourceOptions(**{one.name: getattr(asked, one.name) for one in fields(SourceOptions)})
    options = CountOptions(
        mode=asked.mode,
        sources=sources,
        engine=asked.engine,
        workers=asked.workers,
        content_format=asked.content_format,
        shard_bytes=asked.shard_mb << 20,
    )
    check_output(output, overwrite=overwrite)
    return count_corpus(
        load_tokenizer(asked.tokenizer, asked.content_format),
        paths,
        options,
        partial_folder(output),
        domains=domains,
        keep=lambda done: save_counts(done.table, output, overwrite=overwrite),
    )


def _domains(given: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in given:
        name, path = split_pair(entry, expected="--domain NAME=PATH", source="--domain")
        if not path:
            raise UsageError("a domain has no input", got=entry, expected="--domain NAME=PATH")
        found.setdefault(name, []).append(path)
    return found
