"""Cross-entropy with the text and D-PACE over whole unrolls, against a loop over blocks; the recipe's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import OWN_HEADS, make_drafter
from tests.train.ttt_reference import capture, documents, pack
from tests.worlds import tiny_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch
from vocabforge.train.config import MemoryConfig, TTTConfig
from vocabforge.train.step import TrainStep
from vocabforge.train.ttt import unroll

LENGTH, STEPS, DECAY = 28, 4, 0.7
CASES = [
    ("eagle3", "target"),
    ("eagle3", "reduced"),
    (OWN_HEADS, "reduced"),
    ("dflash", "own"),
    ("dspark", "reduced"),
    ("peagle", "target"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, HFTarget]:
    folder = tiny_target(tmp_path_factory.mktemp("losses"), initializer_range=0.2)
    return folder, HFTarget.load(folder)


def batch_of(target: HFTarget) -> CapturedBatch:
    first, second, third = documents(3, [17, 9, 21])
    return capture(target, pack([[first, second], [third]], LENGTH, lead=1))


def cross_entropies(drafter: Any, batch: CapturedBatch, steps: int) -> list[dict[tuple[int, int], Tensor]]:
    """-log q of the text of every counted (row, place), a dictionary a step; None where the vocabulary lacks it."""
    found = []
    for step in unroll(drafter, batch, steps):
        log_q = drafter.logits(step.g[step.counted], step.index).log_softmax(-1)
        here: dict[tuple[int, int], Any] = {}
        for each, flat in zip(log_q, step.places(LENGTH).tolist()):
            row, place = divmod(flat, LENGTH)
            column = (drafter.target_ids == batch.input_ids[row, place + 2 + step.index]).nonzero()
            here[row, place] = -each[column[0, 0]] if len(column) else None
        found.append(here)
    return found


def weight(losses: list[dict[tuple[int, int], Any]], step: int, at: tuple[int, int]) -> float:
    """D-PACE by its definition: what every later draft of the block is reached with."""
    total, product = 0.0, 1.0
    for i, of_step in enumerate(losses):
        if at not in of_step:
            continue  # 1 in the product, 0 in the sum
        q = 0.0 if of_step[at] is None else float((-of_step[at].detach()).exp())
        product *= 0.5 * q + 0.5
        total += product if i >= step else 0.0
    return total


@pytest.mark.parametrize(("weighting", "impl"), [("decay", "fused"), ("d-pace", "naive")])
@pytest.mark.parametrize(("case", "head"), CASES)
def test_cross_entropy_with_the_text_is_that_of_the_definition(case, head, weighting, impl, target):
    drafter, batch = make_drafter(case, *target, head).train(), batch_of(target[1])
    steps = drafter.max_steps or STEPS
    losses = cross_entropies(drafter, batch, steps)
    assert any(None in step.values() for step in losses) == (head == "reduced")
    expected: Any = 0.0
    for k, of_step in enumerate(losses):
        for at, loss in of_step.items():
            if loss is not None:
                w = DECAY**k if weighting == "decay" else weight(losses, k, at)
                expected = expected + w * loss / len(of_step)
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in drafter.named_parameters() if p.grad is not None}
    drafter.zero_grad()

    alone = {"token_weight": 1.0, "feature_weight": 0.0, "confidence_weight": 0.0}
    ttt = TTTConfig(decay=DECAY, weighting=weighting, loss="ce", **alone)
    memory = MemoryConfig(loss=impl, chunk_mb=1)
    step = TrainStep(drafter, torch.nn.ModuleDict(), target[1].head_weight, ttt, memory=memory)
    rows = torch.tensor([float(len(of_step)) for of_step in losses])
    total, figures, _ = step(batch, steps, rows)
    assert [int(one.rows) for one in figures] == rows.int().tolist()
    torch.testing.assert_close(total, expected.detach().reshape(total.shape), rtol=1e-5, atol=1e-6)
    total.backward()
    for name, parameter in drafter.named_parameters():
        if name in gradients:
            torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-3, atol=1e-5, msg=name)
    assert gradients
