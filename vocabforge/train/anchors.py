"""Which blocks a training step drafts: a function of seed, step and row alone, so that a resumed run repeats it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .ttt import counted_rows

# In place of a step's number: held-out figures are always of the same blocks.
HELDOUT = -1


def draw_anchors(
    loss_mask: Tensor, document: Tensor, rows: Sequence[int], most: int, seed: int, step: int
) -> Tensor:
    """Up to ``most`` positions of each packed row (B, T) whose first draft counts: int64 (B, A), -1 behind them.

    ``rows`` are the rows' numbers in the data; what is drawn of a row does not depend on the others. A is at least 1,
    so that every parameter takes part in every pass.
    """
    found = []
    for row, number in zip(counted_rows(loss_mask, document, 0).cpu(), rows):
        places = row.nonzero()[:, 0]
        digest = hashlib.sha256(repr((seed, step, number)).encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        found.append(places[torch.randperm(len(places), generator=generator)[:most]])
    found[0] = found[0] if any(map(len, found)) else torch.tensor([-1])
    padded = torch.nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)
    return padded.to(loss_mask.device)
