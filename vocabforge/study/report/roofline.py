"""Byte roofline of a draft head: the bytes that a draft step must move, over a device's copy bandwidth.

The terms of the table "Roofline of a draft head" (PEERS.md), for N hidden rows of a step, H the hidden size, V the
rows of the LM head, d' a rank, all weights and states of two bytes:

- the hidden rows are read: ``2 N H``;
- each row of the LM head that is needed is read: ``2 H`` a row; a low-rank scorer ``2 d' (V + H)``; a router's MLP;
- each logit and each score of a scorer is written, once in fp32 (or in bf16, and read again): 4 bytes.

Hidden rows share the rows of a fixed vocabulary; those of a shortlist are read for every hidden row.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...models.heads.router import default_width
from ...tune.types import HeadSetting
from ..config import RooflineConfig
from .results import DraftShape

WEIGHT, LOGIT = 2, 4  # bytes: bf16 weights and states, fp32 logits

# Kinds that score rows of the LM head which all hidden rows of a step share.
SLABS = "full", "static", "scheduled"


def head_bytes(head: HeadSetting, shape: RooflineConfig, rows: int = 1, step: int = 0) -> float:
    """Bytes that a draft head moves in a draft step of ``rows`` hidden rows (N)."""
    scored = min(head.at(step), shape.rows)
    moved = float(WEIGHT * rows * shape.hidden)
    if head.rank:
        moved += WEIGHT * head.rank * (shape.rows + shape.hidden) + LOGIT * rows * shape.rows
    if head.clusters:
        moved += WEIGHT * default_width(shape.hidden) * (2 * shape.hidden + head.clusters)
    if head.kind == "low-rank":
        return moved
    core = min(head.core, scored)
    tail = scored - core
    if head.kind not in SLABS and (head.rank or head.kind not in ("context", "hybrid")):
        tail *= rows  # a text's tokens are those of the request
    return moved + LOGIT * rows * scored + WEIGHT * shape.hidden * (core + tail)


def scaled(
    head: HeadSetting, shape: RooflineConfig, scored: Mapping[int, float], *, rows: int, hidden: int
) -> HeadSetting:
    """A head of this study as it would be at another shape.

    Ranks grow with the hidden size; draft vocabularies, shortlists, budgets and clusters stay as they are. Tokens of a
    router's clusters are shares of the vocabulary.

    Args:
        scored: tokens that got an exact logit in a row by draft step, as the replay counted them.
        rows, hidden: V and H of the study's target.
    """
    steps = [
        scored.get(step, head.at(step)) for step in range(max(len(head.scored), max(scored, default=0) + 1))
    ]
    if head.kind == "full":
        steps = [shape.rows]
    elif head.kind in ("router", "low-rank"):
        steps = [size * shape.rows / rows for size in steps]
    kept = tuple(max(1, min(round(size), shape.rows)) for size in steps)
    rank = round(head.rank * shape.hidden / hidden)
    return head.model_copy(update={"scored": kept, "rank": rank, "core": min(head.core, *kept)})


def tokens_per_s(accepted: float, head: HeadSetting, draft: DraftShape, shape: RooflineConfig) -> float:
    """Tokens a second of one request whose cycles commit ``accepted`` tokens; nothing of it is measured."""
    steps = range(draft.levels)
    moved = sum(head_bytes(head, shape, draft.width if step else 1, step) for step in steps)
    layers = draft.levels * shape.layer_us + shape.target_us
    return accepted / (moved / shape.bandwidth + layers * 1e-6)
