"""Scores of a head's rows, with ties and without, and the ways in which they are compared."""

from __future__ import annotations

import pytest
import torch

ROWS, SIZE = 9, 700


def scores_of(kind: str, seed: int = 0) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    drawn = torch.randn(ROWS, SIZE, generator=stream)
    return {"real": drawn, "ties": (drawn * 2).round(), "equal": torch.zeros(ROWS, SIZE)}[kind]


def ordered(row: torch.Tensor) -> list[int]:
    """Head rows, best first, ties to the lower one, in plain Python."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


WAYS = ["host", "device"]
kinds = pytest.mark.parametrize("kind", ["real", "ties", "equal"])
ways = pytest.mark.parametrize("way", WAYS)
