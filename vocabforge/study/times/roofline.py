"""Byte roofline of a draft head: the bytes that a draft step must move, over a device's copy bandwidth.

The terms of the table "Roofline of a draft head" (PEERS.md), for N hidden rows of a step, H the hidden size, V the
rows of the LM head, d' a rank, all weights and states of two bytes:

- the hidden rows are read: ``2 N H``;
- each row of the LM head that is needed is read: ``2 H`` a row; a low-rank scorer ``2 d' (V + H)``; a router's MLP;
- each logit and each score of a scorer is written, once in fp32 (or in bf16, and read again): 4 bytes.

How many rows of the LM head the N hidden rows need differs from head to head: an ``own`` shortlist is read for every
row, a ``shared`` union once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...models.heads.router import default_width
from ...tune.types import HeadSetting

WEIGHT, LOGIT = 2, 4  # bytes: bf16 weights and states, fp32 logits

# Kinds that score rows of the LM head which all hidden rows of a step share.
SLABS = "full", "static", "scheduled"


class RooflineSizes(NamedTuple):
    """V, rows of a model's LM head, and H."""

    rows: int
    hidden: int


def head_bytes(head: HeadSetting, sizes: RooflineSizes, rows: int = 1, step: int = 0) -> float:
    """Bytes that a draft head moves in one draft step.

    Args:
        head: its sizes; ``scored`` is of one hidden row (a router's: the tokens of the clusters that it opens).
        rows: N, hidden rows of the step: 1 of a chain or at the root, up to the width of a tree further down.
        step: draft step, of a head with a schedule.
    """
    scored = min(head.at(step), sizes.rows)
    moved = float(WEIGHT * rows * sizes.hidden)
    if head.rank:
        moved += WEIGHT * head.rank * (sizes.rows + sizes.hidden) + LOGIT * rows * sizes.rows
    if head.clusters:
        moved += WEIGHT * default_width(sizes.hidden) * (2 * sizes.hidden + head.clusters)
    if head.kind == "low-rank":
        return moved
    core = min(head.core, scored)
    tail: float = scored - core
    if head.kind in SLABS or (head.kind in ("context", "hybrid") and not head.rank):
        pass  # the text's tokens are those of the request
    elif head.shared:  # a union of what rows open independently
        tail = sizes.rows * (1 - (1 - tail / sizes.rows) ** rows)
    else:
        tail *= rows
    return moved + LOGIT * rows * scored + WEIGHT * sizes.hidden * (core + tail)


def scaled(
    head: HeadSetting,
    hidden: int,
    sizes: RooflineSizes,
    *,
    rows: int,
    scored: Mapping[int, float] | None = None,
) -> HeadSetting:
    """A head of this study as it would be at another shape.

    Ranks grow with the hidden size; draft vocabularies, shortlists, budgets and clusters stay as they are. Tokens of a
    router's clusters are shares of the vocabulary.

    Args:
        hidden, rows: H and V of the study's model.
        scored: tokens that got an exact logit in a row by draft step, as counted (a router's clusters differ in size,
            a text may have fewer tokens than a context head can read); None: as the head says.
    """
    counted = dict(scored or {})
    steps = [counted.get(step, head.at(step)) for step in range(max(len(head.scored), len(counted)))]
    if head.kind == "full":
        steps = [sizes.rows]
    elif head.kind in ("router", "low-rank"):
        steps = [size * sizes.rows / rows for size in steps]
    kept = tuple(max(1, min(round(size), sizes.rows)) for size in steps)
    rank = round(head.rank * sizes.hidden / hidden)
    return head.model_copy(update={"scored": kept, "rank": rank, "core": min(head.core, *kept)})
