"""Where training starts: at the target's own scale.

With default initialisation the first thousand steps go into finding the scale of the target's logits (its final
norm may amplify many times over) and of its features (which may be a hundred times smaller than a layer's output).
Both are known before the first step. See the lab log for what this is worth.
"""

from __future__ import annotations

import torch

from ..capture.online import CapturedBatch
from ..models.eagle3 import Eagle3Drafter

_TINY = 1e-12


@torch.no_grad()
def start_from_target(drafter: Eagle3Drafter, batch: CapturedBatch) -> None:
    """Set the drafter's scales from captured rows.

    - an own head takes the target's rows of the same tokens;
    - the final norm's weight takes the root mean square of the target's hidden states, a dimension at a time,
      so that the first logits are as large as the target's;
    - ``fc`` is scaled so that g0 has a root mean square of 1, beside which a fresh layer's output is a perturbation.

    Args:
        drafter: freshly initialised; changed in place.
        batch: some captured rows.
    """
    real = batch.document != 0
    drafter.init_from_target()
    drafter.norm.weight.copy_(batch.hidden[real].float().pow(2).mean(0).sqrt())  # (H,)
    fused = drafter.fuse(batch.features[real].to(drafter.fc.weight.dtype))
    drafter.fc.weight.div_(fused.float().pow(2).mean().sqrt().clamp(min=_TINY))
