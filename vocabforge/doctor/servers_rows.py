"""Checks of a served drafter by its drafts: rows of its LM head against the target's, and its target layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..evaluate.acceptance.probe import ProbedText
from ..export.servers.forward import Past, ServedDrafter
from ..export.servers.types import Folder, Served, ServedTarget
from ..export.servers.weights import HEAD
from .checks import Finding

_SIGMAS = 2.5  # of a paired difference that is not chance
_HARDLY = 0.05  # of the tokens
_MARGIN = 0.05  # of the tokens, so that neighbours which are as good raise no alarm


def neighbours(layers: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """The same layers one below and one above, where a target of ``count`` layers has them."""
    shifted = [tuple(layer + shift for layer in layers) for shift in (-1, 1)]
    return [one for one in shifted if min(one) >= 0 and max(one) < count]


def wanted_layers(layers: Sequence[tuple[int, ...]], count: int) -> list[int]:
    """All layers whose outputs :func:`check_layers_by_acceptance` needs."""
    return sorted({layer for one in layers for way in (one, *neighbours(one, count)) for layer in way})


@torch.inference_mode()
def agreement(served: Served, layers: tuple[int, ...], texts: Sequence[ProbedText]) -> Tensor:
    """Whether each first draft token is the target's, over the continuations (N,) bool.

    Every row is fed the real token and the target's states of the position before.
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
    """The server's layers against their neighbours: a wrong numbering shows as better neighbours."""
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
    """Better by more than chance (McNemar 1947) and by enough to matter."""
    gained, lost = int((other & ~own).sum()), int((own & ~other).sum())
    return gained - lost > max(_MARGIN * len(own), _SIGMAS * (gained + lost) ** 0.5)


_REMEDY = "the map does not belong to these rows: export the drafter again (d2t holds offsets: target id = row + d2t)"
_ROWS = 64
_FITS = 0.9  # mean share of the target's rows that are farther away than the token's own
_BETTER = 0.2
_COPIED = 0.9  # cosine of a row that is one of the target's, all but untrained


@torch.inference_mode()
def check_head_rows(served: Served, folder: Folder, target: ServedTarget) -> Finding[None]:
    """Every row is nearer to the target's row of its own token than to most, if it was started there.

    Most drafters' heads are started there, and training moves the rows less than that. Rows that another reading of
    the map fits better tell that the map is wrong.
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
    """(n, H), (V, H) -> (n, V)."""
    tiny = torch.finfo(torch.float32).tiny
    norms = rows.norm(dim=-1, keepdim=True) * head.norm(dim=-1)
    return rows @ head.T / norms.clamp(min=tiny)


def _nearer(cosines: Tensor, ids: Tensor) -> float:
    """Mean share of the other tokens' rows that are farther away than that of ``ids`` (n,); 0.5 is chance."""
    total = cosines.shape[1]
    valid = (ids >= 0) & (ids < total)
    own = cosines.gather(1, ids.clamp(0, total - 1)[:, None])
    shares = (cosines < own).sum(-1) / max(total - 1, 1)
    return float((shares * valid).mean())


def _readings(ids: Tensor, folder: Folder) -> dict[str, Tensor]:
    """Mistakes that are made with maps, and the ids (R,) that each takes for right."""
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
