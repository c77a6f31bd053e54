"""A vocabulary loss estimated on some tokens: which tokens of a step, and what each of them stands for.

With V = 151,936 the softmax is nearly all the work of training a small model. Poisson sampling takes each token v with
a chance pi_v; ``sum over taken v of exp(z_v) / pi_v`` has the mean ``sum over all v of exp(z_v)`` (Horvitz and Thompson
1952), so that logits ``z_v - log pi_v`` over the taken tokens stand for all of them. Frequent tokens and those of the
batch are always taken (pi = 1). Held-out figures are never estimated.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import UsageError
from ..train.loss.candidates import Candidates

_POWER = 0.75  # of the counts, word2vec's: log Z is best between the frequency and its root
_UNSEEN = 0.3  # weight of a token that never occurred, beside 1 of one that occurred once


class CandidateSampler:
    """Draws the tokens of a step: a function of seed, step and the batch's own tokens.

    Args:
        counts: (V',) how often each id occurs in the training rows.
        size: C, tokens of a step in the mean, beside those of its batch.
        rows: V, rows of the LM head; ids from V' on never occur.
        seed: of the run.
    """

    def __init__(self, counts: npt.NDArray[np.int64], size: int, rows: int, seed: int) -> None:
        if not 2 <= size <= rows:
            raise UsageError(
                "the vocabulary loss cannot be estimated on that many tokens",
                got=f"{size:,} candidates",
                expected=f"2 to {rows:,}",
                remedy="lower candidates, or leave it out to take all tokens",
            )
        weights = np.full(rows, _UNSEEN)
        weights[: len(counts)] += np.asarray(counts[:rows], dtype=np.float64) ** _POWER
        self._seed = seed
        self.chances = _inclusion(weights, size)

    def draw(self, step: int, ids: Tensor, device: torch.device | None = None) -> Candidates:
        """The tokens of a step (0-based), among them all ``ids`` of its batch, on ``device`` or that of ``ids``."""
        generator = np.random.default_rng(list(hashlib.sha256(repr((self._seed, step)).encode()).digest()))
        taken = generator.random(len(self.chances)) < self.chances
        chances = self.chances.copy()
        always = np.unique(ids.cpu().numpy())
        taken[always], chances[always] = True, 1.0
        found = np.flatnonzero(taken)
        device = ids.device if device is None else device
        offset = torch.from_numpy(-np.log(chances[found]))
        return Candidates(torch.from_numpy(found).to(device), offset.to(device, torch.float32))


def _inclusion(weights: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.float64]:
    """(V,) chances in proportion to weight that add up to ``size``, those above 1 cut to 1 and shared out again."""
    chances, rest, left = np.ones(len(weights)), np.argsort(-weights, kind="stable"), size
    while len(rest):
        share = weights[rest] * (left / weights[rest].sum())
        full = int((share >= 1.0).sum())
        if not full:
            chances[rest] = share
            break
        rest, left = rest[full:], left - full
    return chances
