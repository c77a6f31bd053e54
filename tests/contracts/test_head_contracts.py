"""What every draft head of the table promises."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.head_cases import VOCAB, make_base, make_case, make_module
from vocabforge.core.errors import MismatchError
from vocabforge.core.extension import load_attribute
from vocabforge.models.head_io import HeadOwner, load_head, save_head
from vocabforge.models.heads import HEADS, DraftState, HeadOptions, build_head

KINDS = sorted(HEADS)
SUBSET = torch.arange(1, VOCAB, 3)
OWNER = HeadOwner("d" * 64, "t" * 64, "k" * 64)


def case_or_skip(kind: str, **how):
    """A kind works over a reduced head, or says clearly that it does not."""
    try:
        return make_case(kind, **how)
    except MismatchError as error:
        said = error.got and error.expected
    assert how.get("ids") is not None, "over the whole vocabulary every kind must work"
    assert said
    pytest.skip("this kind refuses a reduced head")


def plain_topk(row: torch.Tensor, k: int) -> list[int]:
    """Highest first, equal values by lower index, in plain Python."""
    values = row.tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_is_the_classes(kind: str) -> None:
    assert kind == load_attribute(HEADS[kind]).KIND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [None, SUBSET], ids=["whole", "reduced"])
@pytest.mark.parametrize("k", [1, 5])
def test_topk_equals_the_dense_reference_row_by_row(kind: str, ids, k: int) -> None:
    """Each row alone, as the only one of its draft step, so that nothing is shared."""
    compared = 0
    for step in range(3):
        case = case_or_skip(kind, ids=ids, step=step)
        dense = case.head.log_probs(case.hidden, case.state)
        assert dense.shape == (len(case.hidden), case.head.size)
        assert dense.dtype == torch.float32
        torch.testing.assert_close(dense.exp().sum(-1), torch.ones(len(dense)), rtol=0, atol=1e-5)
        for row in range(len(case.hidden)):
            one = slice(row, row + 1)
            logprobs, tokens = case.head.topk(case.hidden[one], k, case.state.part(one))
            places = plain_topk(dense[row], k)
            if not torch.isfinite(dense[row, places]).all():
                continue  # the shortlist was widened for this k
            assert tokens.tolist() == [case.head.target_ids[places].tolist()]
            torch.testing.assert_close(logprobs[0], dense[row, places], rtol=0, atol=1e-5)
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", [None, SUBSET], ids=["whole", "reduced"])
def test_answers_are_in_order_unique_in_range_and_never_minus_infinity(kind: str, ids) -> None:
    case = case_or_skip(kind, ids=ids, rows=9)
    for k in (1, 3, case.head.size):
        logprobs, tokens = case.head.topk(case.hidden, k, case.state)
        assert logprobs.shape == tokens.shape == (9, k)
        assert (logprobs.dtype, tokens.dtype) == (torch.float32, torch.int64)
        assert all(len(set(row)) == k for row in tokens.tolist())
        assert set(tokens.flatten().tolist()) <= set(case.base.target_ids.tolist())
        assert bool((logprobs <= 0).all())
        assert bool(torch.isfinite(logprobs).all())
        assert bool((logprobs[:, 1:] <= logprobs[:, :-1]).all())


@pytest.mark.parametrize("kind", KINDS)
def test_equal_logits_go_to_the_lower_id(kind: str) -> None:
    """All rows of the exact head equal, and of the scorer: whatever is proposed must come by id."""
    base, module = make_base(), make_module(kind)
    base.weight.copy_(base.weight[:1].expand_as(base.weight))
    if module is not None:
        for parameter in module.parameters():
            parameter.zero_()
    head = build_head(kind, base, module)
    hidden = torch.randn(4, base.weight.shape[1])
    state = DraftState(0, torch.zeros(4, dtype=torch.int64), hidden)
    dense = head.log_probs(hidden, state)
    expected = [head.target_ids[row.isfinite()][:3].tolist() for row in dense]
    assert head.topk(hidden, 3, state)[1].tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_where_it_stands(kind: str) -> None:
    case = make_case(kind)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    moved = DraftState(case.state.step, case.state.tokens[order], case.state.previous[order])
    logprobs, tokens = case.head.topk(case.hidden, 4, case.state)
    moved_logprobs, moved_tokens = case.head.topk(case.hidden[order], 4, moved)
    assert torch.equal(moved_tokens, tokens[order])
    torch.testing.assert_close(moved_logprobs, logprobs[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_weights_answer_in_fp32(kind: str) -> None:
    case = make_case(kind, dtype=torch.bfloat16)
    logprobs, _ = case.head.topk(case.hidden, 3, case.state)
    assert logprobs.dtype == torch.float32
    assert case.head.log_probs(case.hidden, case.state).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_part_comes_back_from_the_disk(kind: str, tmp_path: Path) -> None:
    case = make_case(kind)
    if case.module is None:
        pytest.skip("this kind trains nothing")
    save_head(tmp_path / "head", kind, case.module, OWNER)
    loaded = load_head(tmp_path / "head")
    assert loaded.kind == kind
    again = build_head(kind, case.base, loaded.module, HeadOptions())
    before, after = (one.topk(case.hidden, 6, case.state) for one in (case.head, again))
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
