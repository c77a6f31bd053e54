"""Inputs and outputs of a replay: the target's own answers, and the ranks that draft heads give their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MISSED = 255  # a rank that was not among the best ``width``, or was not asked for

Ranks = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Continuation:
    """A prompt and the target's answer to it, greedy or sampled.

    Attributes:
        prompt: token ids.
        tokens: token ids that the target wrote, the stop token included where it came.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Replayed:
    """Ranks of one way of drafting on all continuations.

    Attributes:
        ranks: (P, levels) uint8, row p for the cycle that would begin with root ``tokens[i]`` of a continuation (i
            from 0; the last token has none, as nothing follows it): place of ``tokens[i + 1 + k]`` among the head's
            tokens at draft step k, 0 the best, drafting along the target's own tokens. :data:`MISSED` where it is not
            among the best ``width``, where an earlier one missed, and behind the end of the continuation.
        scored: mean tokens that got an exact logit a row, by draft step (levels,); NaN where no row was asked.
    """

    ranks: Ranks
    scored: tuple[float, ...]
