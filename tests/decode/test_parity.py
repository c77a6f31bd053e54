"""Training's metrics predict what the decoder accepts; tests/contracts/test_drafters.py compares their logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.decode.drafting import eagle
from tests.train.ttt_reference import Document, capture, documents, pack
from tests.worlds import tiny_drafter, ttt_loss
from vocabforge.decode.engine import Decoder
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.heads.registry import FullHead, StaticHead
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch


def whole(target: HFTarget, texts: list[list[int]], length: int) -> CapturedBatch:
    """Texts in rows of one each, all of whose tokens count."""
    return capture(target, pack([[Document(text, [1] * len(text))] for text in texts], length))


def chain_course(hits: torch.Tensor, start: int, end: int) -> list[int]:
    """Tokens that each cycle of a chain drafter commits on a text that the target produced greedily.

    A cycle rooted at row t accepts its leading hits, ``hits[k, t]`` of step k, and commits one token more.
    """
    course, row = [], start
    while row < end:
        accepted = 0
        while accepted < len(hits) and hits[accepted, row]:
            accepted += 1
        course.append(accepted + 1)
        row += accepted + 1
    return course


def train_on_own_text(target: HFTarget, drafter, texts: list[list[int]], steps: int = 110) -> None:
    batch = whole(target, texts, 96)
    drafter.train()
    optimizer = torch.optim.Adam(drafter.parameters(), lr=5e-3)
    for _ in range(steps):
        loss, _ = ttt_loss(drafter, target, batch, steps=4, decay=0.9)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drafter.eval()


@pytest.mark.parametrize("restricted", [pytest.param(False, marks=pytest.mark.proof), True])
def test_accepted_length_predicted_by_training_metrics_is_the_decoders(tiny_folder, restricted: bool) -> None:
    """On the target's own greedy text the metrics walk the decoder's course, cycle by cycle."""
    torch.manual_seed(0)
    target, lean = HFTarget.load(tiny_folder), load_target(tiny_folder)
    plain = Decoder(lean, context=200)
    prompts = [document.ids for document in documents(8, [6] * 5)]
    texts = [p + plain.generate(p, max_new_tokens=60, stop_ids=()).token_ids for p in prompts]
    used = sorted({token for text in texts for token in text})
    ids = torch.tensor(used[: len(used) * 2 // 3]) if restricted else None
    drafter = tiny_drafter(target, own_head=None if ids is None else len(ids), target_ids=ids)
    train_on_own_text(target, drafter, texts)
    head = FullHead(drafter.head_weight) if ids is None else StaticHead(drafter.head_weight, ids)
    proposer = eagle(drafter, head, TreeSettings(topk=1, depth=4, total_nodes=6), 256)
    decoder = Decoder(lean, proposer, context=200)
    predicted, measured = [], []
    for prompt, text in zip(prompts, texts):
        batch = whole(target, [text], len(text))
        with torch.no_grad():
            figures = ttt_loss(drafter, target, batch, steps=5, decay=1.0)[1]
            hits = torch.stack([step.hits[0] for step in figures])
        # Rows near the text's end lack teachers: compare the cycles before them.
        end = len(text) - 7
        course = chain_course(hits, len(prompt) - 1, end)
        predicted += course
        result = decoder.generate(prompt, max_new_tokens=60, stop_ids=())
        assert result.token_ids == text[len(prompt) :], "speculative output differs from plain greedy"
        measured += result.accept_lengths[: len(course)]
    assert np.mean(predicted) > 1.3, "the drafter must have learnt something for this to mean anything"
    assert abs(np.mean(predicted) / np.mean(measured) - 1) <= 0.02
    assert predicted == measured
