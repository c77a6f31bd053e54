"""What a training run works on: settings, target, drafter, data, processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..capture.online import CapturedBatch, RowBatch, to_tensors
from ..core.distributed import Group
from ..models.drafters.interface import Drafter
from ..models.drafters.parallel import is_parallel
from .config import TrainConfig
from .data import TrainData, divide
from .joint import target_rows
from .loss.rows import draw_anchors, feature_noise
from .machine import uses_bf16
from .optim import slow_down
from .parallel.replicated import Replicated
from .parallel.sequence import SequenceShare, TokenShard
from .parallel.strategy import Strategy, make_strategy, wanted_strategy
from .step import TrainStep
from .ttt import rows_by_step

# Decodes held-out prompts with a drafter and its draft heads, and returns figures; handed in by the command.
Live = Callable[[Drafter, Mapping[str, nn.Module]], Mapping[str, Any]]


@dataclass
class Trainer:
    """Everything one training run works on; :func:`~vocabforge.train.loop.train` runs it.

    Attributes:
        target: has ``embedding``, ``head_weight`` and ``logits``.
        captured: a capture source: packed rows and their keys to a captured batch.
        identity: settings and input hashes that a resumed run must share.
        meta: facts about target and tokenizer for the finished artefacts.
        live: decodes held-out prompts at every evaluation.
        facts: what a checkpoint remembers: the best evaluation so far, the number of threads.
        summary: step and held-out figures of the last evaluation.
    """

    config: TrainConfig
    target: Any
    step_module: TrainStep
    data: TrainData
    captured: Any
    device: torch.device
    group: Group
    identity: dict[str, Any]
    meta: dict[str, Any]
    live: Live | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    summary: tuple[int, dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        config, group = self.config, self.group
        sharing = config.run.sequence_parallel
        self.division = divide(config.optim, group.rank, group.size, sharing)
        self._sequence = None if sharing == 1 else SequenceShare.among(group, sharing)
        bound = self.drafter.max_steps
        # Medusa trains every head that it has: decoding drafts with all of them.
        self.steps = config.ttt.steps if bound is None else bound
        strategy = wanted_strategy(config.run.strategy, group)
        self.strategy: Strategy = make_strategy(strategy, self.step_module, config, group, self.device)
        if config.joint is not None and isinstance(self.strategy, Replicated):
            slow_down(self.strategy.optimizer, self.step_module.joint.parameters(), config.joint.lr_fraction)

    @property
    def drafter(self) -> Any:
        """The drafter that is trained, or frozen under its heads."""
        return self.step_module.drafter

    @property
    def run_digest(self) -> str:
        """SHA-256 of what makes this run what it is."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    def steps_at(self, step: int) -> int:
        """Draft steps that optimiser step ``step`` unrolls: one while warming up, then all K."""
        warm = step < self.config.ttt.warmup_fraction * self.config.optim.steps
        return 1 if warm and self.drafter.max_steps is None else self.steps

    def anchors(self, step: int, rows: RowBatch, indices: list[int]) -> Tensor | None:
        """The blocks (B, A) that a parallel drafter drafts of these packed rows in a step; None for other kinds."""
        if not is_parallel(self.drafter):
            return None
        most, seed = self.config.ttt.anchors, self.config.run.seed
        return draw_anchors(rows.loss_mask, rows.document, indices, most, seed, step)

    def rows_by_step(self, rows: RowBatch, steps: int, anchors: Tensor | None) -> Tensor:
        """Counted rows of packed rows by draft step: (K,) fp32; behind them those of a target that is trained."""
        first = is_parallel(self.drafter) and self.drafter.first_everywhere
        counts = rows_by_step(rows.loss_mask, rows.document, steps, anchors, first_everywhere=first)
        joint = self.step_module.joint is not None
        return torch.cat([counts, target_rows(rows).sum().view(1).to(counts)]) if joint else counts

    def noise(
        self, batch: CapturedBatch, step: int, rows: list[int], shard: TokenShard | None = None
    ) -> Tensor | None:
        """(B, T, .) noise on what the drafter reads of these rows, or of a shard's own tokens; None without."""
        width = self.step_module.settings.feature_noise
        if not width:
            return None
        shape, own = batch.states(self.drafter.reads).shape, slice(None)
        if shard is not None:  # drawn for whole rows, so that it does not depend on the division
            shape = torch.Size((*shard.document.shape, shape[-1]))
            own = slice(shard.tokens.start, shard.tokens.start + shard.own)
        return feature_noise(shape, width, self.config.run.seed, step, rows)[:, own].to(self.device)

    def capture(self, split: Literal["train", "heldout"], indices: list[int]) -> CapturedBatch:
        """The target's states for these packed rows of a split."""
        rows = to_tensors(self.data.rows(split), indices, self.device)
        return self.captured(rows, [(split, i) for i in indices])

    def capture_part(
        self, split: Literal["train", "heldout"], indices: list[int], steps: int
    ) -> tuple[CapturedBatch, TokenShard | None]:
        """What this process works on of these packed rows in an unroll of K steps: all, or its shard of each."""
        if self._sequence is None:
            return self.capture(split, indices), None
        rows = to_tensors(self.data.rows(split), indices, self.device)
        shard = self._sequence.shard(rows.document, steps)
        return self.captured(rows, [(split, i) for i in indices], shard.tokens), shard

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Forward passes inside are in bf16 where the run is."""
        low = uses_bf16(self.config, self.device)
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=low)
