"""The vectorised TTT unroll and loss against explicit loops written from the method's definition."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tensor_memory import TensorMemory
from torch import Tensor

from tests.train.ttt_reference import DECAY, REDUCED, STEPS, capture, documents, pack, reference_rows
from tests.worlds import tiny_drafter, tiny_target, ttt_loss
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.drafters.interface import Drafter
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.ttt.attention import TTTState
from vocabforge.train.capture.online import CapturedBatch, RowBatch
from vocabforge.train.loss.fused import LossInputs
from vocabforge.train.loss.rows import TakenRows, take_rows
from vocabforge.train.loss.vocab import LossOptions, RowLoss, vocab_loss
from vocabforge.train.ttt import checkpointed_step, counted_rows, shift_left, unroll


@pytest.mark.parametrize(("reduced", "facts"), [(False, False), (True, False), (True, True)])
def test_loss_and_counts_equal_the_reference(target: HFTarget, reduced: bool, facts: bool) -> None:
    drafter = tiny_drafter(
        target, own_head=len(REDUCED) if reduced else None, target_ids=REDUCED if reduced else None
    )
    first, second, third = documents(2, [9, 6, 11])
    batch = capture(target, pack([[first, second], [third]], 18), facts=facts)
    with torch.no_grad(), TensorMemory() as memory:
        total, figures = ttt_loss(drafter, target, batch, steps=STEPS, decay=DECAY)
    whole = any(shape[-1:] == (target.vocab_size,) for shape in memory.shapes)
    assert whole == (not facts), "kept facts spare the logits over all tokens"
    with torch.no_grad():
        reference = [reference_rows(drafter, target, d) for d in (first, second, third)]
    expected_total = 0.0
    outside = 0
    for k in range(STEPS):
        rows = [value for document in reference for (_, step), value in document.items() if step == k]
        losses = [loss for loss, _ in rows if loss is not None]
        expected = sum(losses) / max(len(losses), 1)
        assert int(figures[k].rows) == len(rows) > 0
        assert int(figures[k].correct) == sum(hit for _, hit in rows)
        assert int(figures[k].outside) == len(rows) - len(losses)
        mean = figures[k].loss_sum / max(len(losses), 1)
        torch.testing.assert_close(mean, torch.as_tensor(expected), rtol=1e-4, atol=1e-4)
        # The divisor is the number of counted rows, which is known before the batch is divided.
        expected_total = expected_total + DECAY**k * sum(losses) / len(rows)
        outside += len(rows) - len(losses)
    torch.testing.assert_close(total, torch.as_tensor(expected_total), rtol=1e-4, atol=1e-4)
    assert (outside > 0) == reduced, "the reduced case must have rows outside the draft vocabulary"


def test_counted_rows_by_hand() -> None:
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1, 1, 0]]).bool()
    document = torch.tensor([[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]])
    # Step 0: the token fed t + 1 and the token predicted t + 2, both counted and both of row t's document.
    assert counted_rows(mask, document, 0)[0].int().tolist() == [1, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    assert counted_rows(mask, document, 1)[0].int().tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert not counted_rows(mask, document, 9).any()


@pytest.mark.parametrize("reduced", [False, True])
def test_gradients_reach_every_trained_parameter_and_nothing_of_the_target(target, reduced):
    drafter = tiny_drafter(
        target, own_head=len(REDUCED) if reduced else None, target_ids=REDUCED if reduced else None
    )
    drafter.train().requires_grad_(True)
    batch = capture(target, pack([documents(5, [20])], 20))
    for k in range(STEPS):  # every step alone must reach every parameter, through the chain of g
        drafter.zero_grad()
        step = list(unroll(drafter, batch, STEPS))[k]
        row_loss(drafter, target, take_rows([step], batch)).total.backward()
        for name, parameter in drafter.named_parameters():
            assert parameter.grad is not None, name
            assert float(parameter.grad.abs().max()) > 0, (k, name)
    assert all(p.grad is None for p in target.model.parameters())
    assert not any(
        t.requires_grad for t in (drafter.embedding, drafter.target_head, batch.features, batch.hidden)
    )
    trained = {name for name, _ in drafter.named_parameters()}
    assert ("lm_head.weight" in trained) == reduced
    assert not any("embed" in name for name in trained)


def row_loss(drafter: Eagle3Drafter, target: HFTarget, taken: TakenRows) -> RowLoss:
    """Loss of the rows taken, each with weight 1."""
    reduced = drafter.has_own_head
    inputs = LossInputs(
        drafter.read(taken.g),
        drafter.head_weight,
        taken.teacher,
        taken.teacher_row,
        target.head_weight,
        target_ids=drafter.target_ids if reduced else None,
        weight=torch.ones(len(taken.g)),
    )
    return vocab_loss(inputs, LossOptions("naive"))


def test_no_counted_row_is_a_loss_of_zero_with_a_graph(target: HFTarget) -> None:
    drafter = tiny_drafter(target).train().requires_grad_(True)
    rows = pack([documents(5, [6])], 8)
    nothing = RowBatch(rows.input_ids, torch.zeros_like(rows.loss_mask), rows.document, rows.position)
    total, figures = ttt_loss(drafter, target, capture(target, nothing), steps=2, decay=1.0)
    total.backward()
    assert float(total.detach()) == 0.0
    assert [int(f.rows) for f in figures] == [0, 0]


def test_rows_at_the_end_of_the_rotary_table_do_not_crash(tmp_path: Path) -> None:
    target = HFTarget.load(tiny_target(tmp_path / "t", max_position_embeddings=16))
    drafter = tiny_drafter(target)
    drafter.cos, drafter.sin = drafter.cos[:16], drafter.sin[:16]
    (document,) = documents(4, [16])
    batch = capture(target, pack([[document]], 16))
    with torch.no_grad():
        found = ttt_loss(drafter, target, batch, steps=STEPS, decay=DECAY)[0]
        drafter.ensure_positions(64)
        assert torch.equal(found, ttt_loss(drafter, target, batch, steps=STEPS, decay=DECAY)[0])


UNROLLED = 4


def run(drafter: Drafter, batch: CapturedBatch, attention: str, keep: bool) -> tuple[Tensor, TTTState]:
    """A scalar of all steps' g, and the state after the last."""
    g = drafter.fuse(batch.states(drafter.reads))
    state = TTTState(batch.document, attention)
    total = torch.zeros(())
    for k in range(UNROLLED):
        ids, position = shift_left(batch.input_ids, k + 1), batch.position + k
        if keep:
            g = drafter.ttt_step(ids, g, position, state)
        else:
            g = checkpointed_step(drafter, ids, g, position, state)
        total = total + (drafter.logits(g).logsumexp(-1) * (batch.document != 0)).sum() * 0.8**k
    return total, state


