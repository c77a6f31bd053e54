"""Figures of the training steps between two logged lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.distributed import Group
from .losses import StepFigures
from .metrics import TTTTotals
from .vocab_loss import RowLoss


class Window:
    """Sums of the steps since the last logged line; they stay on the device until they are read."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self._totals = TTTTotals.zeros(steps, device)
        self._heads: dict[str, Tensor] = {}
        self._loss = torch.zeros((), device=device)
        self._norm = torch.zeros((), device=device)
        self._steps = 0

    def add(self, figures: Sequence[StepFigures], heads: Mapping[str, RowLoss]) -> None:
        """Add one micro-batch."""
        self._totals.add(figures)
        for name, loss in heads.items():
            rows = loss.losses.new_tensor(len(loss.losses))
            sums = torch.stack([loss.losses.sum(), loss.correct.sum().float(), rows])
            self._heads[name] = self._heads.get(name, torch.zeros_like(sums)) + sums

    def close_step(self, loss: Tensor, norm: Tensor) -> None:
        """End an optimiser step."""
        self._loss += loss
        self._norm = norm.detach()
        self._steps += 1

    def read(self, group: Group) -> dict[str, Any]:
        """Figures over all processes, a mean over the window's steps."""
        names = sorted(self._heads)
        parts = [self._totals.to_vector(), self._loss.double().reshape(1)]
        parts += [self._heads[name].double() for name in names]
        summed = torch.from_numpy(group.sum(torch.cat([part.cpu() for part in parts]).numpy()))
        totals, rest = summed[: parts[0].numel()], summed[parts[0].numel() :]
        summary = TTTTotals.from_vector(totals).summary()
        heads = {
            name: {"loss": float(loss / rows.clamp(min=1)), "accuracy": float(right / rows.clamp(min=1))}
            for name, (loss, right, rows) in zip(names, rest[1:].reshape(-1, 3))
        }
        figures: dict[str, Any] = {
            "loss": summary["loss"][0],  # type: ignore[index]
            "ttt_loss": float(rest[0]) / max(self._steps, 1),
            "accuracy": [round(a, 4) for a in summary["accuracy"]],  # type: ignore[attr-defined]
            "grad_norm": float(self._norm),
            "steps": self._steps,  # averaged over; a resumed run's first line may hold fewer
        }
        return {**figures, "heads": heads} if heads else figures
