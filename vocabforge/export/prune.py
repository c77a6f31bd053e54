"""Restricting a trained drafter's head to a static draft vocabulary, without training."""

from __future__ import annotations

import dataclasses

import torch

from ..core.errors import MismatchError
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
    rows = torch.searchsorted(drafter.target_ids, ids).clamp(max=len(drafter.target_ids) - 1)
    missing = ids[drafter.target_ids[rows] != ids]
    if len(missing):
        raise MismatchError(
            "the drafter's head does not score every token of this draft vocabulary",
            got=f"{len(missing):,} ids without a row, first {missing[:5].tolist()}",
            expected=f"a subset of the head's {len(drafter.target_ids):,} ids",
            source=source,
            remedy="prune a drafter trained with the full vocabulary",
        )
    config = dataclasses.replace(drafter.config, draft_vocab_size=len(ids))
    pruned = new_drafter(drafter.kind, config, drafter.embedding, drafter.target_head, ids)
    own = {name: p for name, p in drafter.state_dict().items() if name != "lm_head.weight"}
    own["lm_head.weight"] = drafter.head_weight[rows]
    pruned.load_state_dict(own)
    return pruned.to(drafter.head_weight).eval().requires_grad_(False)
