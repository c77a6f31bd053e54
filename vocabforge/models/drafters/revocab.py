"""Change the draft vocabulary of a trained drafter without training: keep, drop and add rows.

Row j of a head scores target id ``j + d2t[j]``. Existing rows are copied bit for bit. Missing rows are taken
from the target's LM head, from which the drafter's own head was initialised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...core.errors import MismatchError
from ...vocab.subset.subset import VocabSubset
from ..checkpoint import LM_HEAD
from .interface import Drafter
from .registry import new_drafter


def revocab_head(drafter: Drafter, ids: Tensor) -> Drafter:
    """Return a copy of the drafter that drafts over ``ids``; only the head's weights differ.

    Over the whole vocabulary, if every row is the target's, the copy shares the target's head.

    Raises:
        MismatchError: ids (R,) do not ascend or are not ids of the target.
    """
    ids = ids.to(drafter.target_ids.device)
    _check_ids(ids, drafter.config.vocab_size)
    rows, known = rows_of(drafter.target_ids, ids)
    if not drafter.has_own_head and known.all() and len(ids) == drafter.config.vocab_size:
        return with_head(drafter, ids, None)
    scale, dtype = drafter.target_transform.scale, drafter.head_weight.dtype
    weight = (drafter.target_head[ids] * scale).to(dtype)  # (R, H)
    weight[known] = drafter.head_weight[rows[known]] * drafter.transform.scale
    shared = len(ids) == drafter.config.vocab_size and torch.equal(
        weight, (drafter.target_head * scale).to(dtype)
    )
    return with_head(drafter, ids, None if shared else weight)


def prune_head(drafter: Drafter, subset: VocabSubset, *, source: object) -> Drafter:
    """Return a copy of the drafter with only the head rows of ``subset``; other weights are shared.

    SpecVocab (section 5) finds this better than training with a reduced vocabulary.
    """
    rows = subset_rows(drafter.target_ids, subset, source=source)
    weight = drafter.head_weight[rows] * drafter.transform.scale
    return with_head(drafter, drafter.target_ids[rows], weight)


def subset_rows(have: Tensor, subset: VocabSubset, *, source: object) -> Tensor:
    """Return the rows (R,) of a subset's ids in a head whose ids are the ascending ``have``.

    Raises:
        MismatchError: the head lacks an id.
    """
    ids = torch.from_numpy(subset.ids).to(have.device)
    rows, known = rows_of(have, ids)
    if len(missing := ids[~known]):
        raise MismatchError(
            "the drafter's head does not score every token of this draft vocabulary",
            got=f"{len(missing):,} ids without a row, first {missing[:5].tolist()}",
            expected=f"a subset of the head's {len(have):,} ids",
            source=source,
            remedy="prune a drafter trained with the full vocabulary",
        )
    return rows


def with_stored_rows(drafter: Drafter) -> Drafter:
    """Return the drafter with an own head that holds its rows of the target's head, for servers."""
    if not drafter.restricted:
        return drafter
    return with_head(drafter, drafter.target_ids, drafter.head_weight * drafter.transform.scale)


def rows_of(have: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return positions (R,) of ``ids`` in the ascending ``have`` (N,), and a mask (R,) of those found."""
    rows = torch.searchsorted(have, ids).clamp(max=len(have) - 1)
    return rows, have[rows] == ids


def with_head(drafter: Drafter, ids: Tensor, weight: Tensor | None) -> Drafter:
    """Return a frozen copy of the drafter with head rows ``weight`` (R, H) for ascending ``ids`` (R,).

    With ``weight`` None the copy shares the target's head. Other weights are unchanged.
    """
    size = None if weight is None else len(ids)
    config = dataclasses.replace(drafter.config, draft_vocab_size=size)
    target_ids = None if weight is None else ids
    copied = new_drafter(
        drafter.kind, config, drafter.embedding, drafter.target_head, target_ids, drafter.target_transform
    )
    own = {name: p for name, p in drafter.state_dict().items() if name != LM_HEAD}
    rows, known = rows_of(drafter.target_ids, ids)
    for name in drafter.rows_by_token:  # 0 for new tokens
        own[name] = torch.where(known[:, None], own[name][rows], 0.0)
    copied.load_state_dict(own if weight is None else own | {LM_HEAD: weight})
    return copied.to(drafter.head_weight).eval().requires_grad_(False)


def change_of(before: Drafter, after: Drafter) -> dict[str, Any]:
    """Return the effect of :func:`revocab_head` on the head's rows.

    Draft tokens before and after, ``kept``, ``added`` and ``dropped``, and whether the rows are the drafter's
    own, before and after.
    """
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
    """Return how far the drafter's head rows are from the target's rows of the same tokens.

    Medians of ``cosine`` and ``scale``; None if the drafter shares the target's head. If both are near 1,
    rows from the target's head can be added without training.
    """
    if not drafter.has_own_head:
        return None
    cosines, scales = [], []
    for rows, ids in zip(drafter.head_weight.split(1024), drafter.target_ids.split(1024)):
        own, target = rows.double(), drafter.target_head[ids].double()
        cosines.append(F.cosine_similarity(own, target, dim=-1))
        scales.append(own.norm(dim=-1) / target.norm(dim=-1).clamp(min=1e-30))
    return {"cosine": float(torch.cat(cosines).median()), "scale": float(torch.cat(scales).median())}


def end_tokens(before: Tensor, after: Tensor, known: Sequence[int]) -> dict[str, list[int]]:
    """Return end tokens ``kept``, ``lost`` (before only), ``gained`` (after only), and ``outside`` both."""
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
            "the draft vocabulary does not fit the drafter's target",
            got=f"ids {int(ids.min())} to {int(ids.max())}" if len(ids) else "no ids",
            expected=f"ids that ascend within 0 to {vocab_size - 1}",
            remedy="create it with the target's own tokenizer: count-freq, then select-vocab",
        )
