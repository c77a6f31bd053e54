"""Candidates by a low-rank scorer: what ranker and hybrid heads choose from, in the scorer's own dtype or in fp8."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.fp8 import quantise_rows
from ..ops.ranker_select import ranker_select

_STEP, _FP8_STEP = 8, 16  # the ranks that the op takes are multiples of them


class Selector(nn.Module):
    """The scores of a scorer over some of its rows, and the best of them.

    A row is scored as ``s = W_vocab p`` (SpecVocab's ranker). In fp8 each row of W_vocab has a scale of its own,
    ``s = scale * (W8 p)``: the scorer's V * d' weights, nearly all that selection reads, take one byte each.

    Args:
        rows: (R, d') of W_vocab.
        fp8: score with these rows in float8_e4m3fn.
        ops: :meth:`select` will be called: ranks that the op does not take are padded with zeros, in a copy. The
            plain form keeps fp8 rows in the scorer's own dtype, which holds them exactly: PyTorch has no plain product
            with them.
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
        scores = F.linear(self._padded(projected), self.weight.to(projected.dtype)).float()
        return scores if self.scale is None else scores * self.scale

    def select(self, projected: Tensor, k: int) -> Tensor:
        """The k best rows (N, k) int32 of each of (N, d'), in no order; ties at the border to the lower row."""
        return ranker_select(self._padded(projected), self.weight, k, scale=self.scale)

    def _padded(self, projected: Tensor) -> Tensor:
        return F.pad(projected, (0, self._padding)) if self._padding else projected
