"""Select a draft vocabulary: forced ids, then the most frequent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError, UsageError

Fill = Literal["error", "lowest-id"]
Ids = npt.NDArray[np.int64]


def select(counts: Ids, size: int, forced: Iterable[int] = (), *, fill: Fill = "error") -> Ids:
    """Select the ``size`` ids of a draft vocabulary, (R,) int64 in rank order, unique.

    Forced ids come first, then the others by count (V,), descending; ties go to the lower id. FR-Spec (Zhao
    et al. 2025) and VocabTrim (Goel et al. 2025) differ only in what was counted. If fewer than R ids are
    forced or have a count, ``fill`` applies: ``error`` raises, ``lowest-id`` adds the lowest ids without a
    count.

    Raises:
        UsageError: R outside 1..V or below the number of forced ids, or a forced id outside the vocabulary.
        DataError: too few ids have a count and ``fill`` is ``error``.
    """
    vocab_size = len(counts)
    must = np.unique(np.fromiter(forced, dtype=np.int64))
    if not 1 <= size <= vocab_size:
        raise UsageError(
            "the size is outside the vocabulary", got=f"{size:,}", expected=f"1 to {vocab_size:,}"
        )
    if len(must) and not (must[0] >= 0 and must[-1] < vocab_size):
        outside = must[(must < 0) | (must >= vocab_size)].tolist()
        raise UsageError(
            "a forced id is not in the vocabulary", got=outside, expected=f"0 to {vocab_size - 1:,}"
        )
    if size < len(must):
        raise UsageError(
            "the size is below the number of forced ids",
            got=f"{size:,}",
            expected=f"at least {len(must):,}, for {shortened(must)}",
            remedy="choose a larger size, or force fewer ids",
        )
    order = np.argsort(-counts, kind="stable")  # ties keep ascending ids
    is_forced = np.zeros(vocab_size, dtype=np.bool_)
    is_forced[must] = True
    ranked = np.concatenate([order[is_forced[order]], order[~is_forced[order]]])[:size]
    available = int(np.count_nonzero(is_forced | (counts > 0)))
    if available < size and fill == "error":
        raise DataError(
            "too few token ids have a count for this size",
            got=f"{available:,} ids with a count or forced",
            expected=f"{size:,}",
            remedy="count more text, choose a smaller size, or pass --fill lowest-id",
        )
    return ranked.astype(np.int64)


def shortened(ids: Ids) -> str:
    """Return the first ids and their total number, for messages."""
    shown = ", ".join(map(str, ids[:12].tolist()))
    return shown + (f", … ({len(ids):,} ids)" if len(ids) > 12 else "")
