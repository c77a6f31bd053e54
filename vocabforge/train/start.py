"""Where training starts: at the target's own scale.

With default initialisation the first thousand steps go into finding the scale of the target's logits (its final
norm may amplify many times over) and of its features (which may be a hundred times smaller than a layer's output).
Both are known before the first step. See the lab log for what this is worth.
"""

from __future__ import annotations

import torch

from ..capture.online import CapturedBatch
from ..models.drafter import Drafter


@torch.no_grad()
def start_from_target(drafter: Drafter, batch: CapturedBatch) -> None:
    """Set a fresh drafter's scales from some captured rows; see its ``init_from_target``."""
    real = batch.document != 0
    drafter.init_from_target(batch.states(drafter.reads)[real], batch.hidden[real])
