"""Draft heads in static shapes: traced without data, replayed on other data, compared with the plain form."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tests.models.head_cases import HIDDEN, OPTIONS, VOCAB, Case, make_case, make_context, plain_topk
from vocabforge.models.heads import on_ops as head_ops
from vocabforge.models.heads.interface import PreparesSteps
from vocabforge.models.heads.registry import HEADS, DraftState, FullHead, HeadOptions, StaticHead
from vocabforge.models.heads.router import first_clusters, most_clusters, ranked_clusters
from vocabforge.models.heads.served import dense_logits
from vocabforge.ops.ordering import topk_lowest_id

REDUCED = torch.arange(1, VOCAB, 3)
# (kind, what differs from head_cases.OPTIONS)
FORMS = {kind: (kind, {}) for kind in HEADS} | {
    "ranker-shared": ("ranker", {"rows": "shared"}),
    "router-own": ("router", {"rows": "own"}),
}
proof = pytest.mark.proof
# requests, rows of each
SHAPES = [(1, 1), (1, 10), (2, 1), (2, 10)]
TRACED = [(2, 10), *(pytest.param(*shape, marks=proof) for shape in SHAPES[:3])]  # tracing takes long


def make(form: str, *, requests: int, each: int, ops: bool | None, seed: int = 0, **how) -> Case:
    kind, changes = FORMS[form]
    options = dataclasses.replace(OPTIONS.get(kind, HeadOptions()), **changes, ops=ops)
    return make_case(kind, options=options, rows=requests * each, requests=requests, seed=seed, **how)


def traced(case: Case, k: int):
    """``topk``, or what servers are given if ``k`` is 0, as a graph of its tensors, traced without data."""
    state = case.state

    def ask(hidden, tokens, previous, context):
        given = DraftState(state.step, tokens, previous, state.requests, context)
        return case.head.topk(hidden, k, given) if k else dense_logits(case.head, hidden, given, VOCAB)

    inputs = (case.hidden, state.tokens, state.previous, state.context)
    graph = make_fx(ask, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    for node in graph.graph.nodes:
        found = node.meta.get("val")
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            sizes = tensor.shape if isinstance(tensor, torch.Tensor) else ()
            assert all(isinstance(size, int) for size in sizes), f"{node.target} has a shape of {sizes}"
    return graph


def other_data(case: Case, seed: int) -> tuple[torch.Tensor, DraftState]:
    stream = torch.Generator().manual_seed(seed)
    rows, state = len(case.hidden), case.state
    return torch.randn(rows, HIDDEN, generator=stream), DraftState(
        state.step,
        torch.randint(0, VOCAB, (rows,), generator=stream),
        torch.randn(rows, HIDDEN, generator=stream),
        state.requests,
        make_context(state.requests, seed=seed),
    )


def same(ours, theirs) -> None:
    assert torch.equal(ours[1], theirs[1])
    assert (ours[0].dtype, ours[1].dtype) == (torch.float32, torch.int64)
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=2e-5)


def check(case: Case, plain: Case, k: int) -> None:
    """The traced graph on data that it was not traced with, against the plain form."""
    graph = traced(case, k)
    answers = []
    for seed in (11, 12):
        hidden, state = other_data(case, seed)
        answers.append(graph(hidden, state.tokens, state.previous, state.context))
        same(answers[-1], plain.head.topk(hidden, k, state))
    assert not torch.equal(answers[0][1], answers[1][1]), "the test needs data that differ"


@pytest.mark.parametrize(("requests", "each"), TRACED)
@pytest.mark.parametrize("form", FORMS)
def test_a_traced_head_answers_as_the_plain_one(form: str, requests: int, each: int) -> None:
    how = {"requests": requests, "each": each, "step": 1}
    case, plain = (make(form, ops=ops, **how) for ops in (True, False))
    assert case.head.static_shapes
    check(case, plain, 5)


@pytest.mark.parametrize(("requests", "each"), SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_a_head_on_the_ops_answers_as_the_plain_one(form: str, requests: int, each: int) -> None:
    how = {"requests": requests, "each": each, "step": 2}
    case, plain = (make(form, ops=ops, **how) for ops in (True, False))
    for seed in (13, 14):
        hidden, state = other_data(case, seed)
        same(case.head.topk(hidden, 5, state), plain.head.topk(hidden, 5, state))


@pytest.mark.parametrize("requests", [3, 70])  # more rows than the ops take at once
@pytest.mark.parametrize("ids", [None, REDUCED], ids=["whole", "reduced"])
@pytest.mark.parametrize("form", ["ranker", "ranker-shared", "router", "router-own", "context"])
def test_servers_get_the_logits_of_the_plain_form_in_static_shapes(form: str, ids, requests: int) -> None:
    case, plain = (make(form, requests=requests, each=1, ops=ops, ids=ids) for ops in (True, False))
    graph = traced(case, 0) if requests == 3 else None
    hidden, state = other_data(case, 17)
    logits, tokens = plain.head.scores(hidden, 1, state)
    expected = torch.full((requests, VOCAB), -torch.inf)
    for row, (values, names) in enumerate(zip(logits, tokens.expand(requests, -1))):
        for value, name in zip(values.tolist(), names.tolist()):
            expected[row, name] = max(value, expected[row, name].item())  # padding has -inf
    assert 0 < int(expected.isfinite().sum(-1).max()) < VOCAB
    found = [dense_logits(case.head, hidden, state, VOCAB), dense_logits(plain.head, hidden, state, VOCAB)]
    if graph is not None:
        found.append(graph(hidden, state.tokens, state.previous, state.context))
    for one in found:
        torch.testing.assert_close(one, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("trace", [False, pytest.param(True, marks=proof)])
@pytest.mark.parametrize("form", FORMS)
def test_over_a_reduced_head_with_shortlists_that_are_widened(form: str, trace: bool) -> None:
    """More tokens than a shortlist or a core has; a router opens further clusters."""
    how = {"requests": 2, "each": 3, "ids": None if form == "full" else REDUCED}
    case, plain = (make(form, ops=ops, **how) for ops in (True, False))
    k = min(24, case.head.size)
    if trace or form == "context":
        check(case, plain, k)
    else:
        same(case.head.topk(case.hidden, k, case.state), plain.head.topk(case.hidden, k, case.state))


@pytest.mark.parametrize("form", HEADS)
def test_the_plain_form_says_whether_it_can_be_traced(form: str) -> None:
    """What drafting in one compiled pass on a CPU goes by."""
    case = make(form, requests=2, each=3, ops=None)
    assert case.head.static_shapes == (FORMS[form][0] not in ("ranker", "router"))
    if case.head.static_shapes:
        check(case, make(form, requests=2, each=3, ops=False), 5)
    else:
        with pytest.raises((AssertionError, GuardOnDataDependentSymNode)):
            traced(case, 5)


@pytest.mark.parametrize("form", FORMS)
def test_many_rows_and_many_tokens(form: str) -> None:
    """Parts of the rows that the ops take, each of whole requests; more tokens than they take: the plain form."""
    case, plain = (make(form, requests=7, each=10, ops=ops) for ops in (True, False))
    assert len(case.hidden) > head_ops.MOST_ROWS
    same(case.head.topk(case.hidden, 4, case.state), plain.head.topk(case.hidden, 4, case.state))
    k = min(head_ops.MOST_K + 3, case.head.size)
    same(case.head.topk(case.hidden, k, case.state), plain.head.topk(case.hidden, k, case.state))


def test_one_row_that_needs_more_clusters_than_its_budget() -> None:
    """The static number of tiles has room for them."""
    options = HeadOptions(budgets=(1,), ops=True)
    case = make_case("router", rows=1, options=options)
    plain = make_case("router", rows=1, options=dataclasses.replace(options, ops=False))
    for seed in range(4):
        hidden, state = other_data(case, seed)
        same(case.head.topk(hidden, 40, state), plain.head.topk(hidden, 40, state))


def test_the_most_clusters_that_a_row_can_open() -> None:
    """Against every order that scores could give."""
    sizes = [4, 0, 2, 7, 2]
    orders = torch.tensor(list(itertools.permutations(range(5))))
    scores = torch.zeros(len(orders), 5).scatter_(1, orders, torch.arange(5.0, 0, -1).expand(len(orders), -1))
    for budget, k in ((1, 1), (1, 5), (2, 9), (3, 15), (5, 1)):
        opened = first_clusters(*ranked_clusters(scores, torch.tensor(sizes)), budget, k).sum(-1)
        assert most_clusters(sizes, budget, k) == int(opened.max())


@pytest.mark.parametrize("rows", ["own", "shared"])
@pytest.mark.parametrize("ops", [True, False])
@pytest.mark.parametrize("requests", [1, 7])
def test_a_router_that_scored_its_clusters_ahead(rows: str, ops: bool, requests: int) -> None:
    options = HeadOptions(budgets=(4, 1), rows=rows, ops=ops)
    case = make_case("router", rows=70, requests=requests, options=options)
    assert isinstance(case.head, PreparesSteps)
    for some in (slice(0, 70), slice(0, 10)):
        state = dataclasses.replace(
            case.state,
            tokens=case.state.tokens[some],
            previous=case.state.previous[some],
            requests=requests if some.stop == 70 else 1,
        )
        ahead = case.head.prepare(state)
        assert (ahead.prepared is None) == (some.stop > head_ops.MOST_ROWS)
        for k in (3, 40):  # how many are needed is not known ahead
            ours = case.head.topk(case.hidden[some], k, ahead)
            theirs = case.head.topk(case.hidden[some], k, state)
            assert all(torch.equal(one, other) for one, other in zip(ours, theirs))
        assert torch.equal(
            case.head.log_probs(case.hidden[some], ahead), case.head.log_probs(case.hidden[some], state)
        )


@pytest.mark.parametrize("form", ["scheduled", "context", pytest.param("low-rank", marks=proof)])
def test_a_static_head_is_one_graph_of_a_compiled_pass(form: str) -> None:
    case = make(form, requests=2, each=3, ops=None)

    def ask(hidden, tokens, previous, context):
        return case.head.topk(hidden, 5, DraftState(1, tokens, previous, 2, context))

    torch._dynamo.reset()
    run = torch.compile(ask, backend="eager", fullgraph=True)
    with torch.inference_mode():
        for hidden, state in ((case.hidden, case.state), other_data(case, 5)):
            found = run(hidden, state.tokens, state.previous, state.context)
            same(found, case.head.topk(hidden, 5, dataclasses.replace(state, step=1)))


VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, float("-inf"), 1.0, -1.0, 1e-40, -1e-40, 3.4e38, -3.4e38]),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(-3, 3).map(float),
)


@settings(max_examples=50, deadline=None)
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
