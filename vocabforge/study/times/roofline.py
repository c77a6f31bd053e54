"""Byte roofline of a draft head: the bytes that a draft step must move, over a device's copy bandwidth.

The terms of the table "Roofline of a draft head" (PEERS.md), which the test reproduces figure by figure, for N hidden
rows of a step, H the hidden size, V the rows of the LM head, d' a rank, all weights and states of two bytes:

- the hidden rows are read: ``2 N H``;
- each row of the LM head that is needed is read: ``2 H`` a row; a low-rank scorer ``2 d' (V + H)``;
- each logit and each score of a scorer is written, once in fp32 (or in bf16, and read again): 4 bytes.

What differs from head to head is how many rows of the LM head the N hidden rows need: an ``own`` shortlist is read
for every row (a kernel that reads what siblings share once moves fewer bytes, down to one shortlist), a ``shared``
union once.

The published table leaves the router's MLP out, which runs beside the drafter's layer. It moves bytes all the same, so
that predictions count it (``with_mlp``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.errors import UsageError
from ...models.heads.router import default_width
from ...tune.types import HeadSetting

WEIGHT, LOGIT = 2, 4  # bytes: bf16 weights and states, fp32 logits

# Kinds that score rows of the LM head which all hidden rows of a step share.
SLABS = "full", "static", "scheduled"


@dataclass(frozen=True)
class RooflineSizes:
    """Of a model.

    Attributes:
        rows: V, rows of the LM head.
        hidden: H.
    """

    rows: int
    hidden: int


@dataclass(frozen=True)
class Moved:
    """Bytes of one draft step.

    Attributes:
        least: rows of the step share all that they can: one shortlist.
        most: every row reads a shortlist of its own; a shared union holds what rows would open independently.
    """

    least: float
    most: float


def head_bytes(
    head: HeadSetting, sizes: RooflineSizes, rows: int = 1, step: int = 0, *, with_mlp: bool = True
) -> Moved:
    """What a draft head moves in one draft step.

    Args:
        head: its sizes; ``scored`` is of one hidden row (a router's: the tokens of the clusters that it opens).
        rows: N, hidden rows of the step: 1 of a chain or at the root, up to the width of a tree further down.
        step: draft step, of a head with a schedule.

    Raises:
        UsageError: fewer than one row.
    """
    if rows < 1:
        raise UsageError("a draft step has one hidden row or more", got=rows, expected="1 or more")
    scored = min(head.at(step), sizes.rows)
    fixed = float(WEIGHT * rows * sizes.hidden)
    if head.rank:
        fixed += WEIGHT * head.rank * (sizes.rows + sizes.hidden) + LOGIT * rows * sizes.rows
    if head.clusters and with_mlp:
        width = default_width(sizes.hidden)
        fixed += WEIGHT * width * (2 * sizes.hidden + head.clusters)
    if head.kind == "low-rank":
        return Moved(fixed, fixed)
    core = min(head.core, scored)
    exact = LOGIT * rows * scored
    least, most = core + (scored - core), core + _distinct(head, scored - core, sizes.rows, rows)
    row = WEIGHT * sizes.hidden
    return Moved(fixed + exact + least * row, fixed + exact + most * row)


def _distinct(head: HeadSetting, tail: int, vocabulary: int, rows: int) -> float:
    """Rows of the LM head beside the core that are read at most."""
    if head.kind in SLABS or (head.kind in ("context", "hybrid") and not head.rank):
        return tail  # the text's tokens are those of the request
    if not head.shared:
        return tail * rows
    return vocabulary * (1 - (1 - tail / vocabulary) ** rows)


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
    measured = dict(scored or {})
    by_step = [measured.get(step, head.at(step)) for step in range(max(len(head.scored), len(measured), 1))]
    if head.kind == "full":
        by_step = [sizes.rows]
    elif head.kind in ("router", "low-rank"):
        by_step = [size * sizes.rows / rows for size in by_step]
    kept = [max(1, min(round(size), sizes.rows)) for size in by_step]
    return head.model_copy(
        update={
            "scored": tuple(kept if len(set(kept)) > 1 else kept[:1]),
            "rank": round(head.rank * sizes.hidden / hidden),
            "core": min(head.core, min(kept)),
        }
    )
