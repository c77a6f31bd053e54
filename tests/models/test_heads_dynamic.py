"""Context heads against their definition, written out row by row."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.models.head_cases import OPTIONS, RANKED, VOCAB, check_topk, make_base, make_case
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.models.heads.context import ContextHead
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


@pytest.mark.parametrize(
    ("core", "vocab", "size"), [(2048, 32000, 951), (32768, 128256, 256), (20, VOCAB, VOCAB)]
)
def test_the_default_context_keeps_all_under_three_thousand(core: int, vocab: int, size: int) -> None:
    rows = torch.empty(vocab, 1)
    assert ContextHead(HeadBase(rows, torch.arange(vocab), rows), range(core)).context_size == size


def test_mistakes_are_told() -> None:
    base = make_base()
    for kind in ("context", "scheduled"):
        with pytest.raises(UsageError, match=rf"(?s){kind} head is made over a draft vocabulary.*--vocab"):
            build_head(kind, base)
        with pytest.raises(MismatchError, match="scores no token of this draft vocabulary"):
            build_head(kind, base, None, HeadOptions(ranked=(VOCAB, VOCAB + 4)))
    for size in (0, VOCAB + 1):
        with pytest.raises(UsageError, match=rf"(?s)context.*{size} tokens.*1 to {VOCAB}"):
            build_head("context", base, None, HeadOptions(ranked=RANKED, context=size))
    with pytest.raises(UsageError, match=r"(?s)context head has no such setting.*shortlist 5"):
        build_head("context", base, None, HeadOptions(ranked=RANKED, shortlist=5))
    with pytest.raises(UsageError, match=r"(?s)static head has no such setting.*ranked 20 values"):
        build_head("static", base, None, OPTIONS["context"])
    case = make_case("context")
    for state in (None, dataclasses.replace(case.state, context=None)):
        with pytest.raises(UsageError, match="does not tell them"):
            case.head.topk(case.hidden, 1, state)
