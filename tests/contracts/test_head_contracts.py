"""What every draft head of the table promises."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.models.head_cases import (
    HIDDEN,
    OPTIONS,
    VOCAB,
    make_base,
    make_case,
    make_context,
    make_module,
    of_request,
    plain_topk,
)
from vocabforge.core.errors import MismatchError
from vocabforge.models.heads.io import HeadOwner, load_head, save_head
from vocabforge.models.heads.registry import HEADS, DraftState, HeadOptions, build_head
from vocabforge.models.target.logits import LogitTransform

KINDS = sorted(HEADS)
SUBSET = torch.arange(1, VOCAB, 3)
OWNER = HeadOwner("d" * 64, "t" * 64, "k" * 64)


def works_reduced(kind: str) -> bool:
    """Whether a kind works over a head of some of the tokens."""
    try:
        make_case(kind, ids=SUBSET)
    except MismatchError:
        return False
    return True


REDUCED = [kind for kind in KINDS if works_reduced(kind)]
over_heads = pytest.mark.parametrize(
    ("kind", "ids"),
    [pytest.param(kind, None, id=f"{kind}-whole") for kind in KINDS]
    + [pytest.param(kind, SUBSET, id=f"{kind}-reduced") for kind in REDUCED],
)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {*REDUCED}))
def test_a_kind_that_needs_every_token_says_so(kind: str) -> None:
    with pytest.raises(MismatchError) as raised:
        make_case(kind, ids=SUBSET)
    assert raised.value.got
    assert raised.value.expected


@over_heads
@pytest.mark.parametrize("k", [1, 5])
def test_topk_equals_the_dense_reference_row_by_row(kind: str, ids, k: int) -> None:
    """Each row alone, as the only one of its draft step, so that nothing is shared."""
    compared = 0
    for step in range(3):
        case = make_case(kind, ids=ids, step=step)
        dense = case.head.log_probs(case.hidden, case.state)
        assert dense.shape == (len(case.hidden), case.head.size)
        assert dense.dtype == torch.float32
        torch.testing.assert_close(dense.exp().sum(-1), torch.ones(len(dense)), rtol=0, atol=1e-5)
        for row in range(len(case.hidden)):
            one = slice(row, row + 1)
            logprobs, tokens = case.head.topk(case.hidden[one], k, case.state.part(one))
            places = plain_topk(dense[row].tolist(), k)
            if not torch.isfinite(dense[row, places]).all():
                continue  # the shortlist was widened for this k
            assert tokens.tolist() == [case.head.target_ids[places].tolist()]
            torch.testing.assert_close(logprobs[0], dense[row, places], rtol=0, atol=1e-5)
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("ops", [False, True])
@pytest.mark.parametrize(
    "kind", sorted({*KINDS} - {"low-rank"})
)  # a low-rank head learns what comes of the logits
def test_the_targets_transform_stands_before_the_softmax(kind: str, ops: bool) -> None:
    transform = LogitTransform(scale=0.8, softcap=3.0)
    options = dataclasses.replace(OPTIONS.get(kind, HeadOptions()), ops=ops)
    plain, case = make_case(kind, options=options), make_case(kind, options=options, transform=transform)
    dense = case.head.log_probs(case.hidden, case.state)
    for row in range(len(case.hidden)):
        one = slice(row, row + 1)
        asked = case.hidden[one], 5, case.state.part(one)
        (before, ids), (after, _) = plain.head.scores(*asked), case.head.scores(*asked)
        known = before.isfinite()
        assert torch.equal(after.isfinite(), known)
        torch.testing.assert_close(after[known], 3 * torch.tanh(0.8 * before[known] / 3), rtol=0, atol=1e-5)
        at = torch.searchsorted(case.head.target_ids, ids.flatten())
        inside = dense[row, at].isfinite() & known[0]
        assert inside.sum() == dense[row].isfinite().sum()
        torch.testing.assert_close(
            dense[row, at][inside], after[0][inside].log_softmax(-1), rtol=0, atol=1e-5
        )
        logprobs, tokens = case.head.topk(*asked)
        places = torch.searchsorted(case.head.target_ids, tokens[0])
        torch.testing.assert_close(logprobs[0], dense[row, places], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_logits_go_to_the_lower_id(kind: str) -> None:
    """All rows of the exact head and of the scorer are equal: small integers, whose products are exact."""
    base, module = make_base(), make_module(kind)
    base.weight.copy_(base.weight[:1].round().expand_as(base.weight))
    if module is not None:
        for parameter in module.parameters():
            parameter.zero_()
    head = build_head(kind, base, module, OPTIONS.get(kind))
    hidden = torch.randint(-3, 4, (4, base.weight.shape[1])).float()
    state = DraftState(0, torch.zeros(4, dtype=torch.int64), hidden, 1, make_context(1))
    dense = head.log_probs(hidden, state)
    expected = [head.target_ids[row.isfinite()][:3].tolist() for row in dense]
    assert head.topk(hidden, 3, state)[1].tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_weights_answer_in_fp32(kind: str) -> None:
    case = make_case(kind, dtype=torch.bfloat16)
    logprobs, _ = case.head.topk(case.hidden, 3, case.state)
    assert logprobs.dtype == torch.float32
    assert case.head.log_probs(case.hidden, case.state).dtype == torch.float32


@pytest.mark.parametrize("kind", [kind for kind in KINDS if make_case(kind).module is not None])
def test_a_trained_part_comes_back_from_the_disk(kind: str, tmp_path: Path) -> None:
    case = make_case(kind)
    assert case.module is not None
    save_head(tmp_path / "head", kind, case.module, OWNER)
    loaded = load_head(tmp_path / "head")
    assert loaded.kind == kind
    again = build_head(kind, case.base, loaded.module, OPTIONS.get(kind))
    before, after = (one.topk(case.hidden, 6, case.state) for one in (case.head, again))
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def reference_topk(logits: torch.Tensor, ids: torch.Tensor, k: int) -> list[tuple[int, float]]:
    """Of one row of scores, in plain Python: normalised, best first, ties to the lower id."""
    found = [(int(i), float(x)) for i, x in zip(ids, logits) if x > float("-inf")]
    total = float(torch.tensor([x for _, x in found], dtype=torch.float64).logsumexp(0))
    return [(i, x - total) for i, x in sorted(found, key=lambda one: (-one[1], one[0]))[:k]]


@over_heads
@pytest.mark.parametrize("k", [1, 4, 30])
@pytest.mark.parametrize("requests", [1, 3])
def test_topk_is_chosen_from_the_scores(kind: str, ids, k: int, requests: int) -> None:
    """Scores have ascending ids, each once but for padding, k of them with a chance, and topk is their best."""
    case = make_case(kind, ids=ids, rows=9, requests=requests)
    k = min(k, case.head.size)
    logits, names = case.head.scores(case.hidden, k, case.state)
    assert (logits.dtype, names.dtype) == (torch.float32, torch.int64)
    assert names.shape in (logits.shape, logits.shape[1:])
    names = names.expand(logits.shape)
    assert bool((names[:, 1:] >= names[:, :-1]).all())
    logprobs, tokens = case.head.topk(case.hidden, k, case.state)
    for row in range(9):
        alive = names[row][logits[row].isfinite()].tolist()
        assert len(set(alive)) == len(alive) >= k
        assert set(alive) <= set(case.head.target_ids.tolist())
        expected = reference_topk(logits[row], names[row], k)
        assert tokens[row].tolist() == [i for i, _ in expected]
        torch.testing.assert_close(logprobs[row], torch.tensor([x for _, x in expected]), rtol=0, atol=2e-5)


OWN_AND_SHARED = [(kind, rows) for kind in ("ranker", "router") for rows in ("own", "shared")]


@pytest.mark.parametrize(("kind", "whose"), [*((kind, None) for kind in KINDS), *OWN_AND_SHARED])
@pytest.mark.parametrize("rows", [3, 12])
def test_a_request_does_not_feel_the_others(kind: str, whose, rows: int) -> None:
    """Shared shortlists are shared among the rows of one request only."""
    options = OPTIONS.get(kind)
    if whose is not None:
        options = dataclasses.replace(options or HeadOptions(), rows=whose)
    case = make_case(kind, rows=rows, requests=3, options=options)
    logprobs, tokens = case.head.topk(case.hidden, 5, case.state)
    dense = case.head.log_probs(case.hidden, case.state)
    each = rows // 3
    for index in range(3):
        hidden, state = of_request(case, index)
        alone_logprobs, alone_tokens = case.head.topk(hidden, 5, state)
        part = slice(index * each, (index + 1) * each)
        assert torch.equal(alone_tokens, tokens[part])
        torch.testing.assert_close(alone_logprobs, logprobs[part], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(case.head.log_probs(hidden, state), dense[part], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_head_that_says_so_reads_the_step_or_the_text(kind: str) -> None:
    """``by_step`` and ``context_size`` are what proposers rely on when they leave these out."""
    case = make_case(kind, step=0)
    later = DraftState(2, case.state.tokens, case.state.previous, 1, case.state.context)
    first, second = (case.head.topk(case.hidden, 9, state)[0] for state in (case.state, later))
    if not case.head.by_step:
        assert torch.equal(first, second)
    without = DraftState(0, case.state.tokens, case.state.previous)
    if not case.head.context_size:
        assert torch.equal(case.head.topk(case.hidden, 9, without)[0], first)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_behind_by_a_call(kind: str) -> None:
    """The same question, asked after others of other sizes, has the same answer."""
    case = make_case(kind)
    before = case.head.topk(case.hidden, 4, case.state)
    with torch.inference_mode():
        case.head.scores(case.hidden, case.head.size, case.state)
    case.head.topk(torch.randn(1, HIDDEN), 40 if case.head.size > 40 else 1, case.state.part(slice(0, 1)))
    after = case.head.topk(case.hidden, 4, case.state)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
