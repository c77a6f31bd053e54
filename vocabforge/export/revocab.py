"""Another draft vocabulary for a trained drafter, without training: rows kept, dropped, added.

Row j of a head scores target id ``j + d2t[j]``. A row that the drafter has is copied bit for bit; a missing row
comes from the target's LM head, where the drafter's own head started.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import MismatchError
from ..models.checkpoint import LM_HEAD
from ..models.drafters.interface import Drafter
from ..models.drafters.registry import new_drafter
from ..vocab.subset.subset import VocabSubset


def revocab_head(drafter: Drafter, ids: Tensor) -> Drafter:
    """A copy of the drafter that drafts over ``ids``; all weights but the head's are the same.

    Over the whole vocabulary, when every row is the target's, the copy shares the target's head.

    Raises:
        MismatchError: ids (R,) that do not ascend, or that the target does not have.
    """
    ids = ids.to(drafter.target_ids.device)
    _check_ids(ids, drafter.config.vocab_size)
    rows, known = rows_of(drafter.target_ids, ids)
    if not drafter.has_own_head and known.all() and len(ids) == drafter.config.vocab_size:
        return with_head(drafter, ids, None)
    weight = drafter.target_head[ids].to(drafter.head_weight.dtype)  # (R, H)
    weight[known] = drafter.head_weight[rows[known]]
    shared = len(ids) == drafter.config.vocab_size and torch.equal(
        weight, drafter.target_head.to(weight.dtype)
    )
    return with_head(drafter, ids, None if shared else weight)


def prune_head(drafter: Drafter, subset: VocabSubset, *, source: object) -> Drafter:
    """A copy of the drafter whose own head holds the rows of ``subset`` only; the rest is shared.

    SpecVocab (section 5) finds this better than training with a reduced vocabulary.
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


def with_stored_rows(drafter: Drafter) -> Drafter:
    """Return the drafter with the rows of the target's head that it is restricted to as an own head, for servers."""
    if not drafter.restricted:
        return drafter
    return with_head(drafter, drafter.target_ids, drafter.head_weight * drafter.transform.scale)


def rows_of(have: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Places of ``ids`` (R,) in the ascending ``have`` (N,), and whether they are there at all: (R,), (R,) bool."""
    rows = torch.searchsorted(have, ids).clamp(max=len(have) - 1)
    return rows, have[rows] == ids


def with_head(drafter: Drafter, ids: Tensor, weight: Tensor | None) -> Drafter:
    """A copy of the drafter, frozen, whose own head has rows ``weight`` (R, H) for ascending ``ids`` (R,); None shares
    the target's head instead. Its other weights are the same."""
    size = None if weight is None else len(ids)
    config = dataclasses.replace(drafter.config, draft_vocab_size=size)
    target_ids = None if weight is None else ids
    copied = new_drafter(
        drafter.kind, config, drafter.embedding, drafter.target_head, target_ids, drafter.target_transform
    )
    own = {name: p for name, p in drafter.state_dict().items() if name != LM_HEAD}
    rows, known = rows_of(drafter.target_ids, ids)
    for name in drafter.rows_by_token:  # of a token that is new they are 0
        own[name] = torch.where(known[:, None], own[name][rows], 0.0)
    copied.load_state_dict(own if weight is None else own | {LM_HEAD: weight})
    return copied.to(drafter.head_weight).eval().requires_grad_(False)


def change_of(before: Drafter, after: Drafter) -> dict[str, Any]:
    """What :func:`revocab_head` did to a head's rows: draft tokens before and after, in both (``kept``), ``added``,
    ``dropped``; and whether the rows are the drafter's own, before and after."""
    _, known = rows_of(before.target_ids, after.target_ids)
    old, new, kept = len(before.target_ids), len(after.target_ids), int(known.sum())
    return {
        "before": old,
        "after": new,
        "own_before": before.has_own_head,
        "own_after": after.has_own_head,
        "kept": kept,
        "added": new - kept,
        "dropped": old - kept,
    }


@torch.no_grad()
def head_drift(drafter: Drafter) -> dict[str, float] | None:
    """Medians over rows of ``cosine`` and ``scale`` between the drafter's own rows and the target's of the same token;
    None if it shares the target's head. Near 1 and 1, rows from the target's head fit in without training."""
    if not drafter.has_own_head:
        return None
    cosines, scales = [], []
    for rows, ids in zip(drafter.head_weight.split(1024), drafter.target_ids.split(1024)):
        own, target = rows.double(), drafter.target_head[ids].double()
        cosines.append(F.cosine_similarity(own, target, dim=-1))
        scales.append(own.norm(dim=-1) / target.norm(dim=-1).clamp(min=1e-30))
    return {"cosine": float(torch.cat(cosines).median()), "scale": float(torch.cat(scales).median())}


def end_tokens(before: Tensor, after: Tensor, known: Sequence[int]) -> dict[str, list[int]]:
    """End tokens ``kept`` in both lists of target ids, ``lost`` (before only), ``gained`` (after only), ``outside``."""
    had, has = set(before.tolist()), set(after.tolist())
    return {
        "kept": [token for token in known if token in had and token in has],
        "lost": [token for token in known if token in had and token not in has],
        "gained": [token for token in known if token not in had and token in has],
        "outside": [token for token in known if token not in had and token not in has],
    }


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    ascending = len(ids) > 0 and bool((ids.diff() > 0).all())
    if not ascending or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise MismatchError(
            "this is no draft vocabulary of the drafter's target",
            got=f"ids {int(ids.min())} to {int(ids.max())}" if len(ids) else "no ids",
            expected=f"ids that ascend within 0 to {vocab_size - 1}",
            remedy="make it from the target's own tokenizer: count-freq, then select-vocab",
        )
