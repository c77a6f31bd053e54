"""Comparison of a drafter's logits as computed by a server and by VocabForge."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ..evaluate.acceptance.probe import ProbedText
from ..export.servers.forward import Past
from ..export.servers.types import Served
from ..models.drafters.interface import CachedDrafter, Drafter
from ..models.kv_cache import CacheView, causal_mask
from .checks import Finding

STEPS = 4
_TOLERANCE = 2e-4


@torch.inference_mode()
def check_logits(served: Served, drafter: Drafter, text: ProbedText, title: str) -> Finding[None]:
    """Compare logits over the prefill of a text and ``STEPS`` draft steps.

    In each step both sides read the server's token and their own last state.
    """
    theirs, choices = server_logits(served, text)
    ours = our_logits(cast(CachedDrafter, drafter), served.layers, text, choices)
    inside = _scored(served, drafter)
    if inside is not None:
        return Finding(inside, "failed", "the head rows map to other tokens: export the drafter again")
    size = float(torch.stack([row.abs().max() for row in theirs]).max())
    gaps = [float((a - b).abs().max()) for a, b in zip(theirs, ours)]
    found = f"within {max(gaps):.1e} of {title}'s arithmetic over {len(text.ids) - 1} tokens and {STEPS} draft steps"
    if not max(gaps) <= _TOLERANCE * max(1.0, size):
        place = "the prefill" if gaps[0] > _TOLERANCE * max(1.0, size) else "a draft step"
        return Finding(
            f"{title} would compute other logits: {max(gaps):.2g} apart (of up to {size:.3g}), first in {place}",
            "failed",
            "compare the configuration as the server reads it (rows above) with the training's",
        )
    return Finding(f"{found} (logits up to {size:.3g})")


def _scored(served: Served, drafter: Drafter) -> str | None:
    """Return a message if the two sides map the head's rows to different tokens, or None."""
    ids = drafter.target_ids.cpu()
    theirs = torch.arange(drafter.config.vocab_size) if served.target_ids is None else served.target_ids
    if len(ids) == len(theirs) and torch.equal(ids.sort().values, theirs.sort().values):
        return None
    common = int(torch.isin(theirs, ids).sum())
    return f"{len(theirs):,} tokens scored by the server, {len(ids):,} by vocabforge, {common:,} by both"


def server_logits(served: Served, text: ProbedText) -> tuple[list[Tensor], list[int]]:
    """Compute the server's logits of the prefill (T - 1, R) and of each step (1, R).

    Returns:
        The logits, with columns in ascending order of target ids, and the target ids fed in the steps.
    """
    model = served.drafter
    assert model is not None
    order = None if served.target_ids is None else served.target_ids.argsort()
    ids = text.ids[1:]
    past, states = Past(), model.fuse(text.features(served.layers)[:-1])
    rows, fed = [], []
    positions = torch.arange(len(ids))
    for step in range(STEPS + 1):
        logits, states = model.step(ids, states, positions, past)
        best = int(logits[-1].argmax())
        fed.append(best if served.target_ids is None else int(served.target_ids[best]))
        rows.append(logits if order is None else logits[:, order])
        ids, states = torch.tensor(fed[-1:]), states[-1:]
        positions = torch.tensor([len(text.ids) - 1 + step])
    return rows, fed


def our_logits(
    drafter: CachedDrafter, layers: tuple[int, ...], text: ProbedText, fed: list[int]
) -> list[Tensor]:
    """Compute the same logits with VocabForge's drafter as used in decoding."""
    count = len(text.ids) - 1
    drafter.ensure_positions(count + STEPS + 1)
    like = next(drafter.parameters())
    cache = drafter.new_cache(1, count + STEPS)
    ids = text.ids[1:].to(like.device)
    states = drafter.fuse(text.features(layers)[:-1].to(like))[None]
    positions = torch.arange(count, device=like.device)
    every = torch.arange(count + STEPS, device=like.device)
    rows = []
    for step in range(STEPS + 1):
        cached = CacheView(cache, positions, causal_mask(positions, every))
        states, _ = drafter.extend(ids[None], states, positions[None], cached)
        rows.append(drafter.logits(states)[0].float().cpu())
        ids, states = torch.tensor(fed[step : step + 1], device=like.device), states[:, -1:]
        positions = torch.tensor([count + step], device=like.device)
    return rows
