"""Planning a counting run: shards, units of shards, and the engine."""

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

_UNIT_BYTES = 16 << 20  # small files are counted together up to this: keeping a result flushes the disk
_FILE_BYTES = 4096  # opening a file costs about as much as reading this
# Stored bytes below which the plain engine is done before a faster one is loaded: at least, and for each token.
_SMALL_BYTES, _SMALL_BYTES_A_TOKEN = 1 << 20, 32
_SAMPLE_SHARDS = 8
_SAMPLE_CHARACTERS = 96 << 10

Unit = tuple[Shard, ...]
"""Consecutive shards of one domain that are counted together: what is lost at most when a run is killed."""


def make_plan(
    tokenizer: TextTokenizer,
    inputs: Sequence[str | Path],
    options: CountOptions,
    domains: Mapping[str, Sequence[str]],
) -> tuple[list[Shard], list[Unit], EngineChoice]:
    """Look at the input and choose the engine, checked on texts of this input.

    Returns:
        what is to be counted, in shards and in units of shards, and by what.

    Raises:
        DataError: an input is missing, unsupported or unreadable.
        UsageError: no input, or an engine by name that cannot be used.
    """
    rule = cut_rule(tokenizer)

    def divide(rule: CutRule | NoCut) -> list[Shard]:
        found = plan_shards(
            inputs, options.sources, domains=domains, cut=rule.cutter, shard_bytes=options.shard_bytes
        )
        _check_files(found)
        for name in set(domains) - {shard.domain for shard in found}:
            say(f"Note: the domain {name} is empty, every file that it names belongs to an earlier domain")
        return found

    shards = divide(rule)
    choice = _choose(tokenizer, shards, options, rule)
    if choice.rule is not rule:  # the sample disproved the rule: nothing is cut then
        shards = divide(choice.rule)
    return shards, make_units(shards, min(options.shard_bytes, _UNIT_BYTES)), choice


def stored(shards: Sequence[Shard]) -> int:
    """Stored bytes of shards."""
    return sum(shard.stored_bytes for shard in shards)


def make_units(shards: Sequence[Shard], size: int) -> list[Unit]:
    """Shards in their order, small files of one domain together up to ``size`` stored bytes."""
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
                "the input is no ordinary file, and it is read more than once (to check it and to resume)",
                got=shard.source,
                remedy="write it to a file first",
            )


def _choose(
    tokenizer: TextTokenizer, shards: Sequence[Shard], options: CountOptions, rule: CutRule | NoCut
) -> EngineChoice:
    only = options.engine
    small = max(_SMALL_BYTES, _SMALL_BYTES_A_TOKEN * tokenizer.vocab_size)
    if only is None and all(shard.kind != "hub" for shard in shards) and stored(shards) < small:
        reason = f"engine plain counts: for less than {small / 1e6:.1f} MB no faster one is worth its start"
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
