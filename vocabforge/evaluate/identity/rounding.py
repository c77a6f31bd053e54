"""Compute a target's logits at a position and the noise that its rounding adds.

Identical tokens are run in several ways, split into passes of different sizes: as in plain decoding, all at
once, and in blocks as in verification. In exact arithmetic the logits are equal, so their differences measure
rounding at this position. Only kinds of passes that plain decoding uses are included, so that a bug in tree
passes is not mistaken for noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...decode.request import SamplingParams
from ...decode.sampling import TokenHistory, no_distribution
from ...decode.target_side import TargetSide
from ...models.kv_cache import causal_mask, near_rule
from ...models.target.interface import Target, TargetOutput

BLOCK = 8  # tokens per pass in blocks

Scores = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class OutputPosition:
    """A position of an output, after the ``prompt`` and the output's first tokens ``common``."""

    prompt: tuple[int, ...]
    common: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of tokens before the position."""
        return len(self.prompt) + len(self.common)


@dataclass(frozen=True)
class Evidence:
    """The target's logits at a position.

    Attributes:
        scores: (V,) logits from passes split as in plain decoding, after penalties if any. Captured or
            compiled passes may round differently.
        noise: effect of rounding on the logits.
        sound: whether the passes differ by no more than rounding explains.
    """

    scores: Scores
    noise: float
    sound: bool


def ask_target(target: Target, place: OutputPosition, sampling: SamplingParams) -> Evidence:
    """Return the logits at a position and their rounding noise. Call it under ``torch.inference_mode()``.

    The noise is the largest difference between any two ways over the vocabulary, but at least about one unit
    in the last place of the largest logit, because ways may agree by chance.

    Raises:
        DataError: the logits have no largest value.
    """
    side = TargetSide(target, (), 1)
    side.allocate(place.length, 0)
    history = TokenHistory(place.prompt, target.config.vocab_size)
    history.add(place.common)

    def penalised(logits: Scores) -> Scores:
        return history.penalise(logits, sampling, ()) if sampling.penalised else logits

    ways = [_read(side, pieces) for pieces in _ways(place)]
    plain, scores = ways[0], penalised(ways[0])
    if not scores[int(scores.argmax())] > -np.inf:  # argmax selects NaN
        raise no_distribution("target", place.length)
    size = float(np.abs(plain[np.isfinite(plain)]).max(initial=0))
    floor, ceiling = (size * bound for bound in _bounds(target.dtype))
    noise = max(floor, _apart([penalised(way) for way in ways]))
    return Evidence(scores, noise, _apart(ways) <= ceiling)


def _bounds(dtype: torch.dtype) -> tuple[float, float]:
    """Return the minimum noise, and the maximum that rounding explains, relative to the largest logit.

    Sums are accumulated in fp32 or wider. A narrow dtype therefore only rounds stored values, with a noise of
    one or two units in the last place. A wide dtype has a few more, but far smaller, units.
    """
    eps = float(torch.finfo(dtype).eps)
    return (4 * eps, 4096 * eps) if eps < 1e-6 else (eps, 1 / 8)


def _apart(ways: Sequence[Scores]) -> float:
    """Return the largest difference between any two ways; infinite if only some have NaN at a place."""
    most, least = np.max(ways, 0), np.min(ways, 0)
    with np.errstate(invalid="ignore"):  # inf - inf
        moved = np.where(most == least, np.float32(0), most - least)
    return float(np.nan_to_num(moved, nan=np.inf, posinf=np.inf).max())


def _ways(place: OutputPosition) -> list[tuple[tuple[int, ...], ...]]:
    """Return different splits of the same tokens into passes; the first is plain decoding's."""
    prompt, common = place.prompt, place.common
    rest = prompt[-1:] + common  # starts at the prompt's last token, so it is never empty
    blocks = [rest[start : start + BLOCK] for start in range(0, len(rest), BLOCK)]
    ways = [
        (prompt, *((token,) for token in common)),
        (prompt + common,),
        (prompt[:-1], *blocks) if len(prompt) > 1 else tuple(blocks),
    ]
    return list(dict.fromkeys(ways))


def _read(side: TargetSide, pieces: Iterable[Sequence[int]]) -> Scores:
    """Return (V,) fp32 logits after the last token; every piece gets its own pass, in chunks if long."""
    side.set_length(0, 0)
    logits: Tensor | None = None
    for piece in pieces:
        logits, _ = side.prefill(0, torch.tensor(piece, device=side.target.device), "none")
    assert logits is not None
    scores: Scores = logits.float().cpu().numpy()
    return scores


def whole_pass(model: Target, ids: Tensor, aux_layers: tuple[int, ...] = ()) -> TargetOutput:
    """Run texts in one causal pass and return every position. Call it under ``torch.inference_mode()``.

    Args:
        model: the target.
        ids: (B, T) int64, right-padded.
        aux_layers: 0-based layers whose outputs are also returned.
    """
    rows, length = ids.shape
    places = torch.arange(length, device=model.device)
    mask = causal_mask(places, places)
    near = near_rule(model.config.sliding_window, model.config.chunk)
    return model.forward(
        ids.to(model.device),
        places.expand(rows, -1),
        cache=model.new_cache(length, rows),
        slots=places,
        mask=mask,
        window_mask=None if near is None else mask & near(places[:, None], places[None]),
        aux_layers=aux_layers,
    )


def next_logits(model: Target, ids: Sequence[int]) -> Tensor:
    """Return the (V,) logits after some tokens, in the model's dtype."""
    return model.logits(whole_pass(model, torch.tensor([list(ids)])).hidden[0, -1])
