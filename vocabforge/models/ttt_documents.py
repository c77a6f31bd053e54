"""Where the documents of packed rows lie, so that attention skips what cannot be visible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DataError
from .document_passes import runs_of


@dataclass(frozen=True)
class Segment:
    """The same stretch of tokens in neighbouring rows.

    Attributes:
        rows, tokens: slices of B and T.
        padding: the tokens see themselves only, otherwise all of the segment before them.
    """

    rows: slice
    tokens: slice
    padding: bool


@dataclass(frozen=True)
class Documents:
    """Documents of packed rows.

    Attributes:
        first: int64 (B, T) first token that a token sees; the visible ones are ``first[t] .. t``.
        segments: the same as slices; they cover every token once.
        cache: what an implementation keeps for the later steps of an unroll.
    """

    first: Tensor
    segments: tuple[Segment, ...]
    cache: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, document: Tensor) -> Documents:
        """From document numbers (B, T), 0 for padding.

        Raises:
            DataError: a document's tokens are not one stretch of its row.
        """
        numbers = document.cpu().numpy()
        rows = [list(runs_of(row)) for row in numbers]
        for index, runs in enumerate(rows):
            seen = [number for _, _, number in runs if number != 0]
            if len(seen) != len(set(seen)):
                twice = next(number for number in seen if seen.count(number) > 1)
                raise DataError(
                    "a packed row holds a document in two places",
                    got=f"document {twice} of row {index}",
                    expected="each document in one stretch of tokens",
                    remedy="use memory.attention: eager, or pack each document in one piece",
                )
        segments, first = [], np.empty(numbers.shape, np.int64)
        same = 0
        for index, runs in enumerate(rows):
            for a, b, number in runs:
                first[index, a:b] = a if number else np.arange(a, b)
            # Neighbouring rows that are cut in the same places go together.
            shape = [(a, b, number != 0) for a, b, number in runs]
            last = index + 1 == len(rows)
            if last or shape != [(a, b, number != 0) for a, b, number in rows[index + 1]]:
                segments += [Segment(slice(same, index + 1), slice(a, b), not real) for a, b, real in shape]
                same = index + 1
        return cls(torch.from_numpy(first).to(document.device), tuple(segments))
