"""A low-rank stand-in for the LM head, and candidates chosen by it in its own dtype or in fp8.

The scorer of a ranker (SpecVocab), of a hybrid head and of a low-rank head (SlimSpec).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import ConfigError
from ...ops.few_rows import linear
from ...ops.fp8 import quantise_rows
from ...ops.ranker_select import ranker_select
from ...ops.ranker_topk import ranker_topk
from .interface import HeadSizes

_OVERSAMPLE, _POWER_ITERATIONS = 8, 4
_SMALL = 0.02


class LowRankScorer(nn.Module):
    """``s = W_vocab (W_down h)`` for the whole vocabulary; SpecVocab's rank d' is H / 8 or H / 16.

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
        """d'."""
        return self.down.out_features

    @property
    def head_sizes(self) -> HeadSizes:
        return HeadSizes(self.down.in_features, self.vocab.out_features, rank=self.rank)

    def blank(self) -> LowRankScorer:
        """One of these sizes with fresh weights."""
        return LowRankScorer(self.down.in_features, self.vocab.out_features, self.rank)

    @property
    def head_weight(self) -> Tensor:
        """W_vocab (V, d')."""
        return self.vocab.weight

    def project(self, hidden: Tensor) -> Tensor:
        """W_down h: (..., H) -> (..., d')."""
        return self.down(hidden)

    def scores(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., V)."""
        return linear(self.project(hidden), self.head_weight)

    @torch.no_grad()
    def init_random(self, seed: int) -> None:
        """Small normal weights from their own stream."""
        stream = torch.Generator().manual_seed(seed)
        for weight in (self.down.weight, self.vocab.weight):
            draw = torch.empty(weight.shape).normal_(0.0, _SMALL, generator=stream)
            weight.copy_(draw)

    @torch.no_grad()
    def init_from_head(self, head: Tensor, seed: int) -> None:
        """Start at the best low-rank approximation of an LM head (V, H); see :func:`factor_head`."""
        vocab, down = factor_head(head, self.rank, seed)
        self.vocab.weight.copy_(vocab)
        self.down.weight.copy_(down)


@torch.no_grad()
def factor_head(head: Tensor, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Truncated SVD of an LM head, the mean row taken off: a shift of all logits changes no softmax.

    Randomised (Halko, Martinsson and Tropp 2011); the singular values are shared evenly between the factors.

    Args:
        head: (V, H) in any dtype; computed in fp32 on its device.
        rank: d'.
        seed: of the random projections; the global stream is left alone.

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
    vocab[:, : len(root)] = u[:, :rank] * root  # a head of fewer than d' rows leaves columns at 0
    down[: len(root)] = root[:, None] * v[:, :rank].T
    return vocab, down


_STEP, _FP8_STEP = 8, 16  # the ranks that the op takes are multiples of them


class Selector(nn.Module):
    """The scores of a scorer over some of its rows ``s = W_vocab p``, and the best of them.

    Args:
        rows: (R, d') of W_vocab.
        fp8: score with these rows in float8_e4m3fn, one scale a row.
        ops: :meth:`select` will be called: ranks that the op does not take are padded with zeros, in a copy. The
            plain form keeps fp8 rows in the scorer's dtype: PyTorch has no plain product with them.
    """

    weight: Tensor
    scale: Tensor | None

    def __init__(self, rows: Tensor, *, fp8: bool, ops: bool) -> None:
        super().__init__()
        self.original = weight = rows.detach()
        scale = None
        if fp8:
            weight, scale = quantise_rows(weight)
            weight = weight if ops else weight.to(rows.dtype)
        self._padding = -rows.shape[1] % (_FP8_STEP if fp8 else _STEP) if ops else 0
        if self._padding:
            filled = weight.new_zeros(len(weight), rows.shape[1] + self._padding)
            filled[:, : rows.shape[1]] = weight
            weight = filled
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def scores(self, projected: Tensor) -> Tensor:
        """(N, d') -> (N, R) fp32."""
        scores = linear(self._padded(projected), self.weight.to(projected.dtype)).float()
        return scores if self.scale is None else scores * self.scale

    def select(self, projected: Tensor, k: int) -> Tensor:
        """The k best rows (N, k) int32 of each of (N, d'), in no order; ties at the border to the lower row."""
        return ranker_select(self._padded(projected), self.weight, k, scale=self.scale)

    def best(
        self, hidden: Tensor, down: Tensor, head: Tensor, k: int, topk: int, target_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Answers (N, topk) among at least k candidates of each of (N, H) by ``head`` (R, H); see ``ranker_topk``."""
        down = F.pad(down, (0, 0, 0, self._padding)) if self._padding else down
        return ranker_topk(hidden, down, self.weight, head, k, topk, scale=self.scale, target_ids=target_ids)

    def _padded(self, projected: Tensor) -> Tensor:
        return F.pad(projected, (0, self._padding)) if self._padding else projected
