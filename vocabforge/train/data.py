"""Packed rows of a configuration, and the rows of each step and process."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.console import say
from ..core.distributed import Group, rank
from ..core.errors import ConfigError, VocabForgeError
from ..corpus.chat.render import ChatOptions
from ..corpus.prepared.artifact import PreparedData, check_belongs, load_prepared, prepare_in
from ..corpus.prepared.dataset import SequenceOptions
from ..corpus.prepared.options import HeldoutOptions, PrepareOptions
from ..corpus.sources.document import SourceOptions
from ..corpus.tokenizer.tokenizer import TextTokenizer
from .config import DataConfig, OptimConfig


def prepare(config: DataConfig, tokenizer: TextTokenizer, cache: Path) -> PreparedData:
    """Return the packed rows of a configuration, from ``config.prepared`` or a cache, or prepare them now.

    Safe with concurrent processes; fastest if rank 0 calls it first.

    Args:
        cache: folder of prepared data if ``config.cache`` is not set.

    Raises:
        ArtifactError: ``config.prepared`` is not prepared data, or is damaged.
        DataError: there is no document, or no token to train on.
        ConfigError: there are too few documents to hold some out.
        MismatchError: ``config.prepared`` was made with another tokenizer.
    """
    if config.prepared is not None:
        with_prepared(config)  # reports contradicting keys
        return _opened(config.prepared, tokenizer)
    return prepare_in(config.cache or cache, tokenizer, config.train, config.heldout, prepare_options(config))


def prepare_together(
    config: DataConfig, output: Path, tokenizer: TextTokenizer, group: Group
) -> PreparedData:
    """Prepare the data of a run on rank 0, by default in OUTPUT/data; other ranks open it. Collective."""
    cache = output / "data"
    if group.rank == 0:
        try:
            data = prepare(config, tokenizer, cache)
        except VocabForgeError:
            for folder in (cache, output):  # remove empty folders
                with contextlib.suppress(OSError):
                    folder.rmdir()
            raise
        say(_described(data))
        if without := data.figures["train"].get("rows_without", 0):
            say(
                f"Warning: {without:,} of {len(data.train):,} packed rows have no counted position: no two "
                "learnt tokens follow each other. Steps of such rows alone are skipped, and null in the log."
            )
    path = group.gather(data.artifact.path if group.rank == 0 else None)[0]
    return data if group.rank == 0 else _opened(path, tokenizer)


def _opened(path: Path, tokenizer: TextTokenizer) -> PreparedData:
    prepared = load_prepared(path, verify=rank() == 0)
    check_belongs(prepared, tokenizer)
    return prepared


def _described(data: PreparedData) -> str:
    figures = data.figures["train"]
    line = (
        f"{len(data.train):,} packed rows of {data.train.length:,} tokens ({data.train.fill:.0%} full, "
        f"{figures['counted'] / max(figures['tokens'], 1):.0%} of the tokens learnt from), "
        f"{len(data.heldout):,} rows held out"
    )
    if not data.artifact.meta["key_of"]["heldout"]:
        aside = data.figures["heldout"]["documents"]
        line += f" ({aside:,} of {aside + figures['documents']:,} documents)"
    if long := figures["overlong"]["sequences"]:
        line += f"; {long:,} documents longer than a row, {figures['overlong']['lost_tokens']:,} tokens lost"
    return line


def prepare_options(config: DataConfig) -> PrepareOptions:
    """Return the options of a ``data`` section that determine the rows, except the sources."""
    sources = SourceOptions(
        text_field=config.text_field,
        text_unit=config.text_unit,
        separator=config.separator,
        strict=config.strict,
    )
    chat = ChatOptions(
        config.thinking,
        config.tools,
        config.answers,
        config.thinking_tags,
        dict(config.template),
        config.content_format,
    )
    return PrepareOptions(
        config.sequence_length,
        SequenceOptions(sources, config.append_eos, chat),
        config.overlong,
        HeldoutOptions(config.heldout_documents, config.heldout_prompts, config.prompt_tokens),
    )


def with_prepared(config: DataConfig) -> DataConfig:
    """Replace values of the section by those of ``prepared``; print a message that lists differing keys.

    Raises:
        ArtifactError: the folder is not a prepared-data artefact.
    """
    if config.prepared is None:
        return config
    values = data_values(load_prepared(config.prepared, verify=False).artifact.meta["options"])
    given = config.model_dump(mode="json")
    differing = [name for name in values if name in config.model_fields_set and given[name] != values[name]]
    if differing:
        named = ", ".join(f"{name} {_value(values[name])} (not {_value(given[name])})" for name in differing)
        say(f"The prepared data hold: {named}; other values need prepare-data again ({config.prepared})")
    return DataConfig.model_validate({**config.model_dump(), **values})


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)


def data_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options in a manifest to keys of the ``data`` section."""
    sequences, heldout = options["sequences"], options["heldout"]
    sources, chat = sequences["sources"], sequences["chat"]
    return {
        "heldout_documents": heldout["documents"],
        "heldout_prompts": heldout["prompts"],
        "prompt_tokens": heldout["prompt_tokens"],
        "text_field": sources["text_field"],
        "text_unit": sources["text_unit"],
        "separator": sources["separator"],
        "sequence_length": options["length"],
        "overlong": options["overlong"],
        "append_eos": sequences["append_eos"],
        "thinking": chat["thinking"],
        "tools": chat["tools"],
        "answers": chat["answers"],
        "thinking_tags": chat["thinking_tags"],
        "template": chat["variables"],
        "content_format": chat.get("content_format", "auto"),
    }


def batch_rows(count: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Return the row numbers of a step, which depend only on seed and step; epochs are permutations."""
    rows = []
    for index in range(step * batch_size, (step + 1) * batch_size):
        epoch, place = divmod(index, count)
        rows.append(int(_permutation(count, seed, epoch)[place]))
    return rows


@functools.lru_cache(maxsize=2)  # a batch may span two epochs
def _permutation(count: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


@dataclass(frozen=True)
class Division:
    """Division of a step's rows: ``share`` rows per process, ``micro`` rows per forward pass."""

    rank: int
    size: int
    share: int
    micro: int

    @property
    def passes(self) -> int:
        """Forward passes per step."""
        return self.share // self.micro

    def own(self, rows: Sequence[int]) -> list[list[int]]:
        """Return this process's micro-batches of a step's rows."""
        mine = rows[self.rank * self.share : (self.rank + 1) * self.share]
        return [list(mine[at : at + self.micro]) for at in range(0, self.share, self.micro)]


def divide(config: OptimConfig, rank: int, size: int) -> Division:
    """Divide ``optim.batch_size`` rows over processes and micro-batches.

    Raises:
        ConfigError: the rows cannot be divided evenly.
    """
    share = config.batch_size // size
    if share * size != config.batch_size:
        raise ConfigError(
            "the batch cannot be shared evenly",
            got=f"optim.batch_size {config.batch_size} over {size} processes",
            expected=f"a multiple of {size}",
            remedy=f"optim.batch_size={(share + 1) * size}, or a number of processes that divides it",
        )
    micro = share if config.micro_batch_size is None else min(config.micro_batch_size, share)
    if share % micro:
        whole = -(-share // micro) * micro * size
        divisor = next(number for number in range(micro, 0, -1) if share % number == 0)
        raise ConfigError(
            "the micro-batches do not fill a process's share",
            got=f"optim.micro_batch_size {micro} of {share} rows",
            expected=f"a divisor of {share}",
            remedy=f"optim.batch_size={whole}, or optim.micro_batch_size={divisor}",
        )
    return Division(rank, size, share, micro)
