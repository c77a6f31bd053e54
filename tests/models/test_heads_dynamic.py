"""Context and hybrid heads against their definitions, written out row by row."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.models.head_cases import OPTIONS, RANKED, VOCAB, check_topk, make_base, make_case, make_module
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.models.heads.core import ContextHead
from vocabforge.models.heads.registry import HeadBase, HeadOptions, build_head

REDUCED = torch.arange(1, VOCAB, 3)
CORE = set(RANKED)


def texts(case) -> list[set[int]]:
    """The request's text, for every row."""
    each = len(case.hidden) // case.state.requests
    return [{i for i in row.tolist() if i >= 0} for row in case.state.context for _ in range(each)]


@pytest.mark.parametrize("ids", [None, REDUCED], ids=["whole", "reduced"])
@pytest.mark.parametrize("requests", [1, 4])
def test_the_core_and_the_requests_own_text(ids, requests: int) -> None:
    options = HeadOptions(ranked=RANKED, context=25)
    case = make_case("context", ids=ids, rows=8, requests=requests, options=options)
    known = set(case.base.target_ids.tolist())
    found = texts(case)
    assert any(text & CORE for text in found), "the test needs tokens that are in both"
    assert any(text - known for text in found) == (ids is not None), "and tokens without a row"
    check_topk(case, [(CORE | text) & known for text in found], 5)
    assert case.head.context_size == 25
    assert case.head.core_size == len(CORE & known)


def test_ids_that_are_none_are_not_looked_up() -> None:
    case = make_case("context")
    context = torch.tensor([[-1, VOCAB, 10**6, 3, -1]])
    case = dataclasses.replace(case, state=dataclasses.replace(case.state, context=context))
    check_topk(case, [CORE | {3}] * len(case.hidden), 6)


def test_a_core_is_widened_by_the_lowest_ids_where_the_text_is_short() -> None:
    case = make_case("context")
    context = torch.full((1, 30), -1)
    case = dataclasses.replace(case, state=dataclasses.replace(case.state, context=context))
    check_topk(case, [CORE] * 7, len(CORE))
    more = [i for i in range(VOCAB) if i not in CORE][:3]
    check_topk(case, [CORE | set(more)] * 7, len(CORE) + 3)


def ranker_logs(case) -> torch.Tensor:
    """(N, VOCAB) log-probabilities of the scorer over the tokens of the base, -inf elsewhere."""
    scores = case.hidden @ case.module.down.weight.T @ case.module.vocab.weight.T
    outside = torch.ones(VOCAB, dtype=torch.bool)
    outside[case.base.target_ids] = False
    return scores.masked_fill(outside, float("-inf")).log_softmax(-1)


def best_outside(values: list[float], known: set[int], count: int) -> set[int]:
    return set(sorted(known - CORE, key=lambda i: (-values[i], i))[:count])


@pytest.mark.parametrize("ids", [None, REDUCED], ids=["whole", "reduced"])
@pytest.mark.parametrize("k", [5, 30])
def test_the_core_and_each_rows_own_tail(ids, k: int) -> None:
    case = make_case("hybrid", ids=ids, rows=8, requests=2, options=HeadOptions(ranked=RANKED, shortlist=6))
    known = set(case.base.target_ids.tolist())
    core = CORE & known
    tails = [best_outside(row, known, max(6, k - len(core))) for row in ranker_logs(case).tolist()]
    assert tails[0] != tails[1], "the test needs rows that differ"
    check_topk(case, [core | tail for tail in tails], k)


@pytest.mark.parametrize("requests", [1, 2])
def test_rows_of_a_request_may_share_a_tail(requests: int) -> None:
    """The tokens that are likeliest in any of the rows."""
    options = HeadOptions(ranked=RANKED, shortlist=6, rows="shared")
    case = make_case("hybrid", rows=8, requests=requests, options=options)
    logs = ranker_logs(case).view(requests, 8 // requests, VOCAB).amax(1).tolist()
    tails = [best_outside(row, set(range(VOCAB)), 6) for row in logs for _ in range(8 // requests)]
    check_topk(case, [CORE | tail for tail in tails], 5)
    alone = make_case("hybrid", rows=8, options=dataclasses.replace(options, rows="own"))
    torch.testing.assert_close(
        case.head.log_probs(case.hidden, case.state), alone.head.log_probs(case.hidden, case.state)
    )


@pytest.mark.parametrize(
    ("core", "vocab", "size"), [(2048, 32000, 951), (32768, 128256, 256), (20, VOCAB, VOCAB)]
)
def test_the_default_context_keeps_all_under_three_thousand(core: int, vocab: int, size: int) -> None:
    rows = torch.empty(vocab, 1)
    assert ContextHead(HeadBase(rows, torch.arange(vocab), rows), range(core)).context_size == size


def test_mistakes_are_told() -> None:
    base, scorer = make_base(), make_module("ranker")
    for kind in ("context", "hybrid", "scheduled"):
        with pytest.raises(UsageError, match=rf"(?s){kind} head is made over a draft vocabulary.*--vocab"):
            build_head(kind, base)
        module = scorer if kind == "hybrid" else None
        with pytest.raises(MismatchError, match="scores no token of this draft vocabulary"):
            build_head(kind, base, module, HeadOptions(ranked=(VOCAB, VOCAB + 4)))
    for size in (0, VOCAB + 1):
        with pytest.raises(UsageError, match=rf"(?s)context.*{size} tokens.*1 to {VOCAB}"):
            build_head("context", base, None, HeadOptions(ranked=RANKED, context=size))
    with pytest.raises(UsageError, match=r"(?s)hybrid head has no such setting.*context 5"):
        build_head("hybrid", base, scorer, HeadOptions(ranked=RANKED, context=5))
    with pytest.raises(UsageError, match=r"(?s)context head has no such setting.*shortlist 5"):
        build_head("context", base, None, HeadOptions(ranked=RANKED, shortlist=5))
    with pytest.raises(UsageError, match=r"(?s)static head has no such setting.*ranked 20 values"):
        build_head("static", base, None, OPTIONS["context"])
    with pytest.raises(UsageError, match="larger than the vocabulary"):
        build_head("hybrid", base, scorer, HeadOptions(ranked=RANKED, shortlist=VOCAB + 1))
    case = make_case("context")
    for state in (None, dataclasses.replace(case.state, context=None)):
        with pytest.raises(UsageError, match="does not tell them"):
            case.head.topk(case.hidden, 1, state)
