"""Coverage: the share of a text's tokens in the first ids of a ranking, for every size.

Pure functions over counts (V,) and rankings (R,). Sums are integers, so sizes have no rounding errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ...core.errors import DataError, UsageError
from .select import Ids, select


def rank_all(counts: Ids, forced: Iterable[int] = ()) -> Ids:
    """Return all ids (V,) in rank order: forced, then by count; the first R equal ``select`` of size R."""
    return select(counts, len(counts), forced, fill="lowest-id")


def covered(ranked: Ids, counts: Ids) -> npt.NDArray[np.int64]:
    """Return the number of tokens covered by the first 1, 2, ... R ids: (R,) int64, non-decreasing."""
    return np.cumsum(counts[ranked])


def coverage_at(ranked: Ids, counts: Ids, sizes: Sequence[int]) -> list[float | None]:
    """Return the share of tokens covered by the first ``size`` ids; None for a size beyond the ranking.

    Raises:
        DataError: nothing was counted.
    """
    total, running = _total(counts), covered(ranked, counts)
    return [int(running[size - 1]) / total if 1 <= size <= len(running) else None for size in sizes]


def size_for_coverage(counts: Ids, share: float, forced: Iterable[int] = ()) -> int:
    """Return the smallest size, including forced ids, that covers at least ``share`` of the counted tokens.

    Exact: ``share`` is taken as the decimal fraction that was written.

    Raises:
        UsageError: ``share`` outside 0 < share <= 1, or a forced id outside the vocabulary.
        DataError: nothing was counted.
    """
    if not 0 < share <= 1:
        raise UsageError(
            "the coverage is not a share of the tokens",
            got=f"{share:g}",
            expected="above 0 and at most 1 (0.95 for 95%)",
        )
    must = set(forced)
    needed = -((-Fraction(repr(share)) * _total(counts)) // 1)  # whole tokens, rounded up
    size = int(np.searchsorted(covered(rank_all(counts, must), counts), int(needed))) + 1
    return max(size, len(must))


def knee(ranked: Ids, counts: Ids) -> int:
    """Return the size whose coverage is furthest above the line between the curve's ends over log sizes.

    ``argmax over s of C(s) - C(1) - (C(V) - C(1)) log s / log V`` with the coverage C of the first s ids.
    Beyond this size, coverage grows less per doubling than over the whole curve (Satopaa et al. 2011, without
    smoothing).

    Raises:
        DataError: nothing was counted.
    """
    shares = covered(ranked, counts) / _total(counts)
    along = np.log(np.arange(1, len(shares) + 1)) / max(np.log(len(shares)), 1.0)
    return int(np.argmax(shares - shares[0] - (shares[-1] - shares[0]) * along)) + 1


def unseen_mass(counts: Ids) -> float:
    """Return the Good-Turing estimate (Good 1953) of the share of further tokens without a count: n_1 / N.

    Valid for token counts only, not for mixtures. A value near 0 means that enough text was counted.

    Raises:
        DataError: nothing was counted.
    """
    return int(np.count_nonzero(counts == 1)) / _total(counts)


def unseen_share(counts: Ids, heldout: Ids) -> float:
    """Return the share of held-out tokens without a count in ``counts``, estimated by :func:`unseen_mass`.

    Raises:
        DataError: nothing was held out.
    """
    return int(heldout[counts == 0].sum()) / _total(heldout)


def size_ladder(vocab_size: int, extra: Iterable[int] = ()) -> list[int]:
    """Return sizes for a table: powers of two and their midpoints up to V, and ``extra``."""
    powers = (1 << bits for bits in range(vocab_size.bit_length()))
    usual = {size for power in powers for size in (power, power * 3 // 2) if vocab_size >> 8 <= size}
    kept = {size for size in usual | set(extra) if 1 <= size < vocab_size}
    return sorted(kept | {vocab_size})


def curve_sizes(vocab_size: int) -> list[int]:
    """Return up to 120 distinct sizes for a curve, evenly spaced on a logarithmic axis from 1 to V."""
    spread = np.geomspace(1, vocab_size, 120)
    return sorted({int(size) for size in np.rint(spread)} | {1, vocab_size})


def _total(counts: Ids) -> int:
    total = int(counts.sum())
    if total == 0:
        raise DataError("nothing was counted: coverage is undefined", expected="a table with tokens")
    return total
