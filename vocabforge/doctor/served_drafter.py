"""Comparison of a drafter as a server would compute it with VocabForge's, and with what the target's weights imply.

The target's own greedy continuations give the states that servers pass to a drafter, and the tokens that it should
draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from ..decode.engine import Decoder
from ..export.servers.forward import Past, ServedDrafter
from ..export.servers.types import Folder, Served, ServedTarget
from ..export.servers.weights import HEAD
from ..models.drafters.interface import CachedDrafter, Drafter
from ..models.kv_cache import CacheView, causal_mask
from ..models.target.interface import Target, whole_pass
from .checks import Finding

STEPS = 4
_TOLERANCE = 2e-4
_SIGMAS = 2.5  # significance threshold of a paired difference
_HARDLY = 0.05  # fraction of tokens below which the drafter hardly drafts
_MARGIN = 0.05  # fraction of tokens; neighbours of similar quality are not reported
_REMEDY = "the map does not belong to these rows: export the drafter again (d2t holds offsets: target id = row + d2t)"
_ROWS = 64
_FITS = 0.9  # mean fraction of the target's rows that are farther away than the token's own row
_BETTER = 0.2
_COPIED = 0.9  # cosine above which a row counts as a nearly untrained copy of a target row
PROMPTS = (
    "The capital of France is",
    "def add(a, b):\n    return",
    "Once upon a time there was a little",
    "To make bread, first mix the flour with",
    "Question: What is 12 + 30?\nAnswer:",
    "The weather was cold, so she",
    "import numpy as np\n\nx =",
    "In the year 1969, the first",
)


@dataclass(frozen=True)
class ProbedText:
    """A text and the target's outputs for it.

    Attributes:
        ids: (T,) prompt and the target's own greedy continuation.
        start: number of prompt tokens.
        hidden: (T, H) states after the final norm.
        outputs: layer (0-based) -> (T, H) output.
        choices: (T,) the target's next token at each position.
    """

    ids: Tensor
    start: int
    hidden: Tensor
    outputs: dict[int, Tensor]
    choices: Tensor

    def features(self, layers: Sequence[int]) -> Tensor:
        """Return the (T, n * H) outputs of some layers; the (T, H) final hidden states if there are none."""
        return torch.cat([self.outputs[layer] for layer in layers], -1) if layers else self.hidden


@torch.inference_mode()
def probe(
    model: Target, prompts: Sequence[Sequence[int]], new: int, layers: Sequence[int]
) -> list[ProbedText]:
    """Continue every prompt greedily by ``new`` tokens; run the whole text for the states of ``layers``."""
    wanted = tuple(sorted(set(layers)))
    return [_text(model, list(prompt), new, wanted) for prompt in prompts]


def _text(model: Target, prompt: list[int], new: int, layers: tuple[int, ...]) -> ProbedText:
    context = min(model.config.max_positions, len(prompt) + new + 1)
    made = Decoder(model, None, context=context).generate(
        prompt, max_new_tokens=context - len(prompt) - 1, stop_ids=()
    )
    ids = torch.tensor([*prompt, *made.token_ids])
    output = whole_pass(model, ids[None], layers)
    hidden = output.hidden[0].float().cpu()
    parts = () if output.aux is None else output.aux[0].float().cpu().chunk(len(layers), -1)
    choices = model.logits(output.hidden)[0].argmax(-1).cpu()
    return ProbedText(ids, len(prompt), hidden, dict(zip(layers, parts)), choices)


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
    summary = f"within {max(gaps):.1e} of {title}'s arithmetic over {len(text.ids) - 1} tokens and {STEPS} draft steps"
    if not max(gaps) <= _TOLERANCE * max(1.0, size):
        place = "the prefill" if gaps[0] > _TOLERANCE * max(1.0, size) else "a draft step"
        return Finding(
            f"{title} would compute other logits: {max(gaps):.2g} apart (of up to {size:.3g}), first in {place}",
            "failed",
            "compare the configuration as the server reads it (rows above) with the training's",
        )
    return Finding(f"{summary} (logits up to {size:.3g})")


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


def neighbours(layers: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Return the layers shifted by -1 and by +1, if a target of ``count`` layers has them."""
    shifted = [tuple(layer + shift for layer in layers) for shift in (-1, 1)]
    return [neighbour for neighbour in shifted if min(neighbour) >= 0 and max(neighbour) < count]


def wanted_layers(layers: Sequence[tuple[int, ...]], count: int) -> list[int]:
    """Return all layers whose outputs :func:`check_layers_by_acceptance` needs."""
    return sorted({layer for own in layers for way in (own, *neighbours(own, count)) for layer in way})


