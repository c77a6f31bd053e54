"""Which blocks a step trains, and that their loss does not depend on how a batch is divided."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.decode.drafting import make_drafter
from tests.train.ttt_reference import capture, documents, pack
from tests.worlds import tiny_target
from vocabforge.models.drafters.parallel import is_parallel
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch
from vocabforge.train.config import TTTConfig
from vocabforge.train.loss.rows import HELDOUT, draw_anchors
from vocabforge.train.step import TrainStep
from vocabforge.train.ttt import counted_rows, rows_by_step, unroll

KINDS = ["peagle", "dflash", "dspark"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, HFTarget]:
    folder = tiny_target(tmp_path_factory.mktemp("anchors"), initializer_range=0.2)
    return folder, HFTarget.load(folder)


def batch_of(target: HFTarget) -> CapturedBatch:
    first, second, third = documents(3, [17, 9, 21])
    return capture(target, pack([[first, second], [third]], 28, lead=1))


def test_a_rows_anchors_depend_on_seed_step_and_row_alone(target: tuple[Path, HFTarget]) -> None:
    batch = batch_of(target[1])
    both = draw_anchors(batch.loss_mask, batch.document, [5, 8], 4, seed=1, step=3)
    alone = draw_anchors(batch.loss_mask[1:], batch.document[1:], [8], 4, seed=1, step=3)
    assert both[1].tolist() == alone[0].tolist()
    others = [
        draw_anchors(batch.loss_mask, batch.document, [5, 8], 4, *key).tolist()
        for key in ((1, 4), (2, 3), (1, HELDOUT))
    ]
    assert both.tolist() not in others
    counted = counted_rows(batch.loss_mask, batch.document, 0)
    for row, found in enumerate(both.tolist()):
        real = [place for place in found if place >= 0]
        assert len(set(real)) == len(real) == min(4, int(counted[row].sum()))
        assert all(counted[row, place] for place in real)
    every = draw_anchors(batch.loss_mask, batch.document, [5, 8], 100, seed=1, step=3)
    assert int((every >= 0).sum()) == int(counted.sum())
    nothing = torch.zeros_like(batch.loss_mask)
    assert draw_anchors(nothing, batch.document, [0, 1], 4, seed=0, step=0).tolist() == [[-1], [-1]]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_count_up_to_the_first_token_that_is_not_the_assistants(kind, target):
    drafter, batch = make_drafter(kind, *target), batch_of(target[1])
    anchors = draw_anchors(batch.loss_mask, batch.document, [0, 1], 6, seed=0, step=0)
    assert is_parallel(drafter)
    steps = list(unroll(drafter, batch, drafter.max_steps or 0, anchors=anchors))
    first = drafter.first_everywhere
    counts = rows_by_step(batch.loss_mask, batch.document, len(steps), anchors, first_everywhere=first)
    assert counts.tolist() == [int(step.counted.sum()) for step in steps]
    assert counts[0] > counts[-1] > 0, "the test needs broken blocks"
    for step in steps[1:]:
        assert step.anchor is not None
        for row, place in step.counted.nonzero().tolist():
            t = int(step.anchor[row, place])
            tokens = slice(t + 1, t + 3 + step.index)
            assert batch.loss_mask[row, tokens].all()
            assert (batch.document[row, tokens] == batch.document[row, t]).all()
        assert torch.equal(
            step.over(torch.ones(int(step.counted.sum())), 28).sum(), step.counted.sum().float()
        )


@pytest.mark.parametrize("kind", KINDS)
def test_some_anchors_give_what_all_of_them_give_there(kind: str, target: tuple[Path, HFTarget]) -> None:
    drafter, batch = make_drafter(kind, *target), batch_of(target[1])
    anchors = draw_anchors(batch.loss_mask, batch.document, [0, 1], 5, seed=2, step=1)
    with torch.no_grad():
        some = list(unroll(drafter, batch, drafter.max_steps or 0, anchors=anchors))
        every = list(unroll(drafter, batch, drafter.max_steps or 0))
    for ours, theirs in zip(some[1:], every[1:]):
        assert ours.anchor is not None
        wanted = theirs.g.gather(1, ours.anchor.clamp(min=0)[..., None].expand_as(ours.g))
        torch.testing.assert_close(ours.g[ours.counted], wanted[ours.counted], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_the_same_however_a_batch_is_divided(kind, target):
    drafter, batch = make_drafter(kind, *target).train(), batch_of(target[1])
    step = TrainStep(drafter, torch.nn.ModuleDict(), target[1].head_weight, TTTConfig(decay=0.8))
    steps, rows = drafter.max_steps, [3, 9]

    def anchors(part: CapturedBatch, numbers: list[int]) -> torch.Tensor:
        return draw_anchors(part.loss_mask, part.document, numbers, 5, seed=0, step=2)

    counts = rows_by_step(
        batch.loss_mask,
        batch.document,
        steps,
        anchors(batch, rows),
        first_everywhere=drafter.first_everywhere,
    )
    whole, figures, _ = step(batch, steps, counts, None, anchors(batch, rows))
    whole.backward()
    assert [int(one.rows) for one in figures] == counts.int().tolist()
    gradients = {name: p.grad.clone() for name, p in drafter.named_parameters() if p.grad is not None}
    assert gradients.keys() == dict(drafter.named_parameters()).keys()
    drafter.zero_grad()
    total = 0.0
    for row, number in enumerate(rows):
        part = CapturedBatch(*(value[row : row + 1] for value in list(vars(batch).values())[:6]))
        loss, _, _ = step(part, steps, counts, None, anchors(part, [number]))
        loss.backward()
        total += float(loss.detach())
    assert total == pytest.approx(float(whole), rel=1e-5)
    for name, parameter in drafter.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-5, msg=name)
