"""A low-rank approximation of the LM head, and candidate selection with it.

It is the scorer of a ranker (SpecVocab) and a low-rank head (SlimSpec).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError
from ...ops.few_rows import linear
from ...ops.ranker_select import ranker_select
from .interface import HeadSizes

_OVERSAMPLE, _POWER_ITERATIONS = 8, 4
_SMALL = 0.02


class LowRankScorer(nn.Module):
    """Low-rank scores ``s = W_vocab (W_down h)`` of the vocabulary; SpecVocab's rank d' is H / 8 or H / 16.

    Raises:
        ConfigError: a rank outside 1 to H.
    """

    def __init__(self, hidden_size: int, vocab_size: int, rank: int) -> None:
        super().__init__()
        if not 1 <= rank <= hidden_size:
            raise ConfigError(
                "the rank of the low-rank scorer does not suit the hidden size",
                got=rank,
                expected=f"1 to {hidden_size}",
            )
        self.down = nn.Linear(hidden_size, rank, bias=False)
        self.vocab = nn.Linear(rank, vocab_size, bias=False)

    @property
    def rank(self) -> int:
        """Rank d'."""
        return self.down.out_features

    @property
    def head_sizes(self) -> HeadSizes:
        return HeadSizes(self.down.in_features, self.vocab.out_features, rank=self.rank)

    def blank(self) -> LowRankScorer:
        """Return an untrained scorer of the same sizes."""
        return LowRankScorer(self.down.in_features, self.vocab.out_features, self.rank)

    @property
    def head_weight(self) -> Tensor:
        """W_vocab (V, d')."""
        return self.vocab.weight

    def project(self, hidden: Tensor) -> Tensor:
        """Compute W_down h: (..., H) -> (..., d')."""
        return self.down(hidden)

    def scores(self, hidden: Tensor) -> Tensor:
        """Compute the scores: (..., H) -> (..., V)."""
        return linear(self.project(hidden), self.head_weight)

    @torch.no_grad()
    def init_random(self, seed: int) -> None:
        """Initialise with small normal weights from a separate random stream."""
        stream = torch.Generator().manual_seed(seed)
        for weight in (self.down.weight, self.vocab.weight):
            draw = torch.empty(weight.shape).normal_(0.0, _SMALL, generator=stream)
            weight.copy_(draw)

    @torch.no_grad()
    def init_from_head(self, head: Tensor, seed: int) -> None:
        """Initialise with the best low-rank approximation of an LM head (V, H); see :func:`factor_head`."""
        vocab, down = factor_head(head, self.rank, seed)
        self.vocab.weight.copy_(vocab)
        self.down.weight.copy_(down)


@torch.no_grad()
def factor_head(head: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Compute a truncated SVD of an LM head minus its mean row.

    Shifting all logits does not change the softmax. The SVD is randomised (Halko, Martinsson and Tropp 2011);
    the singular values are split evenly between the factors.

    Args:
        head: (V, H) in any dtype; computed in fp32 on its device.
        rank: d'.
        seed: seed of the random projections; the global random state does not change.

    Returns:
        W_vocab (V, d') and W_down (d', H), fp32, with ``head - mean ~ W_vocab @ W_down``.
    """
    centred = head.float() - head.float().mean(0)
    width = min(rank + _OVERSAMPLE, *centred.shape)
    devices = [centred.device] if centred.is_cuda else []
    with torch.random.fork_rng(devices), torch.autocast(centred.device.type, enabled=False):
        torch.manual_seed(seed)
        u, s, v = torch.svd_lowrank(centred, q=width, niter=_POWER_ITERATIONS)
    root = s[:rank].sqrt()
    vocab, down = u.new_zeros(len(head), rank), u.new_zeros(rank, head.shape[1])
    vocab[:, : len(root)] = u[:, :rank] * root  # columns stay 0 if the head has fewer than d' rows
    down[: len(root)] = root[:, None] * v[:, :rank].T
    return vocab, down


_STEP = 8  # the op requires ranks that are multiples of it


class Selector(nn.Module):
    """Scores ``s = W_vocab p`` over some rows of W_vocab, and selection of the best rows.

    Args:
        rows: (R, d') rows of W_vocab.
        ops: prepare for :meth:`select`: ranks that the op does not support are zero-padded in a copy.
    """

    weight: Tensor

    def __init__(self, rows: Tensor, *, ops: bool) -> None:
        super().__init__()
        self._padding = -rows.shape[1] % _STEP if ops else 0
        self.register_buffer("weight", self._padded(rows.detach()), persistent=False)

    def scores(self, projected: Tensor) -> Tensor:
        """Compute the scores: (N, d') -> (N, R) fp32."""
        return linear(self._padded(projected), self.weight.to(projected.dtype)).float()

    def select(self, projected: Tensor, k: int) -> Tensor:
        """Select the k best rows (N, k) int32 for each of (N, d'), unordered; ties go to the lower row."""
        return ranker_select(self._padded(projected), self.weight, k)

    def _padded(self, rows: Tensor) -> Tensor:
        return F.pad(rows, (0, self._padding)) if self._padding else rows