@torch.inference_mode()
def agreement(served: Served, layers: tuple[int, ...], texts: Sequence[ProbedText]) -> Tensor:
    """Compare each first draft token with the target's token, over all continuations: (N,) bool.

    Every row reads the real token and the target's states at the previous position.
    """
    model = served.drafter
    assert model is not None
    made = [_drafts(model, layers, text) for text in texts]
    rows, choices = torch.cat([rows for rows, _ in made]), torch.cat([tokens for _, tokens in made])
    return (rows if served.target_ids is None else served.target_ids[rows]) == choices


def _drafts(model: ServedDrafter, layers: tuple[int, ...], text: ProbedText) -> tuple[Tensor, Tensor]:
    states = model.fuse(text.features(layers)[:-1])
    logits, _ = model.step(text.ids[1:], states, torch.arange(len(text.ids) - 1), Past())
    return logits.argmax(-1)[text.start - 1 :], text.choices[text.start :]


def check_layers_by_acceptance(served: Served, texts: Sequence[ProbedText], count: int) -> Finding[None]:
    """Compare the server's layers with their neighbours; if these draft better, the numbering is wrong."""
    own = agreement(served, served.layers, texts)
    share, rows = float(own.float().mean()), len(own)
    summary = f"first draft tokens that are the target's: {share:.1%} of {rows:,} with outputs {list(served.layers)}"
    better, highest = None, share
    for layers in neighbours(served.layers, count):
        other = agreement(served, layers, texts)
        there = float(other.float().mean())
        summary += f", {there:.1%} with {list(layers)}"
        highest = max(highest, there)
        if clearly_better(other, own) and (better is None or there > better[1]):
            better = layers, there
    if better is None and share < _HARDLY:
        return Finding(
            f"{summary}: it hardly drafts, so the layers cannot be determined",
            "warning",
            "untrained, made for another target, or with a map of other tokens (head rows, below)",
        )
    if better is None:
        return Finding(summary if highest == share else f"{summary}: no clear difference")
    return Finding(
        summary,
        "failed",
        f"the drafter reads outputs {list(better[0])}: {served.title} needs them in its numbering, which "
        "vocabforge export writes for every server",
    )


def clearly_better(other: Tensor, own: Tensor) -> bool:
    """Return whether ``other`` is better by a significant (McNemar 1947) and relevant margin."""
    gained, lost = int((other & ~own).sum()), int((own & ~other).sum())
    return gained - lost > max(_MARGIN * len(own), _SIGMAS * (gained + lost) ** 0.5)


@torch.inference_mode()
def check_head_rows(served: Served, folder: Folder, target: ServedTarget) -> Finding[None]:
    """Check that every head row is closer to the target's row of its token than to most other rows.

    This holds if the head was initialised from the target, as in most drafters: training moves the rows only
    a little. If another reading of the map fits the rows better, the map is wrong.
    """
    if not served.own_head or served.drafter is None:
        return Finding("the target's head: nothing to compare")
    head = served.drafter.parameters[HEAD]
    ids = torch.arange(len(head)) if served.target_ids is None else served.target_ids
    some = torch.linspace(0, len(head) - 1, min(_ROWS, len(head))).round().long()
    cosines = F.normalize(head[some]) @ F.normalize(target.head.float().cpu()).T  # (n, V)
    nearer = _nearer(cosines, ids[some])
    own = float(cosines.gather(1, ids[some][:, None]).mean())
    summary = f"the target's row of its token is nearer than {nearer:.0%} of all ({len(some)} rows, cosine {own:.2f})"
    if nearer >= _FITS:
        return Finding(summary)
    for words, other in _readings(ids, folder).items():
        if _nearer(cosines, other[some]) >= max(_FITS, nearer + _BETTER):
            return Finding(f"{summary}; they fit the ids {words}", "failed", _REMEDY)
    if float(cosines.max(-1).values.median()) >= _COPIED:
        return Finding(f"{summary}; they are the target's rows of other tokens", "failed", _REMEDY)
    return Finding(f"{summary}; no other reading of the map fits them better")


def _nearer(cosines: Tensor, ids: Tensor) -> float:
    """Return the mean fraction of other rows farther away than the rows of ``ids`` (n,); 0.5 is chance."""
    total = cosines.shape[1]
    valid = (ids >= 0) & (ids < total)
    own = cosines.gather(1, ids.clamp(0, total - 1)[:, None])
    shares = (cosines < own).sum(-1) / max(total - 1, 1)
    return float((shares * valid).mean())


def _readings(ids: Tensor, folder: Folder) -> dict[str, Tensor]:
    """Return common misreadings of the map and the ids (R,) that each would give."""
    readings = {
        "one lower": ids - 1,
        "one higher": ids + 1,
        "of the next rows": ids.roll(-1),
        "of the rows before": ids.roll(1),
        "0, 1, 2, …": torch.arange(len(ids)),
    }
    d2t = folder.tensors.get("d2t")
    if d2t is None or len(d2t) != len(ids):
        return readings
    return {"that d2t holds, taken for ids": d2t.long(), **readings}
