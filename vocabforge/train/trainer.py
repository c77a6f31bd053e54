"""State of a training run: settings, target, drafter, data, processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.distributed import Group
from ..core.errors import DataError
from ..corpus.prepared.artifact import PreparedData
from ..models.drafters.interface import Drafter
from ..models.drafters.parallel import is_parallel
from .capture.online import CapturedBatch, RowBatch, to_tensors
from .config import TrainConfig
from .data import Division, divide
from .loss.rows import draw_anchors, feature_noise
from .machine import uses_bf16
from .parallel.strategy import Strategy, make_strategy, wanted_strategy
from .step import TrainStep
from .ttt import rows_by_step

Split = Literal["train", "heldout"]
# Decodes held-out prompts with a drafter and its draft heads, and returns figures (``monitoring/live.py``).
Live = Callable[[Drafter, Mapping[str, nn.Module], int, "float | None"], Mapping[str, Any]]


@dataclass(kw_only=True)
class Trainer:
    """State of a training run; see :func:`~vocabforge.train.loop.train`.

    Attributes:
        target: object with ``embedding``, ``head_weight`` and ``logits``.
        captured: capture source: packed rows and their keys -> captured batch (``capture/``).
        identity: settings and input hashes that must match on resume.
        meta: facts about target and tokenizer for the finished artefacts.
        live: decodes held-out prompts at every evaluation.
        facts: values stored in checkpoints: the best evaluation so far, the number of threads.
        summary: step and held-out figures of the last evaluation.
    """

    config: TrainConfig
    target: Any
    step_module: TrainStep
    data: PreparedData
    captured: Any
    device: torch.device
    group: Group
    identity: dict[str, Any]
    meta: dict[str, Any]
    live: Live | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    summary: tuple[int, dict[str, Any]] | None = None
    division: Division = field(init=False)
    strategy: Strategy = field(init=False)

    def __post_init__(self) -> None:
        config, group = self.config, self.group
        self.division = divide(config.optim, group.rank, group.size)
        bound = self.drafter.max_steps
        # Medusa trains all its heads, because decoding uses all of them.
        self.steps = config.ttt.steps if bound is None else bound
        strategy = wanted_strategy(config.run.strategy, group)
        self.strategy = make_strategy(strategy, self.step_module, config, group, self.device)

    def capture(self, split: Split, indices: Sequence[int]) -> CapturedBatch:
        """Return the target's states for these packed rows of a split."""
        rows = to_tensors(getattr(self.data, split), indices, self.device)
        batch: CapturedBatch = self.captured(rows, [(split, index) for index in indices])
        return batch

    @property
    def drafter(self) -> Any:
        """Drafter, trained or frozen."""
        return self.step_module.drafter

    @property
    def run_digest(self) -> str:
        """SHA-256 of the identity of the run."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    def steps_at(self, step: int) -> int:
        """Return the number of draft steps of an optimiser step: 1 during the warm-up, then K."""
        warm = step < self.config.ttt.warmup_fraction * self.config.optim.steps
        return 1 if warm and self.drafter.max_steps is None else self.steps

    def anchors(self, step: int, rows: RowBatch, indices: list[int]) -> Tensor | None:
        """Draw the blocks (B, A) of these packed rows for a parallel drafter; return None for other kinds."""
        if not is_parallel(self.drafter):
            return None
        most, seed = self.config.ttt.anchors, self.config.run.seed
        return draw_anchors(rows.loss_mask, rows.document, indices, most, seed, step)

    def rows_by_step(self, rows: RowBatch, steps: int, anchors: Tensor | None) -> Tensor:
        """Return the counted rows by draft step, (K,) fp32."""
        first = is_parallel(self.drafter) and self.drafter.first_everywhere
        return rows_by_step(rows.loss_mask, rows.document, steps, anchors, first_everywhere=first)

    def noise(self, batch: CapturedBatch, step: int, rows: list[int]) -> Tensor | None:
        """Return noise (B, T, .) for the drafter's input features of these rows, or None."""
        width = self.step_module.weights["feature_noise"]
        if not width:
            return None
        shape = batch.states(self.drafter.reads).shape
        return feature_noise(shape, width, self.config.run.seed, step, rows).to(self.device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the autocast context of the run's forward passes."""
        low = uses_bf16(self.config, self.device)
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=low)


def check_finite(trainer: Trainer, step: int, rows: Sequence[int], loss: Tensor, norm: Tensor) -> None:
    """Check that loss and gradient of a run are finite. Collective.

    Raises:
        DataError: they are not; raised on every process, names the packed rows.
    """
    finite = torch.isfinite(torch.stack([loss.float(), norm.detach().float()])).tolist()
    if not trainer.group.any(not all(finite)):
        return
    mine = [row for part in trainer.division.own(rows) for row in part]
    with torch.no_grad():
        bad = [row for row in mine if not is_finite(trainer.capture("train", [row]))]
    named = sorted({row for part in trainer.group.gather(bad) for row in part})
    raise DataError(
        f"the training {'gradient' if finite[0] else 'loss'} is not finite",
        got=f"at step {step + 1}; the target's states are "
        + (f"not finite in rows {named}" if named else "finite in each of its rows"),
        source=f"packed rows {list(rows)}",
        remedy="lower optim.lr or inspect these rows; the last checkpoint is intact",
    )


def is_finite(batch: CapturedBatch) -> bool:
    return bool(torch.isfinite(batch.hidden).all() and torch.isfinite(batch.features).all())
