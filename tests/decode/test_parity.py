"""The most important test: training's unroll and the decoder's drafting are the same computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.decode.drafting import advance, eagle, propose
from tests.packing import pack
from tests.worlds import tiny_drafter, ttt_loss
from vocabforge.corpus.prepared.dataset import TrainingSequence
from vocabforge.decode.engine import Decoder
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.heads.registry import FullHead, StaticHead
from vocabforge.models.lean.model import load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.train.capture.online import CapturedBatch, OnlineCapture, RowBatch
from vocabforge.train.ttt import unroll

STEPS = 7


class ScriptedHead:
    """Proposes given tokens and keeps the logits that the real head would have used."""

    context_size, by_step = 0, False

    def __init__(self, weight: torch.Tensor, script: list[int]) -> None:
        self.weight, self.script, self.size = weight, list(script), len(weight)
        self.logits: list[torch.Tensor] = []

    def topk(self, hidden: torch.Tensor, k: int, state: object = None) -> tuple[torch.Tensor, torch.Tensor]:
        assert k == 1
        self.logits.append(torch.nn.functional.linear(hidden, self.weight)[0])
        return torch.zeros(1, 1), torch.tensor([[self.script.pop(0)]])


def packed(sequences: list[list[int]], length: int) -> RowBatch:
    rows = pack([TrainingSequence(ids, [1] * len(ids)) for ids in sequences], length)
    return RowBatch(
        *(torch.from_numpy(a) for a in (rows.input_ids, rows.loss_mask, rows.document, rows.position))
    )


def capture(target: HFTarget, rows: RowBatch) -> CapturedBatch:
    return OnlineCapture(target, 0)(rows, list(range(len(rows.input_ids))))


def random_documents(seed: int, lengths: list[int], vocab: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, n).tolist() for n in lengths]


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


@pytest.mark.parametrize("restricted", [False, True])
@torch.inference_mode()
def test_unroll_equals_step_by_step_drafting_with_padding_and_packing(tiny_folder, restricted: bool) -> None:
    target, lean = HFTarget.load(tiny_folder), load_target(tiny_folder)
    ids = torch.tensor([0, 3, 5, 7, 11, 13, 20, 33, 40, 60]) if restricted else None
    drafter = tiny_drafter(target, own_head=10 if restricted else None, target_ids=ids)
    documents = random_documents(3, [23, 9, 17], target.vocab_size)
    rows = packed(documents, 40)  # two rows: packed documents and padding behind them
    assert bool((rows.document == 2).any()), "the test needs packing"
    assert bool((rows.document == 0).any()), "the test needs padding"
    batch = capture(target, rows)
    steps = list(unroll(drafter, batch, STEPS))
    compared = 0
    for document in documents:
        where = find(rows, document)
        for root in range(1, len(document) - 1):  # row of the last committed position
            horizon = min(STEPS, len(document) - root - 1)  # steps whose fed token exists
            decoded = draft_teacher_forced(lean, drafter, document, root, horizon)
            for k in range(horizon):
                trained = drafter.logits(steps[k].g)[where[0], where[1] + root]
                torch.testing.assert_close(decoded[k], trained, rtol=0, atol=1e-4)
                compared += 1
    assert compared > 200


def find(rows: RowBatch, document: list[int]) -> tuple[int, int]:
    for row, ids in enumerate(rows.input_ids.tolist()):
        for start in range(len(ids) - len(document) + 1):
            if ids[start : start + len(document)] == document:
                return row, start
    raise AssertionError("document not found in the packed rows")


def draft_teacher_forced(lean, drafter, document: list[int], root: int, steps: int) -> list[torch.Tensor]:
    """Logits of the real proposer at a chain of ``steps`` draft steps after committing rows 0..root."""
    script = [*document[root + 2 :], 0][:steps] + [0] * steps
    head = ScriptedHead(drafter.head_weight, script)
    proposer = eagle(drafter, head, TreeSettings(topk=1, depth=steps - 1, total_nodes=steps + 1), 256)
    ids = torch.tensor(document[: root + 1])
    positions = torch.arange(len(ids))
    mask = positions[None] <= positions[:, None]
    cache = lean.new_cache(64)
    features = lean.forward(
        ids[None], positions[None], cache=cache, slots=positions, mask=mask, aux_layers=proposer.aux_layers
    ).aux[0]
    following = torch.tensor(document[1 : root + 2])
    # Commit in two parts, the second padded, as the decode loop does.
    cut = max(1, root - 2)
    advance(proposer, following[:cut], features[:cut], cut)
    rest = len(ids) - cut
    if rest:
        pad = 4
        advance(
            proposer,
            torch.cat([following[cut:], torch.full((pad,), 5)]),
            torch.cat([features[cut:], features[:1].expand(pad, -1)]),
            rest,
        )
    propose(proposer, int(following[-1]))
    return head.logits


def train_on_own_text(target: HFTarget, drafter, texts: list[list[int]], steps: int = 110) -> None:
    batch = capture(target, packed(texts, 96))
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
    prompts = random_documents(8, [6] * 5, target.vocab_size)
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
        batch = capture(target, packed([text], len(text)))
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
