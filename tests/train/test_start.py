"""A drafter starts at the target's scale, whatever that scale is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support import tiny_drafter, tiny_target
from vocabforge.capture.online import OnlineCapture, RowBatch
from vocabforge.models.device import choose_device
from vocabforge.models.target import HFTarget
from vocabforge.train.setup import start_from_target


@pytest.mark.parametrize("gain", [0.01, 1.0, 7.0])
def test_scales_follow_the_target(tmp_path: Path, gain: float) -> None:
    target = HFTarget.load(tiny_target(tmp_path))
    with torch.no_grad():
        target.backbone.norm.weight.mul_(gain)
    ids = torch.arange(40).reshape(2, 20)
    document = torch.ones_like(ids)
    document[1, 15:] = 0  # padding must not count
    rows = RowBatch(ids, ids > 0, document, torch.arange(20).expand(2, 20))
    batch = OnlineCapture(target, 0)(rows, [0, 1])
    chosen = torch.tensor([1, 4, 9, 30])
    drafter = tiny_drafter(target, own_head=4, target_ids=chosen)
    drafter.requires_grad_(True)
    with torch.no_grad():
        drafter.lm_head.weight.zero_()
    start_from_target(drafter, batch)
    real = document != 0
    assert float(drafter.fuse(batch.features[real]).pow(2).mean().sqrt()) == pytest.approx(1.0, rel=1e-4)
    expected = batch.hidden[real].pow(2).mean(0).sqrt()
    torch.testing.assert_close(drafter.norm.weight.detach(), expected)
    torch.testing.assert_close(drafter.lm_head.weight.detach(), target.head_weight[chosen])


def test_a_cpu_launch_keeps_auto_off_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    assert choose_device("auto").type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert choose_device("auto").type == "cpu"
