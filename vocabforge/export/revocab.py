"""Another draft vocabulary for a trained drafter, without training: rows kept, dropped, added.

Row j of a head scores target id ``j + d2t[j]``. A row that the drafter has is taken over bit for bit; one that it lacks
comes from the target's LM head, where the drafter's own head once started.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import MismatchError
from ..models.drafter import Drafter
from .prune import rows_of, with_head
from .row_fit import Drift, RowFit, drift_of, fit_rows, fit_states


@dataclass(frozen=True)
class HeadChange:
    """What becomes of a head's rows.

    Attributes:
        before, after: rows that score draft tokens.
        own_before, own_after: whether these are the drafter's own; else they are the target's, shared.
        kept: tokens before and after. added, dropped: tokens after or before alone.
    """

    before: int
    after: int
    own_before: bool
    own_after: bool
    kept: int
    added: int
    dropped: int

    def to_json(self) -> dict[str, Any]:
        """By field, for a report."""
        return asdict(self)


def revocab_head(drafter: Drafter, ids: Tensor, fit: RowFit | None = None) -> Drafter:
    """A copy of the drafter that drafts over ``ids``; all weights but the head's are the same.

    Over the whole vocabulary, and where every row is the target's, the copy shares the target's head.

    Args:
        ids: (R,) int64, ascending, target ids.
        fit: a correction of the rows that the drafter lacks; None takes the target's as they are.

    Raises:
        MismatchError: ids that do not ascend, or that the target does not have.
    """
    ids = ids.to(drafter.target_ids.device)
    _check_ids(ids, drafter.config.vocab_size)
    rows, known = rows_of(drafter.target_ids, ids)
    if not drafter.has_own_head and known.all() and len(ids) == drafter.config.vocab_size:
        return with_head(drafter, ids, None)
    weight = drafter.target_head[ids].to(drafter.head_weight.dtype)  # (R, H)
    if fit is not None:
        weight[~known] = fit.apply(weight[~known])
    weight[known] = drafter.head_weight[rows[known]]
    shared = len(ids) == drafter.config.vocab_size and torch.equal(
        weight, drafter.target_head.to(weight.dtype)
    )
    return with_head(drafter, ids, None if shared else weight)


def change_of(before: Drafter, after: Drafter) -> HeadChange:
    """What :func:`revocab_head` did."""
    _, known = rows_of(before.target_ids, after.target_ids)
    kept = int(known.sum())
    return HeadChange(
        before=len(before.target_ids),
        after=len(after.target_ids),
        own_before=before.has_own_head,
        own_after=after.has_own_head,
        kept=kept,
        added=len(after.target_ids) - kept,
        dropped=len(before.target_ids) - kept,
    )


def head_drift(drafter: Drafter) -> Drift | None:
    """How far the drafter's own rows have moved from the target's; None where it shares the target's head."""
    if not drafter.has_own_head:
        return None
    return drift_of(drafter.head_weight, drafter.target_head[drafter.target_ids])


def fitted_rows(drafter: Drafter) -> RowFit | None:
    """A correction of target rows, fitted on the drafter's own; None where it shares the target's head.

    Raises:
        UsageError: too few rows of its own.
    """
    if not drafter.has_own_head:
        return None
    return fit_rows(drafter.head_weight, drafter.target_head[drafter.target_ids])


def fitted_states(drafter: Drafter, read: Tensor, hidden: Tensor) -> RowFit | None:
    """A correction of target rows, fitted on states; None where the drafter shares the target's head.

    Args:
        read: (N, H) what the drafter's head reads. hidden: (N, H) what the target's head reads of the same tokens.

    Raises:
        UsageError: too few states.
    """
    if not drafter.has_own_head:
        return None
    return fit_states(read, hidden, drafter.head_weight, drafter.target_head[drafter.target_ids])


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    ascending = len(ids) > 0 and bool((ids.diff() > 0).all())
    if not ascending or int(ids[0]) < 0 or int(ids[-1]) >= vocab_size:
        raise MismatchError(
            "this is no draft vocabulary of the drafter's target",
            got=f"ids {int(ids.min())} to {int(ids.max())}" if len(ids) else "no ids",
            expected=f"ids that ascend within 0 to {vocab_size - 1}",
            remedy="make it from the target's own tokenizer: count-freq, then select-vocab",
        )
