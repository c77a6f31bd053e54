"""How much a draft vocabulary can accept at best, from the target's own distributions (DynaSpec, lemmas 1 and 2).

Lemma 1: over a support S the best possible acceptance is the target's mass of S, ``sum_{v in S} p(v)``; a
drafter that proposes ``p`` restricted to S reaches it. Lemma 2: among supports of size k the best one, chosen
anew at each position, is the top-k of p. The first is the static ceiling of a draft vocabulary, the second the
oracle ceiling that any dynamic draft head of size k stays below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.errors import DataError, MismatchError
from ..models.lean import LeanModel
from .whole_pass import whole_pass

ROW_BUDGET = 1 << 24
"""Most logits held at once, in numbers: 64 MiB a copy in fp32, whatever V is."""
_BATCH_TOKENS = 2048


def static_mass(p: Tensor, ranked: Tensor, sizes: Tensor) -> Tensor:
    """Lemma 1 for the first k ids of a ranking: (N, V), (R,), (K,) -> (N, K) float64."""
    return p[:, ranked].double().cumsum(-1)[:, sizes - 1]


def oracle_mass(p: Tensor, sizes: Tensor) -> Tensor:
    """Lemma 2, the top-k mass: (N, V), (K,) -> (N, K) float64."""
    most = int(sizes.max())
    return p.topk(most, dim=-1).values.double().cumsum(-1)[:, sizes - 1]


def argmax_inside(p: Tensor, ranked: Tensor, sizes: Tensor) -> Tensor:
    """Whether the target's most likely token is among the first k of a ranking: (N, K) bool.

    This is the ceiling under greedy decoding, where only the argmax is ever accepted.
    """
    place = torch.full((p.shape[-1],), p.shape[-1], dtype=torch.int64, device=p.device)
    place[ranked] = torch.arange(len(ranked), device=p.device)
    return place[p.argmax(-1)][:, None] < sizes[None]


@dataclass
class Ceilings:
    """Means over the positions of one domain, by ranking and size.

    Attributes:
        positions: how many of the target's distributions were averaged.
        oracle: size -> top-k mass.
        static: ranking -> size -> mass of its first k ids.
        greedy: ranking -> size -> share of positions whose argmax is among them.
    """

    positions: int
    oracle: dict[int, float]
    static: dict[str, dict[int, float]] = field(default_factory=dict)
    greedy: dict[str, dict[int, float]] = field(default_factory=dict)


class CeilingMeter:
    """Adds up ceilings over batches of distributions, so that none has to be kept.

    Args:
        rankings: name -> (R,) int64 ids in rank order; sizes beyond R are left out for it.
        sizes: ks of the curves.
        rows: rows of the target's head, padded ones included.
    """

    def __init__(
        self,
        rankings: Mapping[str, Tensor],
        sizes: Sequence[int],
        rows: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.sizes = torch.tensor(sorted({size for size in sizes if 1 <= size <= rows}), device=device)
        self.rankings = {name: ranked.to(device) for name, ranked in rankings.items()}
        self.positions = 0
        count = len(self.sizes)
        self._oracle = torch.zeros(count, dtype=torch.float64, device=device)
        self._static = {
            name: torch.zeros(self._fitting(name), dtype=torch.float64, device=device) for name in rankings
        }
        self._greedy = {name: torch.zeros_like(total) for name, total in self._static.items()}

    def _fitting(self, name: str) -> int:
        return int((self.sizes <= len(self.rankings[name])).sum())

    def add(self, p: Tensor) -> None:
        """(N, V) distributions."""
        self.positions += len(p)
        self._oracle += oracle_mass(p, self.sizes).sum(0)
        for name, ranked in self.rankings.items():
            sizes = self.sizes[: self._fitting(name)]
            if len(sizes):
                self._static[name] += static_mass(p, ranked, sizes).sum(0)
                self._greedy[name] += argmax_inside(p, ranked, sizes).sum(0)

    def result(self) -> Ceilings:
        """The means so far.

        Raises:
            DataError: nothing was added.
        """
        if not self.positions:
            raise DataError("there is no position to measure a ceiling at", expected="text with tokens")
        sizes = [int(size) for size in self.sizes]

        def means(totals: Tensor) -> dict[int, float]:
            # Sums of rounded probabilities can end a little above 1.
            return {size: min(1.0, float(total) / self.positions) for size, total in zip(sizes, totals)}

        return Ceilings(
            self.positions,
            means(self._oracle),
            {name: means(totals) for name, totals in self._static.items()},
            {name: means(totals) for name, totals in self._greedy.items()},
        )


@torch.inference_mode()
def measure_ceilings(
    model: LeanModel,
    windows: Sequence[Sequence[int]],
    meter: CeilingMeter,
    *,
    on_tokens: Callable[[int], None] | None = None,
) -> Ceilings:
    """Run the target over token windows and average the ceilings of all its next-token distributions.

    Memory stays bounded: a few windows go through the layers together, and their logits are made in slices of
    :data:`ROW_BUDGET` numbers.

    Args:
        windows: token ids; each window is a context of its own.
        meter: gets softmax(logits) (N, V) in fp32.
        on_tokens: called with each number of positions done.

    Raises:
        MismatchError: an id that the target does not have, or a window longer than its context.
    """
    rows = model.config.vocab_size
    for window in windows:
        if len(window) and not 0 <= min(window) <= max(window) < rows:
            raise MismatchError(
                "the text holds token ids that the target does not have",
                got=f"ids {min(window)} to {max(window)}",
                expected=f"0 to {rows - 1}",
                remedy="use the target's own tokenizer",
            )
    slice_rows = max(1, ROW_BUDGET // rows)
    longest = max((len(window) for window in windows), default=0)
    if longest > model.config.max_positions:
        raise MismatchError(
            "a window of text is longer than the target's context",
            got=f"{longest:,} tokens",
            expected=f"at most {model.config.max_positions:,}",
        )
    batch = max(1, _BATCH_TOKENS // max(longest, 1))
    for start in range(0, len(windows), batch):
        hidden = _hidden(model, windows[start : start + batch])  # (N, H)
        for part in hidden.split(slice_rows):
            meter.add(torch.softmax(model.logits(part).float(), dim=-1))
        if on_tokens is not None:
            on_tokens(len(hidden))
    return meter.result()


def _hidden(model: LeanModel, windows: Sequence[Sequence[int]]) -> Tensor:
    """(N, H) final hidden states of all tokens of a few windows, padding left out."""
    longest = max(len(window) for window in windows)
    ids = torch.zeros(len(windows), longest, dtype=torch.int64)  # (B, T), padded at the end with id 0
    for row, window in enumerate(windows):
        ids[row, : len(window)] = torch.tensor(list(window))
    hidden = whole_pass(model, ids).hidden
    return torch.cat([hidden[row, : len(window)] for row, window in enumerate(windows)])
