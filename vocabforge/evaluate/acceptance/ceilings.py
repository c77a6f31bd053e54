"""Upper bounds on a draft vocabulary's acceptance from the target's distributions (DynaSpec, lemmas 1 and 2).

Lemma 1: over a support S the best possible acceptance is the target's mass of S, ``sum_{v in S} p(v)``. A
drafter that proposes ``p`` restricted to S reaches it. Lemma 2: among supports of size k chosen per position,
the best is the top-k of p. The first bound is the static ceiling of a draft vocabulary, the second the oracle
ceiling of any dynamic draft head of size k.
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
"""Maximum number of logits held at once, for any V: 64 MiB per copy in fp32."""
_BATCH_TOKENS = 2048


def masses(p: Tensor) -> Tensor:
    """Sum (N, V) probabilities over rows to the (3, V) float64 statistics from which all ceilings follow.

    Per id its mass (lemma 1); per n the mass of a row's n-th likeliest id (lemma 2); per id the number of
    rows with this argmax, the only token that greedy decoding accepts.
    """
    if p.device.type == "cpu":
        ascending = torch.from_numpy(np.sort(p.numpy(), axis=-1))  # ten times faster than torch's sort
    else:
        ascending = p.sort(dim=-1).values
    best = torch.bincount(p.argmax(-1), minlength=p.shape[-1])
    by_id, by_place = (one.sum(0, dtype=torch.float64) for one in (p, ascending))
    return torch.stack([by_id, by_place.flip(0), best.double()])


@torch.inference_mode()
def measure_masses(
    model: Target, windows: Sequence[Sequence[int]], *, on_tokens: Callable[[int], object] | None = None
) -> tuple[Tensor, int]:
    """Return :func:`masses` of the target's next-token distributions over token windows, and their number."""
    rows = model.config.vocab_size
    totals = torch.zeros(3, rows, dtype=torch.float64, device=model.device)
    longest = max((len(window) for window in windows), default=0)
    positions, batch = 0, max(1, _BATCH_TOKENS // max(longest, 1))
    for start in range(0, len(windows), batch):
        hidden = final_states(model, windows[start : start + batch])  # (N, H)
        for part in hidden.split(max(1, ROW_BUDGET // rows)):
            totals += masses(torch.softmax(model.logits(part).float(), dim=-1))
        positions += len(hidden)
        if on_tokens is not None:
            on_tokens(len(hidden))
    return totals.cpu(), positions


def ceilings_of(
    totals: Tensor, positions: int, ranked: Tensor, sizes: Sequence[int]
) -> dict[str, list[float | None]]:
    """Return the ceilings of the first k of (R,) ranked ids for each size k; None where there are fewer ids.

    ``oracle``: the top-k mass; ``static``: the mass of the ids; ``greedy``: how often the argmax is among them.
    """
    by_id, by_place, best = totals / positions
    shares = {"oracle": by_place, "static": by_id[ranked], "greedy": best[ranked]}
    # Sums of rounded probabilities can slightly exceed 1.
    return {
        kind: [min(float(mass[:size].sum()), 1.0) if size <= len(mass) else None for size in sizes]
        for kind, mass in shares.items()
    }


@torch.inference_mode()
def final_states(model: Target, windows: Sequence[Sequence[int]]) -> Tensor:
    """Return the (N, H) final hidden states of all tokens of a few windows, without padding."""
    longest = max(len(window) for window in windows)
    ids = torch.zeros(len(windows), longest, dtype=torch.int64)  # (B, T), right-padded with id 0
    for row, window in enumerate(windows):
        ids[row, : len(window)] = torch.tensor(list(window))
    hidden = whole_pass(model, ids).hidden
    return torch.cat([hidden[row, : len(window)] for row, window in enumerate(windows)])


_PIECE_CHARACTERS = 1 << 16
_POOL = 16  # windows read for each window kept


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
    """Measure the ``ceilings`` of ``coverage.json``.

    Args:
        texts: domain -> files.
        rankings: all (V,) ids in rank order, and draft vocabularies by name.
        tokens: approximate number of positions per domain.
        context: maximum length of a window, further limited by the target.

    Raises:
        DataError: a domain has no text.
    """
    ranked, vocabs = rankings
    rows, ladder = model.config.vocab_size, sorted(set(sizes))
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
            totals, positions = measure_masses(model, some, on_tokens=bar.update)
            own = {}
            for label, subset in vocabs.items():
                size, ids = len(subset), torch.from_numpy(subset.ranked.copy())
                found = ceilings_of(totals, positions, ids, [size])
                own[label] = {"size": size} | {kind: values[0] for kind, values in found.items()}
            every = ceilings_of(totals, positions, torch.from_numpy(ranked.copy()), ladder)
            domains[name] = {"positions": positions, **every, "vocabularies": own}
    return {
        "rows": rows,
        "padded_rows": rows - len(ranked),
        "context": context,
        "seed": seed,
        "sizes": ladder,
        "domains": domains,
    }


def sample_windows(
    tokenizer: TextTokenizer, files: Sequence[Path], *, tokens: int, context: int, seed: int = 0
) -> list[list[int]]:
    """Sample about ``tokens`` tokens in windows of at most ``context``, each with the tokenizer's BOS prefix.

    Windows are drawn without replacement from the beginning of the files (16 times the needed amount) and
    kept in file order; no window spans two documents. Conversations are reduced to their contents, one per
    line.

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
    # The remainder of a document is often only a few tokens: use it only if there is nothing longer.
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
