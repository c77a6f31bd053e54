"""Restricting a trained drafter's head to a static draft vocabulary, without training."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ..core.errors import MismatchError
from ..models.checkpoint import LM_HEAD
from ..models.drafter import Drafter
from ..models.drafters import new_drafter
from ..vocab.subset import VocabSubset


def prune_head(drafter: Drafter, subset: VocabSubset, *, source: object) -> Drafter:
    """A copy of the drafter whose own head holds the rows of ``subset`` only; the rest is shared.

    SpecVocab (section 5) finds this better than training with a reduced vocabulary.

    Raises:
        MismatchError: the subset has ids that the drafter's head does not score.
    """
    ids = torch.from_numpy(subset.ids).to(drafter.target_ids.device)
    rows, known = rows_of(drafter.target_ids, ids)
    missing = ids[~known]
    if len(missing):
        raise MismatchError(
            "the drafter's head does not score every token of this draft vocabulary",
            got=f"{len(missing):,} ids without a row, first {missing[:5].tolist()}",
            expected=f"a subset of the head's {len(drafter.target_ids):,} ids",
            source=source,
            remedy="prune a drafter trained with the full vocabulary",
        )
    return with_head(drafter, ids, drafter.head_weight[rows])


def rows_of(have: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Places of ``ids`` (R,) in the ascending ``have`` (N,), and whether they are there at all: (R,), (R,) bool."""
    rows = torch.searchsorted(have, ids).clamp(max=len(have) - 1)
    return rows, have[rows] == ids


def with_head(drafter: Drafter, ids: Tensor, weight: Tensor | None) -> Drafter:
    """A copy of the drafter, frozen, whose own head has other rows; its other weights are the same.

    Args:
        ids: (R,) ascending target ids of the rows.
        weight: (R, H) the rows; None shares the target's head instead.
    """
    size = None if weight is None else len(ids)
    config = dataclasses.replace(drafter.config, draft_vocab_size=size)
    target_ids = None if weight is None else ids
    copied = new_drafter(drafter.kind, config, drafter.embedding, drafter.target_head, target_ids)
    own = {name: p for name, p in drafter.state_dict().items() if name != LM_HEAD}
    copied.load_state_dict(own if weight is None else own | {LM_HEAD: weight})
    return copied.to(drafter.head_weight).eval().requires_grad_(False)
