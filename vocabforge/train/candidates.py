"""A vocabulary loss estimated on some tokens: which tokens of a step, and what each of them stands for.

With V = 151,936 the softmax is nearly all the work of training a small model. Poisson sampling takes each token v by
itself with a chance pi_v; ``sum over taken v of exp(z_v) / pi_v`` has the mean ``sum over all v of exp(z_v)`` (Horvitz and
Thompson 1952), so that logits ``z_v - log pi_v`` over the taken tokens stand for all of them. Frequent tokens and those
of the batch are always taken (pi = 1), others the more often the more often they occur. Teacher and drafter are
estimated on the same tokens; held-out figures never are estimated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import UsageError

# Chance of a token that never occurred beside that of one that occurred once.
_UNSEEN = 0.1


@dataclass(frozen=True)
class Candidates:
    """Tokens of one step.

    Attributes:
        ids: (C,) int64 ascending.
        offset: (C,) fp32 -log pi of each, 0 for those that are always taken; to be added to their logits.
    """

    ids: Tensor
    offset: Tensor


class CandidateSampler:
    """Draws the tokens of a step: a function of seed, step and the batch's own tokens.

    Args:
        counts: (V',) how often each id occurs in the training rows.
        size: C, tokens of a step in the mean, beside those of its batch; half of them are the most frequent ones.
        rows: V, rows of the LM head; ids from V' on never occur.
        seed: of the run.

    Raises:
        UsageError: ``size`` is not within 2 and ``rows``.
    """

    def __init__(self, counts: npt.NDArray[np.int64], size: int, rows: int, seed: int) -> None:
        if not 2 <= size <= rows:
            raise UsageError(
                "the vocabulary loss cannot be estimated on that many tokens", got=size, expected=f"2 to {rows:,}"
            )
        weights = np.full(rows, _UNSEEN)
        weights[: len(counts)] += np.sqrt(np.asarray(counts[:rows], dtype=np.float64))
        self.size, self._seed = size, seed
        self._chances = _inclusion(weights, size)

    def draw(self, step: int, ids: Tensor) -> Candidates:
        """The tokens of a step.

        Args:
            step: 0-based; with the seed it decides what is drawn.
            ids: token ids of any shape that are taken in any case: those of the batch.
        """
        generator = np.random.default_rng(_digest(self._seed, step))
        taken = generator.random(len(self._chances)) < self._chances
        chances = self._chances.copy()
        always = np.unique(ids.cpu().numpy())
        taken[always], chances[always] = True, 1.0
        found = np.flatnonzero(taken)
        offset = -np.log(chances[found])
        return Candidates(
            torch.from_numpy(found).to(ids.device),
            torch.from_numpy(offset).to(ids.device, torch.float32),
        )


def _inclusion(weights: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.float64]:
    """(V,) chances that add up to ``size``: 1 for the heaviest half of ``size``, in proportion to weight for others, at
    most 1."""
    order = np.argsort(-weights, kind="stable")
    chances = np.empty(len(weights))
    fixed = max(1, size // 2)
    while True:
        rest = order[fixed:]
        if not len(rest):
            chances[:] = 1.0
            return chances
        share = weights[rest] * (max(size - fixed, 0) / weights[rest].sum())
        if share[0] <= 1.0 or fixed >= size:
            break
        fixed += int((share > 1.0).sum())
    chances[order[:fixed]] = 1.0
    chances[rest] = np.minimum(share, 1.0)
    return chances


def _digest(*parts: int) -> Sequence[int]:
    return list(hashlib.sha256(repr(parts).encode()).digest())
