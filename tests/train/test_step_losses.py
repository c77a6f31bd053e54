"""A training step under every loss: fused as naive, and what keeps its own loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.decode.drafting import levels_of, make_drafter
from tests.train.test_loss_kinds import MIXTURES
from tests.train.ttt_reference import capture, documents, pack
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch
from vocabforge.train.config import HeadsConfig, TTTConfig
from vocabforge.train.heads.draft_heads import make_heads
from vocabforge.train.step import TrainStep
from vocabforge.train.ttt import unroll

STEPS, DECAY = 4, 0.7
EVERYTHING = dict(MIXTURES[-1])


@pytest.fixture(scope="module")
def batch(target: HFTarget) -> CapturedBatch:
    first, second, third = documents(2, [14, 6, 20])
    return capture(target, pack([[first, second], [third]], 22))


def counts_of(drafter: Any, batch: CapturedBatch) -> tuple[int, Tensor]:
    steps = levels_of(drafter, STEPS)
    sizes = [step.counted.sum() for step in unroll(drafter, batch, steps)]
    return steps, torch.stack(sizes).float()


def step_of(drafter: Any, target: HFTarget, **changes: Any) -> TrainStep:
    ttt = TTTConfig(decay=DECAY, confidence_weight=0.0, **changes)
    return TrainStep(drafter, nn.ModuleDict(), target.head_weight, ttt).train()


def test_draft_heads_and_the_confidence_keep_their_losses(folder, target, batch):
    drafter = make_drafter("dspark", folder, target)
    steps, counts = counts_of(drafter, batch)
    config = HeadsConfig.model_validate({"ranker": {"rank": 6, "weight": 1.0}})
    heads = make_heads(config, target.head_weight, seed=0)

    def losses(**changes: Any) -> tuple[float, Tensor]:
        ttt = TTTConfig(decay=DECAY, **changes)
        module = TrainStep(drafter, heads, target.head_weight, ttt, config).train()
        total, _, scored = module(batch, steps, counts)
        return float(total.detach()), scored["ranker"].total.detach()

    for changes in ({"loss": EVERYTHING}, {"weighting": "d-pace"}):
        torch.testing.assert_close(losses(**changes)[1], losses()[1])
        confidence = [
            losses(**changes)[0] - losses(**changes, confidence_weight=0.0)[0],
            losses()[0] - losses(confidence_weight=0.0)[0],
        ]
        assert confidence[0] == pytest.approx(confidence[1], rel=1e-3)


def test_blocks_with_anchors_find_their_rows(folder: Path, target: HFTarget, batch: CapturedBatch) -> None:
    """Every block in a random order: the same loss as all blocks in order."""
    drafter = make_drafter("dflash", folder, target)
    steps, counts = counts_of(drafter, batch)
    length = batch.input_ids.shape[1]
    draw = torch.Generator().manual_seed(1)
    anchors = torch.stack([torch.randperm(length, generator=draw) for _ in range(2)])
    module = step_of(drafter, target, loss="ce", weighting="d-pace")
    shuffled = module(batch, steps, counts, None, anchors)[0]
    torch.testing.assert_close(shuffled, module(batch, steps, counts)[0], rtol=1e-5, atol=1e-5)
