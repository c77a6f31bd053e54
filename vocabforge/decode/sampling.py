"""The transform of logits (penalties, temperature, top-k, top-p, min-p, softmax), and random numbers.

The order is fixed, as in ``transformers``. Everything up to the exponential is fp32; the returned weights are
float64. At the borders of top-k and top-p, tokens of equal score are ordered by id, lowest first, so top-k
keeps exactly k tokens (``transformers`` keeps all that tie with the last one).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ..core.errors import DataError, VocabForgeError
from .request import SamplingParams

# Weights of tokens, (V,) float64. Tests pass object arrays of Fraction instead: every operation on them works for both.
Weights = np.ndarray[Any, Any]


class Chance(Protocol):
    """Source of random decisions; tests replace it to enumerate all of them."""

    def happens(self, weight: Any, total: Any) -> bool:
        """Return True with probability weight / total (total above 0), using a fresh uniform number."""

    def draw(self, weights: Weights) -> int:
        """Draw an index of weights (V,), at least one of them above 0, with probability weight / sum."""


class SeededChance:
    """Pseudo-random decisions (Philox); a seed (below 2**63) gives the same decisions on every machine."""

    def __init__(self, seed: int) -> None:
        self._uniform = np.random.Generator(np.random.Philox(key=seed)).random

    def happens(self, weight: Any, total: Any) -> bool:
        return bool(self._uniform() * total < weight)

    def draw(self, weights: Weights) -> int:
        heights = weights.cumsum()
        # `right` finds the first height above the number, so a weight of 0 is never drawn.
        place = int(heights.searchsorted(self._uniform() * heights[-1], side="right"))
        return min(place, int(np.flatnonzero(weights)[-1]))  # the product may round up to the total


Scores = np.ndarray[Any, np.dtype[np.float32]]


class TokenHistory:
    """Tokens of prompt and output, for penalties; only the repetition penalty counts the prompt.

    ``vocab`` is the size of the target's vocabulary, ``length`` the number of tokens in prompt and output.
    """

    def __init__(self, prompt_ids: Sequence[int], vocab: int) -> None:
        self._seen = np.zeros(vocab, dtype=np.bool_)  # in prompt or output
        self._seen[list(prompt_ids)] = True
        self._counts = np.zeros(vocab, dtype=np.int64)  # in the output
        self.length = len(prompt_ids)

    def add(self, tokens: Sequence[int]) -> None:
        """Append tokens to the output."""
        for token in tokens:
            self._seen[token] = True
            self._counts[token] += 1
        self.length += len(tokens)

    def penalise(self, scores: Scores, sampling: SamplingParams, path_tokens: Sequence[int]) -> Scores:
        """Apply the penalties of the output and of the following ``path_tokens`` to logits (V,)."""
        seen, counts = self._seen, self._counts
        if path_tokens:
            seen, counts = seen.copy(), counts.copy()
            seen[list(path_tokens)] = True
            np.add.at(counts, list(path_tokens), 1)
        used = np.flatnonzero(seen)
        touched, often = scores[used], counts[used]
        factor = np.float32(sampling.repetition_penalty)
        touched = np.where(touched > 0, touched / factor, touched * factor)
        touched -= np.float32(sampling.frequency_penalty) * often.astype(np.float32)
        touched -= np.float32(sampling.presence_penalty) * (often > 0)
        result = scores.copy()
        result[used] = touched
        return result


def target_weights(
    logits: Tensor | np.ndarray[Any, Any],
    sampling: SamplingParams,
    history: TokenHistory,
    path_tokens: Sequence[int],
) -> Weights:
    """Return the target's distribution of the next token after the transform, up to a factor.

    Args:
        history: prompt and committed output, the tree's root included.
        path_tokens: draft tokens from below the root to the node that the ``logits`` (V,) belong to.

    Returns:
        (V,) float64, exactly 0 outside the support; one-hot at temperature 0 (the first of equal maxima).

    Raises:
        DataError: the logits have no maximum (NaN, or no token above -inf).
    """
    scores = _scores(logits)
    if sampling.penalised:
        scores = history.penalise(scores, sampling, path_tokens)
    best = int(scores.argmax())  # the first NaN, if there is one
    if not scores[best] > -np.inf:
        raise no_distribution("target", history.length + len(path_tokens))
    return _transform(scores, best, sampling)


def draft_weights(logits: Tensor | np.ndarray[Any, Any], sampling: SamplingParams) -> Weights:
    """Apply the same transform, without penalties, to a drafter's logits (C,); return float64 (C,)."""
    scores = _scores(logits)
    best = int(scores.argmax())
    if not scores[best] > -np.inf:
        raise no_distribution("drafter")
    return _transform(scores, best, sampling)


def no_distribution(model: str, length: int | None = None) -> VocabForgeError:
    """Return the error for invalid logits; ``length`` is the number of tokens before theirs."""
    where = "" if length is None else f" for token {length:,} (from 0) of prompt and output"
    return DataError(
        f"the {model}'s logits hold no largest number: NaN among them, or all are -inf",
        got=f"NaN or -inf logits{where}",
        expected="numbers, at least one above -inf",
        remedy=f"check the {model}'s weights; a narrower dtype may overflow, so try --dtype float32",
    )


def _scores(logits: Tensor | np.ndarray[Any, Any]) -> Scores:
    if isinstance(logits, Tensor):
        logits = logits.detach().float().cpu().numpy()
    return logits.astype(np.float32, copy=False)


def _transform(scores: Scores, best: int, sampling: SamplingParams) -> Weights:
    """Return the weights of scores with their maximum at ``best``."""
    if sampling.greedy:
        only = np.zeros(len(scores))
        only[best] = 1.0
        return only
    if scores[best] == np.inf:  # an infinite logit excludes all others
        scores = np.where(scores == np.inf, np.float32(0), np.float32(-np.inf))
    # Subtract the maximum first: dividing by a tiny temperature could otherwise give infinities and then NaN.
    with np.errstate(over="ignore"):
        ahead = scores - scores[best]
        weights: Scores = np.exp((ahead.astype(np.float64) / sampling.temperature).astype(np.float32))
    if 0 < sampling.top_k < len(weights) or sampling.top_p < 1:
        weights = _most_probable(scores, weights, sampling)
    if sampling.min_p > 0:
        weights[weights < np.float32(sampling.min_p)] = 0.0  # the most probable token has weight 1
    return weights.astype(np.float64)


def _most_probable(scores: Scores, weights: Scores, sampling: SamplingParams) -> Scores:
    """Set the weights that top-k and then top-p exclude to 0."""
    k = sampling.top_k or len(scores)
    candidates: np.ndarray[Any, Any]
    if k < len(scores):  # partition first, to sort only a few tokens of a large vocabulary
        border = np.partition(scores, len(scores) - k)[len(scores) - k]
        candidates = np.flatnonzero(scores >= border)
    else:
        candidates = np.flatnonzero(weights)
    # A stable sort of ascending ids: ties go to the lower id.
    kept = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
    if sampling.top_p < 1:
        mass = weights[kept].cumsum(dtype=np.float64)
        kept = kept[: int(np.searchsorted(mass, sampling.top_p * mass[-1])) + 1]
    result = np.zeros_like(weights)
    result[kept] = weights[kept]
    return result
