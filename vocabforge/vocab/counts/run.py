"""Counting run: plan the shards, count or reuse each, and add the results.

The same inputs and options give the same table for any number of workers and interruptions.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter as Multiset
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from ...core.artifact import check_output
from ...core.console import say
from ...core.errors import DataError, UsageError
from ...core.progress import ProgressBar, human_rate
from ...core.values import split_pair
from ...corpus.sources.bytes import Problems, summarize_problems
from ...corpus.sources.document import SourceOptions
from ...corpus.sources.remote import input_path
from ...corpus.sources.shards import Shard, Unit, make_units, plan_shards, read_shard
from ...corpus.tokenizer.cuts import cut_rule
from ...corpus.tokenizer.special_tokens import SpecialTokens
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from .engines import PlainEngine, choose_engine
from .request import CountRequest
from .shards import UNIT_BYTES, UnitCounter, UnitResult, count_units, stored
from .table import REST, FrequencyTable, Tally, save_counts
from .tally import CountOptions

# Stored bytes (minimum, and per token) below which the plain engine finishes before a faster one is loaded.
_SMALL_BYTES, _SMALL_BYTES_A_TOKEN = 1 << 20, 32
_SAMPLE_SHARDS = 8
_SAMPLE_CHARACTERS = 96 << 10


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
        UsageError: a number of tokens together with domains.
    """
    if options.tokens is not None and domains:
        raise UsageError(
            "--tokens and --domain exclude each other",
            got=f"--tokens {options.tokens:,} with the domains {', '.join(domains)}",
            expected="one of them",
            remedy="count each domain by itself with --tokens, then add the tables with merge-freq --domains",
        )
    if options.mode == "assistant":
        tokenizer.forms()  # raise errors of the chat template before reading any input
    began = time.monotonic()
    shards = plan_shards(inputs, options.sources, domains=domains, shard_bytes=options.shard_bytes)
    _check_shards(shards, domains or {})
    units = make_units(shards, min(options.shard_bytes, UNIT_BYTES))
    engine, reasons = _choose(tokenizer, shards, options)
    counter = UnitCounter(tokenizer, engine, options, folder)
    partials = counter.partials
    partials.prepare()
    if resumed := {unit for unit in units if partials.path(unit).is_file()}:
        say(f"Reusing {len(resumed):,} of {len(units):,} parts from {partials.folder}")
    start = time.monotonic()
    results = _count(counter, units)
    tallies, digests, problems = _add_up(tokenizer.vocab_size, results, ["", *(domains or {})])
    run = CountRun(
        table=_table(tokenizer, options, tallies, _source_digests(shards, digests)),
        engine=engine.name,
        reasons=reasons,
        problems=problems,
        start_s=start - began,
        seconds=time.monotonic() - start,
        stored_bytes=sum(map(stored, results)),
        units=len(results),
        resumed=len(resumed & results.keys()),
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
    if options.tokens is not None:
        ended = "The inputs end before" if run.table.tokens < options.tokens else "Stopped at"
        counted = f"{run.table.tokens:,} tokens in {run.table.documents:,} documents"
        say(f"{ended} --tokens {options.tokens:,}: {counted}")
    if keep is not None:
        keep(run)
        partials.remove()
    return run


def _check_shards(shards: Sequence[Shard], domains: Collection[str]) -> None:
    for shard in shards:
        if shard.kind != "hub" and not input_path(shard.source).is_file():
            raise DataError(
                "the input is not a regular file, but it is read more than once (to check it and to resume)",
                got=shard.source,
                remedy="write it to a file first",
            )
    for name in set(domains) - {shard.domain for shard in shards}:
        say(f"Note: the domain {name} is empty, because all its files belong to earlier domains")


def _choose(
    tokenizer: TextTokenizer, shards: Sequence[Shard], options: CountOptions
) -> tuple[PlainEngine, list[str]]:
    rule = cut_rule(tokenizer)
    plain = PlainEngine(tokenizer, rule)
    small = max(_SMALL_BYTES, _SMALL_BYTES_A_TOKEN * tokenizer.vocab_size)
    if options.engine is None and all(shard.kind != "hub" for shard in shards) and stored(shards) < small:
        reason = f"engine plain counts: below {small / 1e6:.1f} MB, loading a faster one takes longer"
        say(reason)
        return plain, [reason]
    sample: list[str] = []
    for shard in shards[:: max(1, len(shards) // _SAMPLE_SHARDS)][:_SAMPLE_SHARDS]:
        left = _SAMPLE_CHARACTERS
        for document in read_shard(shard, options.sources, cut=plain.cut, problems=Problems(shown=0)):
            sample.append(document.plain_text()[:left])
            left -= len(sample[-1])
            if left <= 0:
                break
    engine, reasons = choose_engine(tokenizer, sample, only=options.engine, rule=rule)
    for reason in reasons:
        say(reason)
    return engine, reasons


def _count(counter: UnitCounter, units: Sequence[Unit]) -> dict[Unit, UnitResult]:
    results: dict[Unit, UnitResult] = {}
    counted, goal = 0, counter.options.tokens
    start = time.monotonic()
    total, unit_of_total = (sum(map(stored, units)) or None, "B") if goal is None else (goal, "tokens")
    with ProgressBar("count tokens", total, unit_of_total) as bar:

        def progress(read: int, tokens: int) -> None:
            nonlocal counted
            if goal is None:
                counted += tokens
                rate = human_rate(counted / max(time.monotonic() - start, 1e-9), "tokens")
                bar.update(read, note=f"{counted:,} tokens, {rate}")
            else:
                tokens = min(tokens, goal - counted)  # the last part may be counted twice
                counted += tokens
                bar.update(tokens, note=f"{counted:,} of {goal:,} tokens")

        try:
            for unit, result in count_units(counter, units, progress):
                results[unit] = result
        except KeyboardInterrupt:
            if counter.partials.kept():
                say(
                    f"{len(results):,} of {len(units):,} parts are kept in {counter.partials.folder}: "
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
    tokenizer: TextTokenizer, options: CountOptions, tallies: Mapping[str, Tally], sources: Mapping[str, str]
) -> FrequencyTable:
    """Return the table of all tallies; if there are domains, the rest becomes the domain ``other``."""
    rest, *named = tallies.values()
    facts = {**options.deciding(tokenizer), "tokens": options.tokens}
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
        origin={key: fact for key, fact in facts.items() if fact is not None and key != "fingerprint"},
    )


def _source_digests(shards: Sequence[Shard], digests: Mapping[Shard, str]) -> dict[str, str]:
    """Return the SHA-256 of each source; for a source in several shards, of the shards' digests."""
    parts: dict[str, list[str]] = {}
    for shard in shards:
        if shard in digests:
            parts.setdefault(shard.source, []).append(digests[shard])
    return {
        source: hashes[0] if len(hashes) == 1 else hashlib.sha256(" ".join(hashes).encode()).hexdigest()
        for source, hashes in parts.items()
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
    sources = SourceOptions(**{field.name: getattr(asked, field.name) for field in fields(SourceOptions)})
    options = CountOptions(
        mode=asked.mode,
        sources=sources,
        engine=asked.engine,
        workers=asked.workers,
        content_format=asked.content_format,
        shard_bytes=asked.shard_mb << 20,
        tokens=asked.tokens,
        ray=asked.ray,
    )
    check_output(output, overwrite=overwrite)
    return count_corpus(
        load_tokenizer(asked.tokenizer, asked.content_format),
        paths,
        options,
        output.with_name(f"{output.name}.partial"),
        domains=domains,
        keep=lambda done: save_counts(done.table, output, overwrite=overwrite),
    )


def _domains(given: Sequence[str]) -> dict[str, list[str]]:
    inputs: dict[str, list[str]] = {}
    for entry in given:
        name, path = split_pair(entry, expected="--domain NAME=PATH", source="--domain")
        if not path:
            raise UsageError("a domain has no input", got=entry, expected="--domain NAME=PATH")
        inputs.setdefault(name, []).append(path)
    return inputs
