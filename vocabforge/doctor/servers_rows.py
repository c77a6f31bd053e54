"""Checks of a served drafter: its LM head rows against the target's, and its target layers by acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..evaluate.acceptance.probe import ProbedText
from ..export.servers.forward import Past, ServedDrafter
from ..export.servers.types import Folder, Served, ServedTarget
from ..export.servers.weights import HEAD
from .checks import Finding

_SIGMAS = 2.5  # significance threshold of a paired difference
_HARDLY = 0.05  # fraction of tokens below which the drafter hardly drafts
_MARGIN = 0.05  # fraction of tokens; neighbours of similar quality are not reported


def neighbours(layers: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Return the layers shifted by -1 and by +1, if a target of ``count`` layers has them."""
    shifted = [tuple(layer + shift for layer in layers) for shift in (-1, 1)]
    return [one for one in shifted if min(one) >= 0 and max(one) < count]


def wanted_layers(layers: Sequence[tuple[int, ...]], count: int) -> list[int]:
    """Return all layers whose outputs :func:`check_layers_by_acceptance` needs."""
    return sorted({layer for one in layers for way in (one, *neighbours(one, count)) for layer in way})


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
    found = f"first draft tokens that are the target's: {share:.1%} of {rows:,} with outputs {list(served.layers)}"
    better, highest = None, share
    for layers in neighbours(served.layers, count):
        other = agreement(served, layers, texts)
        there = float(other.float().mean())
        found += f", {there:.1%} with {list(layers)}"
        highest = max(highest, there)
        if clearly_better(other, own) and (better is None or there > better[1]):
            better = layers, there
    if better is None and share < _HARDLY:
        return Finding(
            f"{found}: it hardly drafts, so the layers cannot be determined",
            "warning",
            "untrained, made for another target, or with a map of other tokens (head rows, below)",
        )
    if better is None:
        return Finding(found if highest == share else f"{found}: no clear difference")
    return Finding(
        found,
        "failed",
        f"the drafter reads outputs {list(better[0])}: {served.title} needs them in its numbering, which "
        "vocabforge export writes for every server",
    )


def clearly_better(other: Tensor, own: Tensor) -> bool:
    """Return whether ``other`` is better by a significant (McNemar 1947) and relevant margin."""
    gained, lost = int((other & ~own).sum()), int((own & ~other).sum())
    return gained - lost > max(_MARGIN * len(own), _SIGMAS * (gained + lost) ** 0.5)


_REMEDY = "the map does not belong to these rows: export the drafter again (d2t holds offsets: target id = row + d2t)"
_ROWS = 64
_FITS = 0.9  # mean fraction of the target's rows that are farther away than the token's own row
_BETTER = 0.2
_COPIED = 0.9  # cosine above which a row counts as a nearly untrained copy of a target row


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
    cosines = _cosines(head[some], target.head.float().cpu())  # (n, V)
    nearer = _nearer(cosines, ids[some])
    own = float(cosines.gather(1, ids[some][:, None]).mean())
    found = f"the target's row of its token is nearer than {nearer:.0%} of all ({len(some)} rows, cosine {own:.2f})"
    if nearer >= _FITS:
        return Finding(found)
    for words, other in _readings(ids, folder).items():
        if _nearer(cosines, other[some]) >= max(_FITS, nearer + _BETTER):
            return Finding(f"{found}; they fit the ids {words}", "failed", _REMEDY)
    if float(cosines.max(-1).values.median()) >= _COPIED:
        return Finding(f"{found}; they are the target's rows of other tokens", "failed", _REMEDY)
    return Finding(f"{found}; no other reading of the map fits them better")


def _cosines(rows: Tensor, head: Tensor) -> Tensor:
    """Compute cosine similarities: (n, H), (V, H) -> (n, V)."""
    tiny = torch.finfo(torch.float32).tiny
    norms = rows.norm(dim=-1, keepdim=True) * head.norm(dim=-1)
    return rows @ head.T / norms.clamp(min=tiny)


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