def batch_of(target: HFTarget, length: int) -> CapturedBatch:
    return capture(target, pack([documents(3, [length // 2, length // 3]), documents(4, [length])], length))


@pytest.mark.parametrize(("attention", "low"), [("eager", False), ("merged", False), ("merged", True)])
def test_loss_and_gradients_are_the_same_bits(target: HFTarget, attention: str, low: bool) -> None:
    drafter = tiny_drafter(target).train().requires_grad_(True)
    batch = batch_of(target, 40)
    results = []
    for keep in (True, False):
        drafter.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
            total, state = run(drafter, batch, attention, keep)
        total.backward()
        assert [len(state.k), len(state.v)] == [UNROLLED, UNROLLED], "recomputing must not append again"
        gradients = [p.grad.clone() for p in drafter.parameters()]
        assert all(g.abs().max() > 0 for g in gradients)
        results.append([total.detach(), *gradients])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_the_whole_unroll_is_the_same_in_blocks(target: HFTarget) -> None:
    drafter = tiny_drafter(target).train().requires_grad_(True)
    batch = batch_of(target, 90)
    results = []
    for attention in ("eager", "merged"):
        drafter.zero_grad()
        total, _ = run(drafter, batch, attention, True)
        total.backward()
        results.append([total.detach(), *(p.grad.clone() for p in drafter.parameters())])
    for eager, merged in zip(*results):
        torch.testing.assert_close(merged, eager, rtol=1e-4, atol=1e-5 * float(eager.abs().max()))


def test_less_is_kept(target: HFTarget) -> None:
    drafter = tiny_drafter(target).train().requires_grad_(True)
    batch = batch_of(target, 128)
    held = []
    for keep in (True, False):
        with TensorMemory() as memory:
            g = drafter.fuse(batch.states(drafter.reads))
            state = TTTState(batch.document, "merged")
            for k in range(UNROLLED):
                step = (
                    (lambda *a: drafter.ttt_step(*a)) if keep else (lambda *a: checkpointed_step(drafter, *a))
                )
                g = step(shift_left(batch.input_ids, k + 1), g, batch.position + k, state)
            held.append(memory.live)
    rows = batch.document.numel()
    inputs = UNROLLED * rows * 4 * (32 + 2 * 16 + 4)  # g, k and v, token ids and positions (int64)
    assert held[1] < 1.5 * inputs < 0.5 * held[0]
