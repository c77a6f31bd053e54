"""Looking at a drafter while it trains: held-out figures, the real decoder, and copies to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..models.drafter import Drafter
from ..models.drafters import new_drafter
from .metrics import TTTTotals
from .ttt import rows_by_step

if TYPE_CHECKING:
    from .loop import Trainer

# Decodes held-out prompts with a drafter and its draft heads, and returns figures; handed in by the command.
Live = Callable[[Drafter, Mapping[str, nn.Module]], Mapping[str, Any]]


@torch.no_grad()
def heldout_figures(trainer: Trainer) -> dict[str, object]:
    """Figures over the first ``eval_rows`` held-out rows, shared by all processes; see ``TTTTotals.summary``."""
    config, group, steps = trainer.config, trainer.group, trainer.steps
    totals = TTTTotals.zeros(steps)
    trainer.step_module.eval()
    count = min(len(trainer.data.heldout), config.run.eval_rows)
    micro = trainer.division.micro
    for first in range(0, count, group.size * micro):
        at = first + group.rank * micro
        rows = list(range(at, min(at + micro, count)))
        # Every process must take part in every pass: one without rows looks at the first again, uncounted.
        batch = trainer.capture("heldout", rows or [0])
        counts = rows_by_step(batch.loss_mask, batch.document, steps)
        with trainer.autocast():
            _, figures, _ = trainer.strategy.forward(batch, steps, counts)
        if rows:
            totals.add(figures)
    trainer.step_module.train()
    if group.size > 1:
        summed = group.sum(totals.to_vector().cpu().numpy())
        totals = TTTTotals.from_vector(torch.from_numpy(summed))
    return totals.summary()


def plain_copy(trainer: Trainer, weights: Mapping[str, Tensor]) -> tuple[Drafter, dict[str, nn.Module]]:
    """Drafter and heads as ordinary modules with these weights, over the target's own tensors.

    Args:
        weights: full tensors by name in the step (``drafter.*``, ``heads.*``); what is missing (a frozen
            drafter's) is taken from the modules themselves.
    """
    source = trainer.step_module.drafter
    ids = source.target_ids if source.has_own_head else None
    with torch.random.fork_rng(devices=[]):  # their initial weights are drawn, and thrown away
        drafter = new_drafter(source.kind, source.config, source.embedding, source.target_head, ids)
        heads = {name: _like(head) for name, head in trainer.step_module.heads.items()}
    drafter.to(source.embedding.device)
    modules = {"drafter": drafter, **{f"heads.{name}": head for name, head in heads.items()}}
    originals = {"drafter": source, **{f"heads.{name}": h for name, h in trainer.step_module.heads.items()}}
    with torch.no_grad():
        for prefix, module in modules.items():
            before = dict(originals[prefix].named_parameters())
            for name, parameter in module.named_parameters():  # type: ignore[attr-defined]
                parameter.copy_(weights.get(f"{prefix}.{name}", before[name]))
    drafter.eval()
    return drafter, heads


def _like(head: Any) -> nn.Module:
    """An uninitialised scorer of the same sizes on the same device."""
    vocab, rank = head.head_weight.shape
    return type(head)(head.down.in_features, vocab, rank).to(head.head_weight.device)
