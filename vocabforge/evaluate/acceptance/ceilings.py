"""How much a draft vocabulary can accept at best, from the target's own distributions (DynaSpec, lemmas 1 and 2).

Lemma 1: over a support S the best possible acceptance is the target's mass of S, ``sum_{v in S} p(v)``; a
drafter that proposes ``p`` restricted to S reaches it. Lemma 2: among supports of size k the best one, chosen
anew at each position, is the top-k of p. The first is the static ceiling of a draft vocabulary, the second the
oracle ceiling that any dynamic draft head of size k stays below.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DataError
from ...core.progress import ProgressBar
from ...corpus.sources.sources import SourceOptions, iter_documents
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...models.target.interface import Target
from ...vocab.subset.select import Ids
from ...vocab.subset.subset import VocabSubset
from ..identity.rounding import whole_pass

ROW_BUDGET = 1 << 24
"""Most logits held at once, in numbers: 64 MiB a copy in fp32, whatever V is."""
_BATCH_TOKENS = 2048


def masses(p: Tensor) -> Tensor:
    """Sums over the rows of (N, V) probabilities, from which all ceilings follow: (3, V) float64.

    The mass of each id (lemma 1), the mass of the row's n-th best id (lemma 2), and the rows of which each id is the
    argmax: under greedy decoding only the argmax is ever accepted.
    """
    if p.device.type == "cpu":
        ascending = torch.from_numpy(np.sort(p.numpy(), axis=-1))  # ten times as fast as torch's sort
    else:
        ascending = p.sort(dim=-1).values
    best = torch.bincount(p.argmax(-1), minlength=p.shape[-1])
    by_id, by_place = (one.sum(0, dtype=torch.float64) for one in (p, ascending))
    return torch.stack([by_id, by_place.flip(0), best.double()])


def of_first(mass: Tensor, sizes: Tensor) -> Tensor:
    """Mass of the first k: (R,), (K,) -> (K,)."""
    return mass.cumsum(0)[sizes - 1]


@torch.inference_mode()
def measure_ceilings(
    model: Target,
    windows: Sequence[Sequence[int]],
    rankings: Mapping[str, Tensor],
    sizes: Sequence[int],
    *,
    on_tokens: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Run the target over token windows and average the ceilings of all its next-token distributions.

    Args:
        rankings: name -> (R,) int64 ids in rank order; sizes beyond R are left out for it.

    Returns:
        ``positions``; ``oracle``: size -> top-k mass; ``static`` and ``greedy``: ranking -> size -> mass of its first
        k ids, and share of positions whose argmax is among them.
    """
    rows = model.config.vocab_size
    longest = max((len(window) for window in windows), default=0)
    ks = torch.tensor(sorted({size for size in sizes if 1 <= size <= rows}), device=model.device)
    placed = {name: ranked.to(model.device) for name, ranked in rankings.items()}
    totals = torch.zeros(3, rows, dtype=torch.float64, device=model.device)
    positions, batch = 0, max(1, _BATCH_TOKENS // max(longest, 1))
    for start in range(0, len(windows), batch):
        hidden = final_states(model, windows[start : start + batch])  # (N, H)
        for part in hidden.split(max(1, ROW_BUDGET // rows)):
            totals += masses(torch.softmax(model.logits(part).float(), dim=-1))
        positions += len(hidden)
        if on_tokens is not None:
            on_tokens(len(hidden))

    def means(mass: Tensor) -> dict[int, float]:
        fitting = ks[ks <= len(mass)]
        found = of_first(mass, fitting) / positions
        # Sums of rounded probabilities can end a little above 1.
        return dict(zip(fitting.tolist(), found.clamp(max=1.0).tolist()))

    by_id, by_place, best = totals
    return {
        "positions": positions,
        "oracle": means(by_place),
        "static": {name: means(by_id[ranked]) for name, ranked in placed.items()},
        "greedy": {name: means(best[ranked]) for name, ranked in placed.items()},
    }


@torch.inference_mode()
def final_states(model: Target, windows: Sequence[Sequence[int]]) -> Tensor:
    """(N, H) final hidden states of all tokens of a few windows, padding left out."""
    longest = max(len(window) for window in windows)
    ids = torch.zeros(len(windows), longest, dtype=torch.int64)  # (B, T), padded at the end with id 0
    for row, window in enumerate(windows):
        ids[row, : len(window)] = torch.tensor(list(window))
    hidden = whole_pass(model, ids).hidden
    return torch.cat([hidden[row, : len(window)] for row, window in enumerate(windows)])


_PIECE_CHARACTERS = 1 << 16
_POOL = 16  # windows looked at for each one taken


def measure_target(
    model: Target,
    tokenizer: TextTokenizer,
    texts: Mapping[str, Sequence[Path]],
    rankings: tuple[Ids, Mapping[str, VocabSubset]],
    sizes: Sequence[int],
    *,
    tokens: int,
    context: int,
    seed: int = 0,
) -> dict[str, Any]:
    """The ``ceilings`` of ``coverage.json``.

    Args:
        texts: domain -> files.
        rankings: (V,) all ids in rank order, and draft vocabularies by name; their own sizes are added to ``sizes``.
        tokens, context: about so many positions a domain; longest window, at most what the target allows.

    Raises:
        DataError: a domain without text.
    """
    ranked, vocabs = rankings
    rows = model.config.vocab_size
    every = sorted({*sizes, *map(len, vocabs.values())})
    context = min(context, model.config.max_positions)
    with ProgressBar("read the text"):
        windows = {
            name: sample_windows(tokenizer, files, tokens=tokens, context=context, seed=seed)
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
            found = measure_ceilings(model, some, tensors, every, on_tokens=bar.update)
            domains[name] = _facts(found, sizes, vocabs)
    return {
        "rows": rows,
        "padded_rows": rows - len(ranked),
        "context": context,
        "seed": seed,
        "sizes": sorted(set(sizes)),
        "domains": domains,
    }


def _facts(
    found: Mapping[str, Any], sizes: Sequence[int], vocabs: Mapping[str, VocabSubset]
) -> dict[str, Any]:
    def of(kind: str, name: str, size: int) -> float | None:
        values = found[kind] if kind == "oracle" else found[kind][name]
        return values.get(size)

    kinds, ladder = ("oracle", "static", "greedy"), sorted(set(sizes))
    return {
        "positions": found["positions"],
        **{kind: [of(kind, "counted", size) for size in ladder] for kind in kinds},
        "vocabularies": {
            name: {"size": len(subset)} | {kind: of(kind, str(at), len(subset)) for kind in kinds}
            for at, (name, subset) in enumerate(vocabs.items())
        },
    }


def sample_windows(
    tokenizer: TextTokenizer, files: Sequence[Path], *, tokens: int, context: int, seed: int = 0
) -> list[list[int]]:
    """About ``tokens`` tokens in windows of at most ``context``, each with the tokenizer's prefix (BOS).

    Windows are drawn without repetition from the beginning of the files (16 times as many as are needed), in the
    order of the files; documents are kept apart. Conversations are read as their contents, one under the other.

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
