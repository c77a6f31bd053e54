"""The distinct tokens of each request's text, on the device, for heads that draft from them (NanoSpec)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor


class ContextTokens:
    """The ``size`` most recent distinct tokens of prompt and output, for B rows.

    A ring buffer: a new token replaces the least recent one, so that a cycle writes a few entries of one
    tensor whose address never changes.
    """

    def __init__(self, rows: int, size: int, device: torch.device | str) -> None:
        self.size = size
        self._places: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(rows)]  # token -> its index
        self._changed: dict[tuple[int, int], int] = {}  # (row, index) -> token not yet on the device
        with torch.inference_mode(False):  # written in both modes
            self._tensor = torch.full((rows, size), -1, dtype=torch.int64, device=device)

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        places = self._places[row]
        for place in places.values():
            self._changed[row, place] = -1
        places.clear()
        latest: dict[int, None] = {}  # most recent first: a long prompt is not read to its beginning
        for token in reversed(prompt_ids):
            latest[token] = None
            if len(latest) == self.size:
                break
        self.add(row, list(reversed(latest)))

    def add(self, row: int, tokens: Sequence[int]) -> None:
        places = self._places[row]
        for token in tokens:
            if token in places:
                places.move_to_end(token)
                continue
            place = len(places) if len(places) < self.size else places.popitem(last=False)[1]
            places[token] = place
            self._changed[row, place] = token

    @property
    def tensor(self) -> Tensor:
        """(B, C) int64, distinct in a row, unordered, padded with -1; always the same tensor, updated."""
        if self._changed:
            rows, places = zip(*self._changed)
            written = torch.tensor([rows, places, tuple(self._changed.values())])
            # CUDA copies small pageable memory before the call returns, so no wait is needed.
            written = written.to(self._tensor.device, non_blocking=True)
            self._tensor[written[0], written[1]] = written[2]
            self._changed.clear()
        return self._tensor
