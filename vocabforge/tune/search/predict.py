"""From measured acceptance and measured latency to tokens a second, as ``eval`` counts them, with an interval.

A prompt of P tokens that ends with n new tokens after c cycles takes ``prefill(P) + c * cycle(P + n / 2)`` seconds.
For one request at a time the rate is the mean over prompts of n by seconds. B requests side by side share each cycle:
all tokens over all seconds, with a prompt's cycles divided by B; the prompts' own passes hold up every row.

The interval joins two independent errors in quadrature: which prompts were asked (bootstrap,
``evaluate/results/intervals.py``), and the bounds of the seconds (all parts early, or all late).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...evaluate.results.intervals import estimate, ratio
from ...evaluate.results.schema import Figure
from ..latency.table import LatencyTable
from ..types import CycleSetting, HeadSetting, Seconds, TreeSetting
from .acceptance import PromptRow, accepted_length

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """What a method is expected to do.

    Attributes:
        tokens_per_s: with its 95% interval.
        accepted: tokens that a cycle commits, with its interval over prompts; of plain decoding 1.
        cycle: seconds of a cycle at the prompts' mean prefix.
    """

    tokens_per_s: Figure
    accepted: Figure
    cycle: Seconds

    @property
    def value(self) -> float:
        """Tokens a second; 0 if nothing was decoded."""
        return self.tokens_per_s.value or 0.0


def prefix_of(row: PromptRow) -> int:
    """Mean positions that the caches hold while a prompt is answered."""
    return max(1, row.prompt_tokens + row.new_tokens // 2)


def mean_prefix(rows: Sequence[PromptRow]) -> int:
    """The same over prompts."""
    return max(1, round(float(np.mean([prefix_of(row) for row in rows]))))


def predict(
    rows: Sequence[PromptRow], head: HeadSetting, tree: TreeSetting, latency: LatencyTable, *, batch: int = 1
) -> Prediction:
    """Tokens a second of a draft head with a draft tree, all ``batch`` requests together."""

    def cycle(prefix: int) -> Seconds:
        return latency.cycle(CycleSetting(head=head, tree=tree, batch=batch, prefix=prefix))

    return _predict(rows, cycle, latency.prefill, batch)


def predict_plain(rows: Sequence[PromptRow], latency: LatencyTable, *, batch: int = 1) -> Prediction:
    """Tokens a second of plain decoding, from its own rows."""
    return _predict(
        rows,
        lambda prefix: latency.plain(batch, prefix),
        lambda tokens: latency.prefill(tokens, drafting=False),
        batch,
    )


def _predict(
    rows: Sequence[PromptRow], cycle: Callable[[int], Seconds], prefill: Callable[[int], Seconds], batch: int
) -> Prediction:
    cycles = {prefix: cycle(prefix) for prefix in {*map(prefix_of, rows), mean_prefix(rows)}}
    starts = {tokens: prefill(tokens) for tokens in {row.prompt_tokens for row in rows}}
    tokens = np.array([row.new_tokens for row in rows], dtype=np.float64)

    def rate(place: int) -> Figure:
        """With the value (0) or a bound (1, 2) of all times."""
        seconds = np.array(
            [
                starts[row.prompt_tokens][place] + row.cycles * cycles[prefix_of(row)][place] / batch
                for row in rows
            ]
        )
        pair = (tokens / seconds, np.ones_like(tokens)) if batch == 1 else (tokens, seconds)
        return estimate(np.stack(pair, axis=-1)[:, None], ratio, pooled=True)  # (Q, 1, 2)

    middle, fast, slow = map(rate, range(3))
    return Prediction(
        _joined(middle, fast.value, slow.value), accepted_length(rows), cycles[mean_prefix(rows)]
    )


def _joined(figure: Figure, fast: float | None, slow: float | None) -> Figure:
    value = figure.value
    if value is None or fast is None or slow is None:
        return figure
    low = value if figure.low is None else figure.low
    high = value if figure.high is None else figure.high
    return Figure(
        value=value,
        low=value - float(np.hypot(value - low, value - slow)),
        high=value + float(np.hypot(high - value, fast - value)),
    )
