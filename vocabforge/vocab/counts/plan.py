"""Plan of a counting run: shards, units of shards, and the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.console import say
from ...core.errors import DataError
from ...corpus.sources.bytes import Problems
from ...corpus.sources.shards import Shard, plan_shards, read_shard
from ...corpus.tokenizer.cuts import CutRule, NoCut, cut_rule
from ...corpus.tokenizer.tokenizer import TextTokenizer
from .engines import EngineChoice, PlainEngine, choose_engine
from .tally import CountOptions

_UNIT_BYTES = 16 << 20  # small files are grouped up to this size, because saving a result flushes the disk
_FILE_BYTES = 4096  # opening a file costs about as much as reading this many bytes
# Stored bytes (minimum, and per token) below which the plain engine finishes before a faster one is loaded.
_SMALL_BYTES, _SMALL_BYTES_A_TOKEN = 1 << 20, 32
_SAMPLE_SHARDS = 8
_SAMPLE_CHARACTERS = 96 << 10

Unit = tuple[Shard, ...]
"""Consecutive shards of one domain that are counted together: the most that a killed run loses per worker."""


def make_plan(
    tokenizer: TextTokenizer,
    inputs: Sequence[str | Path],
    options: CountOptions,
    domains: Mapping[str, Sequence[str]],
) -> tuple[list[Shard], list[Unit], EngineChoice]:
    """Divide the input and choose the engine, checked on texts of this input.

    Returns:
        The shards, the units of shards, and the engine.

    Raises:
        DataError: an input is missing, unsupported or unreadable.
        UsageError: no input, or the requested engine cannot be used.
    """
    rule = cut_rule(tokenizer)

    def divide(rule: CutRule | NoCut) -> list[Shard]:
        found = plan_shards(
            inputs, options.sources, domains=domains, cut=rule.cutter, shard_bytes=options.shard_bytes
        )
        _check_files(found)
        for name in set(domains) - {shard.domain for shard in found}:
            say(f"Note: the domain {name} is empty, because all its files belong to earlier domains")
        return found

    shards = divide(rule)
    choice = _choose(tokenizer, shards, options, rule)
    if choice.rule is not rule:  # the sample disproved the rule: do not cut
        shards = divide(choice.rule)
    return shards, make_units(shards, min(options.shard_bytes, _UNIT_BYTES)), choice


def stored(shards: Sequence[Shard]) -> int:
    """Return the total stored bytes of shards."""
    return sum(shard.stored_bytes for shard in shards)


def make_units(shards: Sequence[Shard], size: int) -> list[Unit]:
    """Group shards in order; small files of one domain are combined up to ``size`` stored bytes."""
    units: list[Unit] = []
    held = 0
    for shard in shards:
        weight = shard.stored_bytes + _FILE_BYTES
        if shard.kind == "hub":  # of unknown size
            weight = size + 1
        if units and units[-1][0].domain == shard.domain and held + weight <= size:
            units[-1] = (*units[-1], shard)
            held += weight
        else:
            units.append((shard,))
            held = weight
    return units


def _check_files(shards: Sequence[Shard]) -> None:
    for shard in shards:
        if shard.kind != "hub" and not Path(shard.source).is_file():
            raise DataError(
                "the input is not a regular file, but it is read more than once (to check it and to resume)",
                got=shard.source,
                remedy="write it to a file first",
            )


def _choose(
    tokenizer: TextTokenizer, shards: Sequence[Shard], options: CountOptions, rule: CutRule | NoCut
) -> EngineChoice:
    only = options.engine
    small = max(_SMALL_BYTES, _SMALL_BYTES_A_TOKEN * tokenizer.vocab_size)
    if only is None and all(shard.kind != "hub" for shard in shards) and stored(shards) < small:
        reason = f"engine plain counts: below {small / 1e6:.1f} MB, loading a faster one takes longer"
        say(reason)
        return EngineChoice(PlainEngine(tokenizer, rule), [reason], rule)
    sample: list[str] = []
    step = max(1, len(shards) // _SAMPLE_SHARDS)
    for shard in shards[::step][:_SAMPLE_SHARDS]:
        taken = 0
        documents = read_shard(
            shard, options.sources, cut=rule.cutter, problems=Problems(shown=0), on_bytes=lambda _: None
        )
        for document in documents:
            text = document.plain_text()[: _SAMPLE_CHARACTERS - taken]
            sample.append(text)
            taken += len(text)
            if taken >= _SAMPLE_CHARACTERS:
                break
    choice = choose_engine(tokenizer, sample, only=only, rule=rule)
    for reason in choice.reasons:
        say(reason)
    return choice
