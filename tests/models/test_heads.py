"""Draft heads: top-k order with ties, log-probabilities, target ids."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.models.heads import FullHead, StaticHead
from vocabforge.ops.ordering import topk_lowest_id

VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, float("-inf"), 1.0, -1.0, 1e-40, -1e-40, 3.4e38, -3.4e38]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(-3, 3).map(float),
)


def plain_topk(row: list[float], k: int) -> list[int]:
    """Highest first, equal values (0.0 and -0.0 are equal) by lower index."""
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_topk_order_equals_a_sort_with_ties_to_the_lower_id(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 20))
    rows = data.draw(st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=3))
    k = data.draw(st.integers(1, width))
    logits = torch.tensor(rows, dtype=torch.float32)
    before = logits.clone()
    values, indices = topk_lowest_id(logits, k)
    assert indices.tolist() == [plain_topk(row, k) for row in logits.tolist()]
    assert torch.equal(values, before.gather(-1, indices))
    assert torch.equal(logits, before), "the caller's logits were changed"


def test_topk_of_bf16_rounded_logits_full_of_ties() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 700).bfloat16().float()
    assert len(logits[0].unique()) < 600, "the test needs ties"
    _, indices = topk_lowest_id(logits, 50)
    assert indices.tolist() == [plain_topk(row, 50) for row in logits.tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_give_log_softmax_and_target_ids(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    weight, hidden = torch.randn(40, 16, dtype=dtype), torch.randn(5, 16, dtype=dtype)
    ids = torch.randperm(900)[:40].sort().values
    expected = torch.nn.functional.linear(hidden, weight).float().log_softmax(-1)
    for head, names in ((FullHead(weight), torch.arange(40)), (StaticHead(weight, ids), ids)):
        logprobs, tokens = head.topk(hidden, 7)
        assert head.size == 40
        assert logprobs.dtype == torch.float32
        assert tokens.dtype == torch.int64
        order = torch.tensor([plain_topk(row, 7) for row in expected.tolist()])
        assert torch.equal(tokens, names[order])
        torch.testing.assert_close(logprobs, expected.gather(-1, order), rtol=0, atol=2e-6)


def test_a_sure_head_never_gives_a_positive_log_probability() -> None:
    """Scores of a path must not grow: the draft tree's parent closure rests on it."""
    weight = torch.tensor([[3.0, 1.0], [-200.0, 0.1], [-300.0, 0.7]])
    hidden = torch.rand(400, 2) * 30
    logprobs, _ = FullHead(weight).topk(hidden, 3)
    assert bool((logprobs <= 0).all())
    assert bool((logprobs == 0).any()), "the test needs probabilities that round to 1"
