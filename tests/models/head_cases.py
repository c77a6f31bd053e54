"""Small draft heads of every kind, for tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vocabforge.core.registry import resolve
from vocabforge.models.heads.registry import (
    HEADS,
    DraftHead,
    DraftState,
    HeadBase,
    HeadOptions,
    HeadSizes,
    build_head,
)
from vocabforge.models.target.logits import IDENTITY, LogitTransform

VOCAB, HIDDEN, CLUSTERS = 97, 16, 9
RANKED = (40, 7, 96, 13, 61, 2, 22, 85, 70, 31, 4, 53, 10, 76, 19, 90, 1, 34, 67, 46)
# what a kind cannot do without, and shortlists that leave something out
OPTIONS = {
    "ranker": HeadOptions(shortlist=11),
    "router": HeadOptions(budgets=(4, 3, 2)),
    "scheduled": HeadOptions(ranked=RANKED, schedule=(20, 14, 9)),
    "context": HeadOptions(ranked=RANKED),
}


@dataclass(frozen=True)
class Case:
    """A head with rows to ask it about."""

    head: DraftHead
    base: HeadBase
    module: torch.nn.Module | None
    hidden: torch.Tensor
    state: DraftState


def make_base(
    ids: torch.Tensor | None = None,
    *,
    seed: int = 0,
    dtype=torch.float32,
    transform: LogitTransform = IDENTITY,
) -> HeadBase:
    stream = torch.Generator().manual_seed(seed)
    weight = torch.randn(VOCAB, HIDDEN, generator=stream).to(dtype)
    embedding = torch.randn(VOCAB, HIDDEN, generator=stream).to(dtype)
    if ids is None:
        return HeadBase(weight, torch.arange(VOCAB), embedding, transform)
    return HeadBase(weight[ids], ids, embedding, transform)


def make_module(kind: str, *, seed: int = 0, dtype=torch.float32) -> torch.nn.Module | None:
    """The trainable part of a kind with random weights; clusters leave the last ids (padding) out."""
    torch.manual_seed(seed)
    sizes = HeadSizes(
        HIDDEN,
        VOCAB - 4 if kind == "router" else VOCAB,
        rank=6,
        clusters=CLUSTERS if kind == "router" else None,
        width=12,
        depth=2,
    )
    module = resolve(HEADS, kind, "draft head").new_module(sizes)
    if module is None:
        return None
    with torch.no_grad():
        for parameter in filter(torch.Tensor.is_floating_point, module.parameters()):
            parameter.normal_(0.0, 0.7)
        if kind == "router":
            module.assignment.copy_(torch.randint(0, CLUSTERS, (VOCAB - 4,)))
    return module.to(dtype).eval().requires_grad_(False)


def make_case(
    kind: str,
    *,
    options: HeadOptions | None = None,
    ids: torch.Tensor | None = None,
    rows: int = 7,
    step: int = 1,
    seed: int = 0,
    dtype=torch.float32,
    requests: int = 1,
    transform: LogitTransform = IDENTITY,
) -> Case:
    """A head and rows of ``requests`` requests."""
    base = make_base(ids, seed=seed, dtype=dtype, transform=transform)
    module = make_module(kind, seed=seed, dtype=dtype)
    stream = torch.Generator().manual_seed(seed + 1)
    hidden = torch.randn(rows, HIDDEN, generator=stream).to(dtype)
    state = DraftState(
        step,
        torch.randint(0, VOCAB, (rows,), generator=stream),
        torch.randn(rows, HIDDEN, generator=stream).to(dtype),
        requests,
        make_context(requests, seed=seed),
    )
    head = build_head(kind, base, module, options or OPTIONS.get(kind))
    return Case(head, base, module, hidden, state)


def make_context(requests: int, *, size: int = 25, seed: int = 0) -> torch.Tensor:
    """Distinct ids of each request, some of them in the hot core, with padding between them."""
    stream = torch.Generator().manual_seed(seed + 2)
    rows = [torch.randperm(VOCAB, generator=stream)[:size] for _ in range(requests)]
    context = torch.stack(rows)
    context[torch.rand(context.shape, generator=stream) < 0.3] = -1
    return context


def plain_topk(row: list[float], k: int) -> list[int]:
    """Highest first, equal values (0.0 and -0.0 are equal) by lower index, in plain Python."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


def check_topk(case: Case, shortlists: list[set[int]], k: int) -> None:
    """Top-k of each row against a softmax over its shortlist of target ids, row by row, ties to the lower id."""
    logprobs, tokens = case.head.topk(case.hidden, k, case.state)
    for row, shortlist in enumerate(shortlists):
        exact = {int(i): float(w @ case.hidden[row]) for i, w in zip(case.base.target_ids, case.base.weight)}
        ids = sorted(shortlist, key=lambda i: (-exact[i], i))
        total = torch.tensor([exact[i] for i in ids]).logsumexp(0)
        assert tokens[row].tolist() == ids[:k]
        expected = torch.stack([exact[i] - total for i in ids[:k]])
        torch.testing.assert_close(logprobs[row], expected, rtol=0, atol=1e-4)


def of_request(case: Case, index: int) -> tuple[torch.Tensor, DraftState]:
    """The rows of one request, as if there were no other."""
    each = len(case.hidden) // case.state.requests
    rows, state = slice(index * each, (index + 1) * each), case.state
    context = None if state.context is None else state.context[index : index + 1]
    return case.hidden[rows], DraftState(state.step, state.tokens[rows], state.previous[rows], 1, context)
