"""What a target says after a text, and how far its own rounding moves that.

A target reads the same tokens several times, cut into passes of different sizes: as plain decoding cuts them, all at
once, and in blocks as verification does. In exact arithmetic the logits are the same each time, so how far they are
apart is what rounding does at this position. All passes are of the kinds that plain decoding is made of, so that a
mistake in the passes over trees cannot excuse itself as noise.
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

BLOCK = 8  # tokens of a pass in blocks

Scores = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class OutputPosition:
    """A position of an output: it follows the ``prompt`` and the output's ``common`` first tokens."""

    prompt: tuple[int, ...]
    common: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens before the position."""
        return len(self.prompt) + len(self.common)


@dataclass(frozen=True)
class Evidence:
    """What the target says at a place.

    Attributes:
        scores: (V,) logits from passes cut as plain decoding's, after penalties where there are any. Captured or
            compiled passes may round otherwise.
        noise: how far rounding moves them.
        sound: the passes differ by no more than rounding explains.
    """

    scores: Scores
    noise: float
    sound: bool


def ask_target(target: Target, place: OutputPosition, sampling: SamplingParams) -> Evidence:
    """The logits of the token at a place, and how far rounding moves them. Run it under ``torch.inference_mode()``.

    The noise is the largest difference between two ways over the vocabulary, and never below a unit or so in the last
    place of the largest logit: ways may agree by luck.

    Raises:
        DataError: the logits hold no largest number.
    """
    side = TargetSide(target, (), 1)
    side.allocate(place.length, 0)
    history = TokenHistory(place.prompt, target.config.vocab_size)
    history.add(place.common)

    def penalised(logits: Scores) -> Scores:
        return history.penalise(logits, sampling, ()) if sampling.penalised else logits

    ways = [_read(side, pieces) for pieces in _ways(place)]
    plain, scores = ways[0], penalised(ways[0])
    if not scores[int(scores.argmax())] > -np.inf:  # NaN is the largest
        raise no_distribution("target", place.length)
    size = float(np.abs(plain[np.isfinite(plain)]).max(initial=0))
    floor, ceiling = (size * bound for bound in _bounds(target.dtype))
    noise = max(floor, _apart([penalised(way) for way in ways]))
    return Evidence(scores, noise, _apart(ways) <= ceiling)


def _bounds(dtype: torch.dtype) -> tuple[float, float]:
    """The least noise, and the most that is still rounding, in units of the largest logit.

    Sums run in fp32 or wider: a narrow dtype rounds only what is stored, and its noise is a unit or two in the last
    place. A wide dtype's is some more of its far smaller ones.
    """
    eps = float(torch.finfo(dtype).eps)
    return (4 * eps, 4096 * eps) if eps < 1e-6 else (eps, 1 / 8)


def _apart(ways: Sequence[Scores]) -> float:
    """The largest difference between any two ways; infinite where one is not a number and another is."""
    most, least = np.max(ways, 0), np.min(ways, 0)
    with np.errstate(invalid="ignore"):  # infinities that are equal
        moved = np.where(most == least, np.float32(0), most - least)
    return float(np.nan_to_num(moved, nan=np.inf, posinf=np.inf).max())


def _ways(place: OutputPosition) -> list[tuple[tuple[int, ...], ...]]:
    """Different cuts of the same tokens into passes; the first is plain decoding's."""
    prompt, common = place.prompt, place.common
    rest = prompt[-1:] + common  # with the prompt's last token: a block remains without common tokens, too
    blocks = [rest[start : start + BLOCK] for start in range(0, len(rest), BLOCK)]
    ways = [
        (prompt, *((token,) for token in common)),
        (prompt + common,),
        (prompt[:-1], *blocks) if len(prompt) > 1 else tuple(blocks),
    ]
    return list(dict.fromkeys(ways))


def _read(side: TargetSide, pieces: Iterable[Sequence[int]]) -> Scores:
    """(V,) fp32 logits after the last token of all pieces, each read in a pass of its own (long ones in chunks)."""
    side.set_length(0, 0)
    logits: Tensor | None = None
    for piece in pieces:
        logits, _ = side.prefill(0, torch.tensor(piece, device=side.target.device), "none")
    assert logits is not None
    scores: Scores = logits.float().cpu().numpy()
    return scores


def whole_pass(model: Target, ids: Tensor, aux_layers: tuple[int, ...] = ()) -> TargetOutput:
    """Every position of some texts, each seeing what stands before it. Run it under ``torch.inference_mode()``.

    Args:
        model: the target.
        ids: (B, T) int64; shorter texts are padded at their ends, where no other token looks.
        aux_layers: 0-based layers whose outputs are wanted, too.
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
    """(V,) logits behind some tokens, in the model's dtype."""
    return model.logits(whole_pass(model, torch.tensor([list(ids)])).hidden[0, -1])
