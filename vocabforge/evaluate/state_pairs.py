"""What a drafter's head reads beside what the target's head reads, at the first draft steps of the target's answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.errors import UsageError
from ..models.drafter import Drafter
from ..models.drafter_io import TargetTensors, assemble
from ..models.lean import LeanModel
from ..models.ttt_attention import TTTState
from .doctor.servers_probe import ProbedText, probe

STEPS = 3


def onto(drafter: Drafter, model: LeanModel) -> Drafter:
    """A copy of a drafter over a loaded target's tensors, in its dtype and on its device."""
    tensors = TargetTensors(model.embedding, model.lm_head_weight)
    ids = drafter.target_ids.to(model.device) if drafter.has_own_head else None
    copied: Drafter = assemble(
        drafter.config, dict(drafter.named_parameters()), ids, tensors, source="the drafter"
    )
    return copied


@torch.inference_mode()
def state_pairs(
    drafter: Drafter, model: LeanModel, prompts: Sequence[Sequence[int]], new: int
) -> tuple[Tensor, Tensor]:
    """The drafter unrolled over prompts and the target's greedy answers to them, teacher forced.

    Args:
        new: tokens of an answer.

    Returns:
        (N, H) what the drafter's head reads, (N, H) what the target's reads where it predicts the same token; fp32
        on the CPU.

    Raises:
        UsageError: no prompt.
    """
    copied = onto(drafter, model)
    texts = probe(model, prompts, new, copied.config.aux_layers)
    if not texts:
        raise UsageError("there is no prompt to read states on", remedy="give two --prompts at least")
    pairs = [pair for text in texts for pair in _pairs(copied, model, text)]
    return torch.cat([mine for mine, _ in pairs]), torch.cat([theirs for _, theirs in pairs])


def _pairs(drafter: Drafter, model: LeanModel, text: ProbedText) -> list[tuple[Tensor, Tensor]]:
    """Row t of draft step k is fed x_(t+1+k); its state stands beside the target's at t + 1 + k."""
    length = len(text.ids)
    steps = min(STEPS, drafter.max_steps or STEPS, length - 2)
    drafter.ensure_positions(length + steps)
    ids, position = text.ids.to(model.device)[None], torch.arange(length, device=model.device)[None]
    state = TTTState(torch.ones_like(ids))
    g = drafter.fuse(text.features(drafter.config.aux_layers).to(model.device, model.dtype)[None])
    found = []
    for step in range(steps):
        fed = torch.nn.functional.pad(ids[:, 1 + step :], (0, 1 + step))  # (1, T)
        g = drafter.ttt_step(fed, g, position + step, state)
        count = length - 1 - step  # rows that are fed a token of the text
        found.append((drafter.read(g)[0, :count].float().cpu(), text.hidden[1 + step :]))
    return found
