"""Ranker, low-rank and router heads against their definitions, written out row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.models.head_cases import CLUSTERS, HIDDEN, VOCAB, check_topk, make_base, make_case, make_module
from vocabforge.core.errors import ConfigError, MismatchError, UsageError
from vocabforge.models.heads.registry import (
    HeadBase,
    HeadOptions,
    HeadSizes,
    RouterHead,
    build_head,
    exact_head,
)
from vocabforge.models.heads.router import Router, default_budgets, first_clusters, ranked_clusters
from vocabforge.models.heads.scorer import LowRankScorer, factor_head
from vocabforge.models.target.logits import IDENTITY

REDUCED = torch.arange(2, VOCAB, 4)


def ranker_candidates(case, n: int) -> list[set[int]]:
    found = []
    for h in case.hidden:
        low = case.module.down.weight @ h
        scores = {int(i): float(case.module.vocab.weight[i] @ low) for i in case.base.target_ids}
        found.append(set(sorted(scores, key=lambda i: (-scores[i], i))[:n]))
    return found


@pytest.mark.parametrize("ids", [None, REDUCED], ids=["whole", "reduced"])
@pytest.mark.parametrize("rows", ["own", "shared"])
def test_ranker(ids, rows) -> None:
    options = HeadOptions(shortlist=8, rows=rows)
    case = make_case("ranker", ids=ids, options=options)
    own = ranker_candidates(case, 8)
    union = set().union(*own)
    assert 8 < len(union) < len(case.base.target_ids), "the test needs rows that differ"
    check_topk(case, own if rows == "own" else [union] * len(own), 5)


def test_ranker_takes_k_candidates_where_its_shortlist_is_shorter() -> None:
    case = make_case("ranker", options=HeadOptions(shortlist=2))
    check_topk(case, ranker_candidates(case, 6), 6)


@pytest.mark.parametrize("ids", [None, REDUCED], ids=["whole", "reduced"])
def test_low_rank_is_the_softmax_of_its_scores(ids) -> None:
    case = make_case("low-rank", ids=ids)
    scores = case.hidden @ case.module.down.weight.T @ case.module.vocab.weight.T
    expected = scores[:, case.base.target_ids].log_softmax(-1)
    logprobs, tokens = case.head.topk(case.hidden, 4)
    best, places = expected.topk(4)
    assert torch.equal(tokens, case.base.target_ids[places])
    torch.testing.assert_close(logprobs, best, rtol=0, atol=1e-5)


def router_scores(case) -> torch.Tensor:
    """The MLP written out: RMS-normalised inputs, SiLU between layers."""
    parts = [case.base.embedding[case.state.tokens], case.state.previous]
    x = torch.cat([p / (p.pow(2).mean(-1, keepdim=True) + 1e-12).sqrt() for p in parts], dim=-1)
    for layer in case.module.layers:
        x = layer.weight @ x.T + layer.bias[:, None]
        x = (x * torch.sigmoid(x)).T
    return x @ case.module.out.weight.T + case.module.out.bias


def opened_tokens(case, budget: int, k: int) -> list[set[int]]:
    tokens = [
        {int(i) for i in case.base.target_ids if i < VOCAB - 4 and int(case.module.assignment[i]) == m}
        for m in range(CLUSTERS)
    ]
    found = []
    for scores in router_scores(case).tolist():
        order = sorted(range(CLUSTERS), key=lambda m: (-scores[m], m))
        chosen: set[int] = set()
        for place, cluster in enumerate(order):
            if place >= budget and len(chosen) >= k:
                break
            chosen |= tokens[cluster]
        found.append(chosen)
    return found


@pytest.mark.parametrize("ids", [None, REDUCED], ids=["whole", "reduced"])
@pytest.mark.parametrize("rows", ["own", "shared"])
@pytest.mark.parametrize("step", [0, 1, 5])
def test_router(ids, rows, step) -> None:
    budgets = (3, 2)
    case = make_case("router", ids=ids, step=step, options=HeadOptions(budgets=budgets, rows=rows))
    own = opened_tokens(case, budgets[min(step, 1)], 4)
    union = set().union(*own)
    check_topk(case, own if rows == "own" else [union] * len(own), 4)


def test_a_router_says_whether_its_answer_depends_on_the_step() -> None:
    for budgets, by_step in (((3, 2), True), ((3, 3), False), ((3,), False)):
        assert make_case("router", options=HeadOptions(budgets=budgets)).head.by_step == by_step


def test_by_default_the_budget_falls_from_a_quarter_of_the_clusters_to_a_sixteenth() -> None:
    assert default_budgets(1024, decaying=True) == (256, 256, 128, 85, 64)
    assert default_budgets(1024, decaying=False) == (256,)
    for clusters in range(1, 200):
        found = default_budgets(clusters, decaying=True)
        most, least = math.ceil(clusters / 4), math.ceil(math.ceil(clusters / 4) / 4)
        distribution = [max(least, most // max(step, 1)) for step in range(40)]
        assert [found[min(step, len(found) - 1)] for step in range(40)] == distribution


def test_the_default_follows_the_drafter() -> None:
    base, module = make_base(), make_module("router")
    for autoregressive in (True, False):
        head = build_head("router", replace(base, autoregressive=autoregressive), module)
        assert head.budgets == default_budgets(CLUSTERS, decaying=autoregressive)
        assert build_head("router", replace(base), module, HeadOptions(budgets=(3,))).budgets == (3,)


def test_a_router_opens_further_clusters_until_there_are_k_tokens() -> None:
    case = make_case("router", options=HeadOptions(budgets=(1,), rows="own"))
    k = 40
    own = opened_tokens(case, 1, k)
    assert all(len(tokens) >= k for tokens in own)
    assert min(len(tokens) for tokens in opened_tokens(case, 1, 1)) < k, "the test needs to widen"
    check_topk(case, own, k)


def test_padded_rows_of_the_lm_head_are_never_proposed() -> None:
    case = make_case("router", options=HeadOptions(budgets=(CLUSTERS,)))
    case.base.weight[VOCAB - 4 :] = 100.0 * case.hidden[0].sign()
    assert case.head.size == VOCAB - 4
    assert int(case.head.topk(case.hidden, case.head.size, case.state)[1].max()) == VOCAB - 5


def test_first_clusters_with_empty_clusters_and_ties() -> None:
    scores, sizes = torch.tensor([[1.0, 1.0, 0.5, 2.0]]), torch.tensor([2, 3, 4, 0])
    ranked = ranked_clusters(scores, sizes)
    assert first_clusters(*ranked, 1, 1).tolist() == [[True, False, False, True]]  # 3 is empty
    assert first_clusters(*ranked, 2, 3).tolist() == [[True, True, False, True]]
    assert first_clusters(*ranked, 4, 1).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_router_does_not_feel_the_scale_of_target_or_drafter(scale: float) -> None:
    router = make_module("router")
    embedded, previous = torch.randn(5, HIDDEN), torch.randn(5, HIDDEN)
    same = router(embedded, previous)
    torch.testing.assert_close(router(embedded * scale, previous / scale), same, rtol=0, atol=0.01)
    assert (same[0] - same[1]).abs().max() > 0.2, "the test needs rows that differ"


def test_a_fresh_router_says_the_base_rate_and_repeats_itself() -> None:
    made = [Router(16, torch.zeros(40, dtype=torch.int64), 50, width=8) for _ in range(2)]
    torch.manual_seed(5)
    made[0].init(3, 10)
    made[1].init(3, 10)
    assert all(torch.equal(a, b) for a, b in zip(made[0].parameters(), made[1].parameters()))
    rate = made[0](torch.randn(300, 16), torch.randn(300, 16)).sigmoid().mean().detach()
    assert abs(float(rate) - 0.2) < 0.05


def test_mistakes_are_told() -> None:
    base = make_base()
    narrow = HeadBase(base.weight[:, :-1], base.target_ids, base.embedding[:, :-1])
    for kind in ("ranker", "low-rank", "router"):
        with pytest.raises(MismatchError, match="does not fit the drafter"):
            build_head(kind, narrow, make_module(kind))
    with pytest.raises(MismatchError, match="does not score every token"):
        build_head("ranker", base, LowRankScorer(HIDDEN, 50, 4))
    beyond = HeadBase(base.weight[-2:], base.target_ids[-2:], base.embedding)
    with pytest.raises(MismatchError, match="in a cluster"):
        build_head("router", beyond, make_module("router"))
    with pytest.raises(UsageError, match="no such setting"):
        build_head("low-rank", base, make_module("low-rank"), HeadOptions(shortlist=5))
    with pytest.raises(UsageError, match="no such setting"):
        build_head("full", base, None, HeadOptions(rows="own"))
    with pytest.raises(UsageError, match="budget"):
        RouterHead(base, make_module("router"), (3, 0))
    with pytest.raises(
        UsageError, match=rf"(?s)number of clusters.*{CLUSTERS + 1} clusters.*at most {CLUSTERS}"
    ):
        build_head("router", base, make_module("router"), HeadOptions(budgets=(CLUSTERS + 1, 1)))
    with pytest.raises(UsageError, match=rf"(?s)larger than the vocabulary.*{VOCAB + 1}.*at most {VOCAB}"):
        build_head("ranker", base, make_module("ranker"), HeadOptions(shortlist=VOCAB + 1))
    with pytest.raises(UsageError, match="there is no draft head of this name"):
        build_head("rankr", base)
    with pytest.raises(UsageError, match="does not tell it"):
        build_head("router", base, make_module("router")).topk(torch.zeros(1, HIDDEN), 1)
    with pytest.raises(ConfigError, match="rank"):
        LowRankScorer(HIDDEN, VOCAB, HIDDEN + 1)
    with pytest.raises(ConfigError, match="clusters"):
        RouterHead.new_module(HeadSizes(HIDDEN, VOCAB))


def test_the_exact_head_of_a_drafter() -> None:
    class Fake:
        embedding = make_base().embedding
        head_weight = make_base(REDUCED).weight
        target_ids = REDUCED
        transform = IDENTITY
        heads_differ = False

    reduced = exact_head(Fake())
    assert (reduced.KIND, reduced.size) == ("static", len(REDUCED))
    Fake.head_weight, Fake.target_ids = make_base().weight, torch.arange(VOCAB)
    assert exact_head(Fake()).KIND == "full"


def decaying_head(rows: int = 120, width: int = 24) -> torch.Tensor:
    """A head whose singular values fall by halves, with a mean row far from 0."""
    torch.manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(rows, width))
    v, _ = torch.linalg.qr(torch.randn(width, width))
    return u * (10.0 * 0.5 ** torch.arange(width)) @ v.T + 5.0 * torch.randn(width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_factors_are_the_truncated_svd_of_the_centred_head(dtype) -> None:
    head = decaying_head().to(dtype)
    vocab, down = factor_head(head, 6, seed=3)
    centred = head.float() - head.float().mean(0)
    best = torch.linalg.svd(centred, full_matrices=False)
    error = (centred - vocab @ down).norm()
    torch.testing.assert_close(error, best.S[6:].norm(), rtol=1e-3, atol=0)
    torch.testing.assert_close(vocab.norm(), down.norm(), rtol=1e-4, atol=0)  # shared evenly


def test_the_start_repeats_itself_and_leaves_the_global_stream_alone() -> None:
    head = decaying_head()
    made = [LowRankScorer(24, 120, 5) for _ in range(3)]
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    made[0].init_from_head(head, 4)
    assert torch.equal(torch.rand(1), expected)
    made[1].init_from_head(head, 4)
    assert torch.equal(made[0].head_weight, made[1].head_weight)
    for scorer in made[1:]:
        scorer.init_random(7)
    assert torch.equal(made[1].down.weight, made[2].down.weight)
    assert 0.01 < float(made[1].head_weight.detach().std()) < 0.03


def test_a_head_of_fewer_rows_than_the_rank_still_has_factors() -> None:
    head = decaying_head()[:4]
    vocab, down = factor_head(head, 9, seed=0)
    assert (vocab.shape, down.shape) == ((4, 9), (9, 24))
    torch.testing.assert_close(vocab @ down, head - head.mean(0), rtol=0, atol=1e-3)
