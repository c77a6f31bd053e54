"""A sample of the vocabulary that estimates the vocabulary losses of a training step; ``study.candidates`` draws it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.errors import UsageError


@dataclass(frozen=True)
class Candidates:
    """Tokens of one step.

    Attributes:
        ids: (C,) int64 ascending.
        offset: (C,) fp32 -log pi of each, 0 for those that are always taken; to be added to their logits.
    """

    ids: Tensor
    offset: Tensor


def rows_among(
    candidates: Candidates, head: Tensor, target_ids: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The rows of a draft head that score candidates; a gradient goes back to the whole head.

    Args:
        head: (R, H') rows of ``target_ids``, or of all V tokens.
        target_ids: (R,) int64 ascending; None: all.

    Returns:
        rows (C', H'), and which of the candidates they score (C',), ascending; None: all of them.

    Raises:
        UsageError: no candidate is in the draft vocabulary.
    """
    if target_ids is None:
        return head.index_select(0, candidates.ids), None
    place = torch.searchsorted(target_ids, candidates.ids).clamp(max=len(target_ids) - 1)
    columns = (target_ids[place] == candidates.ids).nonzero()[:, 0]
    if not len(columns):
        raise UsageError(
            "no candidate token of this step is in the draft vocabulary",
            got=f"{len(candidates.ids):,} candidates, {len(target_ids):,} draft tokens",
            remedy="draw more candidates, or choose a draft vocabulary that holds frequent tokens",
        )
    return head.index_select(0, place[columns]), columns
