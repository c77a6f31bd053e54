"""The scheduled head against its definition, step by step."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.models.head_cases import RANKED, VOCAB, make_base, make_case
from vocabforge.models.heads.registry import HeadOptions, ScheduledHead, build_head

REDUCED = torch.arange(1, VOCAB, 3)
SCHEDULE = (20, 14, 9)


def first(count: int, known: set[int]) -> set[int]:
    return {token for token in RANKED[:count] if token in known}


@pytest.mark.parametrize("ids", [None, REDUCED], ids=["whole", "reduced"])
@pytest.mark.parametrize("step", [0, 1, 2, 6])
def test_a_step_sees_the_first_tokens_of_the_ranking(ids, step: int) -> None:
    """Ids without a row keep their rank: B(t) counts them."""
    case = make_case("scheduled", ids=ids, step=step)
    shortlist = sorted(first(SCHEDULE[min(step, 2)], set(case.base.target_ids.tolist())))
    dense = case.head.log_probs(case.hidden, case.state)
    assert [case.head.target_ids[row.isfinite()].tolist() for row in dense] == [shortlist] * len(dense)
    weights = torch.stack([case.base.weight[case.base.target_ids == i][0] for i in shortlist])
    expected = (case.hidden @ weights.T).log_softmax(-1)
    best, places = expected.topk(3)
    logprobs, tokens = case.head.topk(case.hidden, 3, case.state)
    assert tokens.tolist() == [[shortlist[i] for i in row] for row in places.tolist()]
    torch.testing.assert_close(logprobs, best, rtol=0, atol=1e-5)
    assert case.head.scores(case.hidden, 3, case.state)[1].tolist() == shortlist


def test_a_step_is_widened_where_it_has_fewer_than_k_tokens() -> None:
    case = make_case("scheduled", step=2)
    found = case.head.scores(case.hidden, 12, case.state)[1]
    assert found.tolist() == sorted(RANKED[:12])
    assert {i for row in case.head.topk(case.hidden, 12, case.state)[1].tolist() for i in row} == set(
        RANKED[:12]
    )


def test_without_a_schedule_it_is_the_static_head() -> None:
    base = make_base()
    scheduled = build_head("scheduled", base, None, HeadOptions(ranked=RANKED))
    ids = torch.tensor(sorted(RANKED))
    static = build_head("static", dataclasses.replace(base, weight=base.weight[ids], target_ids=ids))
    hidden = torch.randn(5, base.weight.shape[1])
    assert torch.equal(scheduled.target_ids, static.target_ids)
    for ours, theirs in zip(scheduled.topk(hidden, 7), static.topk(hidden, 7)):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)
    torch.testing.assert_close(scheduled.log_probs(hidden), static.log_probs(hidden), rtol=0, atol=1e-6)


def test_a_step_always_has_a_token() -> None:
    """Even where the first of the ranking have no row."""
    base = make_base(REDUCED)
    assert [i in REDUCED for i in RANKED[2:6]] == [False, True, True, False]
    head = ScheduledHead(base, RANKED[2:], (1, 2, 4))
    assert head.sizes == (1, 1, 2)
    assert head.topk(torch.randn(1, base.weight.shape[1]), 1)[0].tolist() == [[0.0]]
