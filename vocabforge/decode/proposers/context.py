"""The distinct tokens of each request's text, on the device, for heads that draft from them (NanoSpec)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor


class ContextTokens:
    """For B rows, the ``size`` distinct tokens of prompt and output that were met last.

    A ring: a new token takes the place of the one that was met longest ago, so that a cycle writes a few places of one
    tensor whose address never changes.
    """

    def __init__(self, rows: int, size: int, device: torch.device | str) -> None:
        self.size = size
        self._places: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(rows)]  # token -> its place
        self._changed: dict[tuple[int, int], int] = {}  # (row, place) -> token not yet on the device
        with torch.inference_mode(False):  # it is written to in both modes
            self._tensor = torch.full((rows, size), -1, dtype=torch.int64, device=device)

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        places = self._places[row]
        for place in places.values():
            self._changed[row, place] = -1
        places.clear()
        latest: dict[int, None] = {}  # last met first: a long prompt is not read to its beginning
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
        """(B, C) int64, distinct in a row, in no order, padded with -1: always the same tensor, brought up to date."""
        if self._changed:
            rows, places = zip(*self._changed)
            written = torch.tensor([rows, places, tuple(self._changed.values())])
            # CUDA takes a small copy of pageable memory before the call returns, so there is nothing to wait for.
            written = written.to(self._tensor.device, non_blocking=True)
            self._tensor[written[0], written[1]] = written[2]
            self._changed.clear()
        return self._tensor
