"""Ceilings of a target over the texts of several domains: text to windows, windows to figures."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import DataError
from ..core.progress import ProgressBar
from ..corpus.sources import SourceOptions, iter_documents
from ..corpus.tokenizer import TextTokenizer
from ..models.lean import LeanModel
from ..vocab.select import Ids
from ..vocab.subset import VocabSubset
from .ceilings import CeilingMeter, Ceilings, measure_ceilings

_PIECE_CHARACTERS = 1 << 16
_POOL = 16  # windows looked at for each one taken


@dataclass(frozen=True)
class SampleSettings:
    """How much text the target reads.

    Attributes:
        tokens: about so many positions a domain.
        context: longest window; at most what the target allows.
        seed: of the choice of windows.
    """

    tokens: int = 8192
    context: int = 512
    seed: int = 0


def measure_target(
    model: LeanModel,
    tokenizer: TextTokenizer,
    texts: Mapping[str, Sequence[Path]],
    rankings: tuple[Ids, Mapping[str, VocabSubset]],
    sizes: Sequence[int],
    settings: SampleSettings,
) -> dict[str, Any]:
    """The ``ceilings`` of ``coverage.json``.

    Args:
        texts: domain -> files.
        rankings: (V,) all ids in rank order, and draft vocabularies by name.
        sizes: ks of the curves; the draft vocabularies' own sizes are added.

    Raises:
        DataError: a domain without text.
        MismatchError: see :func:`~vocabforge.evaluate.ceilings.measure_ceilings`.
    """
    ranked, vocabs = rankings
    rows = model.config.vocab_size
    every = sorted({*sizes, *map(len, vocabs.values())})
    context = min(settings.context, model.config.max_positions)
    windows = {
        name: sample_windows(tokenizer, files, tokens=settings.tokens, context=context, seed=settings.seed)
        for name, files in texts.items()
    }
    total = sum(len(window) for some in windows.values() for window in some)
    domains = {}
    with ProgressBar("target", total, "positions") as bar:
        for name, some in windows.items():
            # Numbers as keys, so that no vocabulary's name can hide another ranking.
            named = {"counted": ranked} | {
                str(at): subset.ranked for at, subset in enumerate(vocabs.values())
            }
            tensors = {key: torch.from_numpy(ids.copy()) for key, ids in named.items()}
            meter = CeilingMeter(tensors, every, rows, model.device)
            found = measure_ceilings(model, some, meter, on_tokens=bar.update)
            domains[name] = _facts(found, sizes, vocabs)
    return {
        "rows": rows,
        "padded_rows": rows - len(ranked),
        "context": context,
        "seed": settings.seed,
        "sizes": sorted(set(sizes)),
        "domains": domains,
    }


def _facts(found: Ceilings, sizes: Sequence[int], vocabs: Mapping[str, VocabSubset]) -> dict[str, Any]:
    def curve(values: Mapping[int, float]) -> list[float | None]:
        return [values.get(size) for size in sorted(set(sizes))]

    return {
        "positions": found.positions,
        "oracle": curve(found.oracle),
        "static": curve(found.static["counted"]),
        "greedy": curve(found.greedy["counted"]),
        "vocabularies": {
            name: {
                "size": len(subset),
                "static": found.static[str(at)][len(subset)],
                "oracle": found.oracle[len(subset)],
                "greedy": found.greedy[str(at)][len(subset)],
            }
            for at, (name, subset) in enumerate(vocabs.items())
        },
    }


def sample_windows(
    tokenizer: TextTokenizer, files: Sequence[Path], *, tokens: int, context: int, seed: int = 0
) -> list[list[int]]:
    """About ``tokens`` tokens in windows of at most ``context``, each with the tokenizer's prefix (BOS).

    Windows are drawn without repetition from the beginning of the files (16 times as many as are needed), in the
    order in which they stand there. Conversations are read as their contents, one under the other.

    Raises:
        DataError: the files hold no text.
    """
    room = max(1, context - len(tokenizer.prefix_ids))
    wanted = max(1, -(-tokens // context))
    pool: list[list[int]] = []
    for document in iter_documents(files, SourceOptions()):
        text = document.plain_text()
        for start in range(0, len(text), _PIECE_CHARACTERS):
            ids = tokenizer.encode(text[start : start + _PIECE_CHARACTERS])
            pool += [ids[at : at + room] for at in range(0, len(ids), room)]
            if len(pool) >= wanted * _POOL:
                break
        if len(pool) >= wanted * _POOL:
            break
    # The remainder of a document is often a few tokens: take it only where there is nothing longer.
    whole = [window for window in pool if len(window) == room]
    pool = whole if len(whole) >= wanted else [window for window in pool if window]
    if not pool:
        raise DataError(
            "the text has no tokens to run the target over",
            got=", ".join(map(str, files)),
            expected="files with text",
            remedy="check the files: all their documents are empty",
        )
    chosen = sorted(random.Random(seed).sample(range(len(pool)), min(wanted, len(pool))))
    return [[*tokenizer.prefix_ids, *pool[index]] for index in chosen]
