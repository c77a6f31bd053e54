"""Draft heads in a captured CUDA graph: replayed on other data, against the same head's ops on the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from tests.models.head_cases import CLUSTERS, RANKED, make_context
from vocabforge.models.heads.interface import DraftState, HeadBase, HeadOptions, PreparesSteps
from vocabforge.models.heads.registry import HEADS, DraftHead, build_head
from vocabforge.models.heads.router import Router
from vocabforge.models.heads.scorer import LowRankScorer

VOCAB, HIDDEN, RANK = 1000, 64, 16
OPTIONS = {
    "ranker": HeadOptions(shortlist=100),
    "ranker-shared": HeadOptions(shortlist=100, rows="shared"),
    "router": HeadOptions(budgets=(3,)),
    "router-own": HeadOptions(budgets=(3,), rows="own"),
    "scheduled": HeadOptions(ranked=tuple(range(0, 900, 3)), schedule=(200, 100)),
    "context": HeadOptions(ranked=RANKED, context=25),
}
FORMS = sorted({*HEADS, *OPTIONS})
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def whole(*size: int, seed: int) -> torch.Tensor:
    """Small whole numbers: sums of their products are exact, in whatever order and dtype they are taken."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, size, generator=stream).bfloat16()


def make(form: str, device: str) -> DraftHead:
    """The same head on any device, on the ops."""
    kind = form.removesuffix("-shared").removesuffix("-own")
    base = HeadBase(whole(VOCAB, HIDDEN, seed=0), torch.arange(VOCAB), whole(VOCAB, HIDDEN, seed=1))
    base = HeadBase(base.weight.to(device), base.target_ids.to(device), base.embedding.to(device))
    options = dataclasses.replace(OPTIONS.get(form, HeadOptions()), ops=True)
    return build_head(kind, base, module_of(kind, device), options)


def module_of(kind: str, device: str) -> Any:
    if kind in ("ranker", "low-rank"):
        scorer = LowRankScorer(HIDDEN, VOCAB, RANK).bfloat16()
        scorer.load_state_dict(
            {"down.weight": whole(RANK, HIDDEN, seed=2), "vocab.weight": whole(VOCAB, RANK, seed=3)}
        )
        return scorer.requires_grad_(False).to(device)
    if kind == "router":
        assignment = torch.randint(0, CLUSTERS, (VOCAB - 7,), generator=torch.Generator().manual_seed(4))
        router = Router(
            HIDDEN, assignment, CLUSTERS, 32
        )  # in fp32, so that no two scores are rounded together
        router.init(5, 3)
        return router.requires_grad_(False).to(device)
    return None


def data(requests: int, each: int, seed: int) -> Tensors:
    rows = requests * each
    tokens = torch.randint(0, VOCAB, (rows,), generator=torch.Generator().manual_seed(seed))
    fed = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed)).bfloat16()
    return whole(rows, HIDDEN, seed=seed), tokens, fed, make_context(requests, seed=seed)


def asked(head: DraftHead, requests: int, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, tokens, previous, context = tensors
    state = DraftState(1, tokens, previous, requests, context)
    if isinstance(head, PreparesSteps):
        state = head.prepare(state)
    return head.topk(hidden, 8, state)


@pytest.mark.parametrize("form", FORMS)
def test_the_case_needs_no_rounding(form: str) -> None:
    """What the comparison between devices rests on: bf16 and fp32 give the same answers."""
    head, tensors = make(form, "cpu"), data(2, 5, 7)
    assert head.static_shapes
    first, second = (asked(head, 2, some) for some in (tensors, data(2, 5, 8)))
    assert not torch.equal(first[1], second[1])
    exact = head.log_probs(tensors[0], DraftState(1, tensors[1], tensors[2], 2, tensors[3]))
    found = exact.gather(1, torch.searchsorted(head.target_ids, first[1]))
    # Rows of these forms answer together; the reference has each alone.
    if not form.endswith("-shared") and form != "router":
        torch.testing.assert_close(first[0], found, rtol=0, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("requests", "each"), [(1, 1), (1, 10), (2, 10)])
@pytest.mark.parametrize("form", FORMS)
def test_a_captured_head_answers_as_on_the_cpu(form: str, requests: int, each: int) -> None:
    head, on_cpu = make(form, "cuda"), make(form, "cpu")
    held = tuple(tensor.cuda() for tensor in data(requests, each, 0))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(side):  # libraries and workspaces come into being
        for _ in range(2):
            asked(head, requests, held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        answer = asked(head, requests, held)
    for seed in (21, 22, 23):
        fresh = data(requests, each, seed)
        for tensor, values in zip(held, fresh):
            tensor.copy_(values)
        for tensor in answer:
            tensor.fill_(-7)
        graph.replay()
        expected = asked(on_cpu, requests, fresh)
        assert torch.equal(answer[1].cpu(), expected[1])
        torch.testing.assert_close(answer[0].cpu(), expected[0], rtol=0, atol=1e-4)
