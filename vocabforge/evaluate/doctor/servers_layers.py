"""Which target layers a drafter was trained on, told by how often its first draft token is the target's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...export.readers.forward import Past, ServedDrafter
from ...export.readers.types import Served
from .checks import Finding
from .servers_probe import Text

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
def agreement(served: Served, layers: tuple[int, ...], texts: Sequence[Text]) -> Tensor:
    """Whether each first draft token is the target's, over the continuations (N,) bool.

    Every row is fed the real token and the target's states of the position before.
    """
    rows, choices = first_drafts(served, layers, texts)
    return (rows if served.target_ids is None else served.target_ids[rows]) == choices


def first_drafts(served: Served, layers: tuple[int, ...], texts: Sequence[Text]) -> tuple[Tensor, Tensor]:
    """Rows of the head that are drafted first, and the target's tokens in their place, (N,) each."""
    model = served.drafter
    assert model is not None
    made = [_drafts(model, layers, text) for text in texts]
    return torch.cat([rows for rows, _ in made]), torch.cat([choices for _, choices in made])


def _drafts(model: ServedDrafter, layers: tuple[int, ...], text: Text) -> tuple[Tensor, Tensor]:
    states = model.fuse(text.features(layers)[:-1])
    logits, _ = model.step(text.ids[1:], states, torch.arange(len(text.ids) - 1), Past())
    return logits.argmax(-1)[text.start - 1 :], text.choices[text.start :]


def check_layers_by_acceptance(served: Served, texts: Sequence[Text], count: int) -> Finding[None]:
    """The server's layers against their neighbours: a wrong numbering shows as better neighbours."""
    own = agreement(served, served.layers, texts)
    share, rows = float(own.float().mean()), len(own)
    found = f"first draft tokens that are the target's: {share:.1%} of {rows:,} with outputs {list(served.layers)}"
    better = None
    for layers in neighbours(served.layers, count):
        other = agreement(served, layers, texts)
        there = float(other.float().mean())
        found += f", {there:.1%} with {list(layers)}"
        if clearly_better(other, own) and (better is None or there > better[1]):
            better = layers, there
    if better is None and share < _HARDLY:
        return Finding(
            f"{found}: it hardly drafts, so the layers cannot be told",
            "warning",
            "untrained, made for another target, or with a map of other tokens (head rows, below)",
        )
    if better is None:
        return Finding(found)
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
