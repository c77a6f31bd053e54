"""What the drafters of a study learn from: texts of the sources mixed with the target's own answers, packed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..core.files import atomic_write, sha256_file
from ..corpus.chat import render_with_mask
from ..corpus.conversation import parse_conversation
from ..corpus.tokenizer import TextTokenizer
from ..train.config import DataConfig
from ..train.data import TrainData, prepare
from .answer_prompts import spread_by_source
from .config import DraftersConfig, StudyConfig
from .layout import Layout
from .vocab import content_of, heldout_files

FOLDER = "prepared"
TRAIN, HELDOUT = "train.jsonl", "heldout.jsonl"
_SAMPLE = 256  # conversations whose tokens are counted, to know how many a share of the rows takes
_HELDOUT = 8  # conversations of each held-out source: few, as held-out figures are exact over all ids


def mix(config: StudyConfig, layout: Layout, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Write the conversations that drafters learn from, and a few held-out ones, below ``layout.root``.

    Of both kinds so many are taken that ``drafters.corpus_share`` of the tokens are texts of the sources, evenly over
    each source, and no more than the full drafter's steps read once.

    Returns:
        ``files``: path and SHA-256 of each; ``conversations`` and ``tokens`` (estimated) of each kind.

    Raises:
        DataError: a row is malformed.
    """
    own, share = config.drafters, config.drafters.corpus_share
    lines = {"texts": _lines(layout.train_texts) if share > 0 else []}
    lines["own"] = _lines(layout.own_texts) if share < 1 else []
    each = {name: _mean_tokens(found, tokenizer) if found else 0.0 for name, found in lines.items()}
    have = {name: each[name] * len(found) for name, found in lines.items()}
    tokens = dict(zip(lines, shared_tokens(have["texts"], have["own"], own)))
    chosen = {name: _spread(found, tokens[name] / (each[name] or 1.0)) for name, found in lines.items()}
    folder = layout.root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / TRAIN, _text(interleaved(chosen["texts"], chosen["own"])))
    sources = [_spread(_lines(path), _HELDOUT) for path in heldout_files(config, layout).values()]
    atomic_write(folder / HELDOUT, _text(line for row in zip_longest(*sources) for line in row if line))
    return {
        "files": {str(path): sha256_file(path) for path in (folder / TRAIN, folder / HELDOUT)},
        "conversations": {name: len(found) for name, found in chosen.items()},
        "tokens": {name: round(each[name] * len(found)) for name, found in chosen.items()},
    }


def mix_key(config: StudyConfig, layout: Layout, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Everything that decides what :func:`mix` writes.

    Raises:
        DataError: a file of another stage is missing.
    """
    own = config.drafters
    return {
        "texts": content_of(layout.train_texts, "data"),
        "own": content_of(layout.own_texts, "answers"),
        "heldout": {name: content_of(path, "data") for name, path in heldout_files(config, layout).items()},
        "tokenizer": tokenizer.fingerprint,
        "share": own.corpus_share,
        "tokens": _needed(own),
    }


def mix_fits(made: Mapping[str, Any]) -> bool:
    """Whether the files of :func:`mix` are there as they were written."""
    return all(
        Path(path).is_file() and sha256_file(Path(path)) == digest for path, digest in made["files"].items()
    )


def packed(config: StudyConfig, layout: Layout, tokenizer: TextTokenizer) -> TrainData:
    """The mixed conversations as packed rows, made once and found again by their content.

    Raises:
        DataError: nothing to learn from.
        ConfigError: too few conversations to hold some out, where no source is held out.
    """
    folder = layout.root / FOLDER
    heldout = (folder / HELDOUT,) if (folder / HELDOUT).stat().st_size else ()
    there = len(_lines(folder / TRAIN))
    data = DataConfig(
        train=(folder / TRAIN,),
        heldout=heldout,
        heldout_documents=min(_HELDOUT, max(1, there // _HELDOUT)),  # where no source is held out
        sequence_length=config.drafters.sequence_length,
        overlong="split",  # a long prompt must not take its answer with it
    )
    return prepare(data, tokenizer, cache=folder)


def shared_tokens(texts: float, own: float, config: DraftersConfig) -> tuple[float, float]:
    """Tokens to take of the texts and of the target's own answers.

    Args:
        texts, own: tokens that there are.

    Returns:
        what has the wanted share, as much as the full drafter's steps read once, less where one of both runs out.
    """
    share, total = config.corpus_share, float(_needed(config))
    if share > 0:
        total = min(total, texts / share)
    if share < 1:
        total = min(total, own / (1 - share))
    return total * share, total * (1 - share)


def interleaved(*parts: Sequence[str]) -> Iterator[str]:
    """All lines, each part's in its order and spread evenly over the whole."""
    placed = [
        ((number + 0.5) / len(part), which, line)
        for which, part in enumerate(parts)
        for number, line in enumerate(part)
    ]
    yield from (line for _, _, line in sorted(placed, key=lambda one: one[:2]))


def _needed(config: DraftersConfig) -> int:
    """Tokens that the full drafter's steps read."""
    return config.full.steps * config.full.batch_size * config.sequence_length


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text("utf-8").split("\n") if line.strip()]


def _text(lines: Iterator[str]) -> str:
    return "".join(line + "\n" for line in lines)


def _spread(lines: Sequence[str], count: float) -> list[str]:
    """About ``count`` of the lines, evenly over the rows of each source; one at least."""
    if not lines:
        return []
    sources = [str(json.loads(line).get("source", "")) for line in lines]
    return [lines[place] for place in spread_by_source(sources, max(1, round(count)))]


def _mean_tokens(lines: Sequence[str], tokenizer: TextTokenizer) -> float:
    """Tokens of a conversation, from a sample; 0 where none of it can be rendered."""
    sizes = []
    for line in _spread(lines, _SAMPLE):
        with contextlib.suppress(DataError):  # counted and named when the rows are packed
            sizes.append(len(render_with_mask(tokenizer, parse_conversation(json.loads(line)) or [])[0]))
    return sum(sizes) / max(len(sizes), 1)
