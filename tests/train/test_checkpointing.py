"""Activation checkpointing of the unroll: the same numbers from fewer kept tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support import tiny_drafter, tiny_target
from tests.train.ttt_reference import capture, documents, pack
from vocabforge.capture.online import CapturedBatch
from vocabforge.evaluate.tensor_memory import TensorMemory
from vocabforge.models.drafter import Drafter
from vocabforge.models.target import HFTarget
from vocabforge.models.ttt_attention import TTTState
from vocabforge.train.ttt import checkpointed_step, shift_left

STEPS = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> HFTarget:
    return HFTarget.load(tiny_target(tmp_path_factory.mktemp("target")))


def run(drafter: Drafter, batch: CapturedBatch, attention: str, keep: bool) -> tuple[Tensor, TTTState]:
    """A scalar of all steps' g, and the state after the last."""
    g = drafter.fuse(batch.states(drafter.reads))
    state = TTTState(batch.document, attention)
    total = torch.zeros(())
    for k in range(STEPS):
        ids, position = shift_left(batch.input_ids, k + 1), batch.position + k
        if keep:
            g = drafter.ttt_step(ids, g, position, state)
        else:
            g = checkpointed_step(drafter, ids, g, position, state)
        total = total + (drafter.logits(g).logsumexp(-1) * (batch.document != 0)).sum() * 0.8**k
    return total, state


def batch_of(target: HFTarget, length: int) -> CapturedBatch:
    return capture(target, pack([documents(3, [length // 2, length // 3]), documents(4, [length])], length))


@pytest.mark.parametrize("attention", ["eager", "merged"])
def test_loss_and_gradients_are_the_same_bits(target: HFTarget, attention: str) -> None:
    drafter = tiny_drafter(target).train().requires_grad_(True)
    batch = batch_of(target, 40)
    results = []
    for keep in (True, False):
        drafter.zero_grad()
        total, state = run(drafter, batch, attention, keep)
        total.backward()
        assert [len(state.k), len(state.v)] == [STEPS, STEPS], "recomputing must not append again"
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


def test_autocast_holds_in_the_recomputation(target: HFTarget) -> None:
    drafter = tiny_drafter(target).train().requires_grad_(True)
    batch = batch_of(target, 40)
    results = []
    for keep in (True, False):
        drafter.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total, _ = run(drafter, batch, "merged", keep)
        total.backward()
        results.append([p.grad.clone() for p in drafter.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_less_is_kept(target: HFTarget) -> None:
    drafter = tiny_drafter(target).train().requires_grad_(True)
    batch = batch_of(target, 128)
    held = []
    for keep in (True, False):
        with TensorMemory() as memory:
            g = drafter.fuse(batch.states(drafter.reads))
            state = TTTState(batch.document, "merged")
            for k in range(STEPS):
                step = (
                    (lambda *a: drafter.ttt_step(*a)) if keep else (lambda *a: checkpointed_step(drafter, *a))
                )
                g = step(shift_left(batch.input_ids, k + 1), g, batch.position + k, state)
            held.append(memory.live)
    rows = batch.document.numel()
    inputs = STEPS * rows * 4 * (32 + 2 * 16 + 4)  # g, k and v, token ids and positions (int64)
    assert held[1] < 1.5 * inputs < 0.5 * held[0]


def test_without_gradients_it_is_the_plain_step(target: HFTarget, tmp_path: Path) -> None:
    drafter = tiny_drafter(target)
    batch = batch_of(target, 20)
    with torch.no_grad():
        assert torch.equal(run(drafter, batch, "merged", True)[0], run(drafter, batch, "merged", False)[0])
