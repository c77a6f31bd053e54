"""The formulas of docs/speculation-theory.md: the right ones by enumeration, and how the usual ones err."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode import theory_formulas as theory

shares = st.integers(1, 11).map(lambda n: F(n, 12))
chains = st.lists(shares, min_size=1, max_size=6)


def by_enumeration(conditional: Sequence[F]) -> F:
    """Expected committed tokens from all outcomes of every position's decision."""
    total = F(0)
    for outcome in itertools.product([True, False], repeat=len(conditional)):
        weight = F(1)
        for happens, p in zip(outcome, conditional):
            weight *= p if happens else 1 - p
        length = next((j for j, happens in enumerate(outcome) if not happens), len(conditional))
        total += weight * (length + 1)
    return total


@settings(max_examples=60, deadline=None)
@given(chains)
def test_expected_tokens_is_what_enumeration_gives(conditional: list[F]) -> None:
    assert theory.expected_tokens(conditional) == by_enumeration(conditional)
    lengths = theory.expected_by_length(conditional)
    assert lengths == [theory.expected_tokens(conditional[:n]) for n in range(len(conditional) + 1)]


def test_the_usual_formula_is_the_case_of_equal_positions() -> None:
    for a in (F(0), F(1, 3), F(4, 5)):
        assert theory.expected_tokens_alike(a, 4) == (1 - a**5) / (1 - a) == theory.expected_tokens([a] * 4)
    assert theory.expected_tokens_alike(1, 4) == 5  # where the quotient has no value


def plug_in(conditional: Sequence[F]) -> F:
    return theory.expected_tokens_alike(theory.pooled_acceptance(conditional), len(conditional))


@settings(max_examples=100, deadline=None)
@given(chains)
def test_which_way_the_pooled_acceptance_errs(conditional: list[F]) -> None:
    """Too high where acceptance rises with the position, too low where it falls."""
    rising, falling = sorted(conditional), sorted(conditional, reverse=True)
    assert plug_in(rising) >= theory.expected_tokens(rising)
    assert plug_in(falling) <= theory.expected_tokens(falling)
    if len(set(conditional)) > 1:
        assert plug_in(rising) > theory.expected_tokens(rising)
        assert plug_in(falling) < theory.expected_tokens(falling)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(shares, st.integers(1, 4)), min_size=2, max_size=4), st.integers(2, 5))
def test_a_mixture_of_texts(texts: list[tuple[F, int]], length: int) -> None:
    """Each text has one acceptance. Their mean is too low (Jensen); seen by position acceptance rises (survivors)."""
    total = sum(weight for _, weight in texts)
    true = sum(F(w, total) * theory.expected_tokens_alike(a, length) for a, w in texts)
    mean = sum(F(w, total) * a for a, w in texts)
    moments = [sum(F(w, total) * a**j for a, w in texts) for j in range(length + 1)]
    by_position = [b / a for a, b in itertools.pairwise(moments)]
    assert by_position == sorted(by_position)
    assert theory.expected_tokens(by_position) == true
    assert theory.expected_tokens_alike(mean, length) <= true <= plug_in(by_position)
    if len({a for a, _ in texts}) > 1:
        assert theory.expected_tokens_alike(mean, length) < true < plug_in(by_position)


@settings(max_examples=60, deadline=None)
@given(chains)
def test_accepted_over_drafted_is_always_too_low(conditional: list[F]) -> None:
    length = len(conditional)
    share = (theory.expected_tokens(conditional) - 1) / length
    wrong = theory.expected_tokens_alike(share, length)
    assert wrong <= theory.expected_tokens(conditional)
    assert (wrong == theory.expected_tokens(conditional)) == (length == 1)


def test_the_figures_of_the_document() -> None:
    """An easy and a hard text, half each, 0.9 and 0.3, five drafts."""
    true = (theory.expected_tokens_alike(F(9, 10), 5) + theory.expected_tokens_alike(F(3, 10), 5)) / 2
    moments = [(F(9, 10) ** j + F(3, 10) ** j) / 2 for j in range(6)]
    by_position = [b / a for a, b in itertools.pairwise(moments)]
    assert float(true) == pytest.approx(3.056, abs=1e-3)
    assert float(theory.expected_tokens_alike(F(6, 10), 5)) == pytest.approx(2.383, abs=1e-3)
    assert float(plug_in(by_position)) == pytest.approx(3.252, abs=1e-3)
    assert float(theory.expected_tokens_alike((true - 1) / 5, 5)) == pytest.approx(1.690, abs=1e-3)


def easy_hard(stay_easy: F, stay_hard: F, length: int) -> tuple[F, F]:
    """Tokens are easy (always accepted) or hard (never), a Markov chain: (expected tokens, first acceptance).

    A cycle starts behind a committed token of some kind; the law of that kind is the chain's of cycle starts.
    """
    to_easy = {"easy": stay_easy, "hard": 1 - stay_hard}

    def cycle(start: str) -> tuple[F, F]:
        """Expected tokens, and P(the cycle's last token is easy)."""
        tokens, alive, kind = F(0), F(1), start
        for _ in range(length):
            tokens += alive  # this token is committed whatever it is
            alive, kind = alive * to_easy[kind], "easy"
        return tokens + alive, alive * to_easy[kind]  # all accepted: the target's own is of any kind

    easy, hard = cycle("easy")[1], cycle("hard")[1]
    start = hard / (1 - easy + hard)  # stationary: s = s easy + (1 - s) hard
    tokens = start * cycle("easy")[0] + (1 - start) * cycle("hard")[0]
    return tokens, start * stay_easy + (1 - start) * (1 - stay_hard)


def test_acceptance_depends_on_the_draft_length() -> None:
    """Long drafts end where it is hard, so that cycles start there; figures of one length mislead for another."""
    longs, first_long = easy_hard(F(9, 10), F(3, 10), 8)
    shorts, first_short = easy_hard(F(9, 10), F(3, 10), 1)
    share_of_easy = F(7, 10) / (F(7, 10) + F(1, 10))
    assert easy_hard(F(9, 10), F(3, 10), 0) == (
        1,
        share_of_easy,
    )  # plain decoding alone sees all positions alike
    assert first_long < first_short < share_of_easy
    assert shorts == 1 + first_short
    assert float(longs) == pytest.approx(5.362, abs=1e-3)
    assert [float(first) for first in (share_of_easy, first_short, first_long)] == pytest.approx(
        [0.875, 0.854, 0.766], abs=1e-3
    )


TREE = [0, 0, 0, 1, 1, 2, 3]


def test_a_tree_is_the_sum_over_its_nodes() -> None:
    """Against all outcomes: at each node one child or none is the accepted one."""
    acceptance = [F(1), F(1, 2), F(1, 3), F(1, 4), F(1, 2), F(2, 3), F(1, 5)]
    children = {node: [c for c in range(1, 7) if TREE[c] == node] for node in range(7)}

    def walk(node: int) -> F:
        return 1 + sum((acceptance[child] * walk(child) for child in children[node]), F(0))

    assert theory.expected_tree_tokens(TREE, acceptance) == walk(0)
    assert theory.node_reach(TREE, acceptance)[6] == F(1, 2) * F(1, 4) * F(1, 5)


laws = st.lists(st.integers(0, 4), min_size=3, max_size=4).filter(any)


def normal(weights: Sequence[F | int]) -> list[F]:
    return [F(w) / sum(map(F, weights)) for w in weights]


def accepted_by_walk(p: list[F], q: list[F], draws: Sequence[int]) -> F:
    """P(one of these drawn children is accepted), step by step as METHODS.md has it: accept, else residual."""
    total, alive = F(0), F(1)
    for token in draws:
        share = min(F(1), p[token] / q[token])
        total += alive * share
        alive *= 1 - share
        if alive == 0:
            break
        p = normal([max(a - b, F(0)) for a, b in zip(p, q)])
        q = [F(0) if v == token else w for v, w in enumerate(q)]
        if not any(q):
            break
        q = normal(q)
    return total


@settings(max_examples=60, deadline=None)
@given(laws, laws, st.integers(1, 3))
def test_drawn_children_against_every_draw(target: list[int], draft: list[int], children: int) -> None:
    size = min(len(target), len(draft))
    if not any(target[:size]) or not any(draft[:size]):
        return
    p, q = normal(target[:size]), normal(draft[:size])
    children = min(children, sum(w > 0 for w in q))
    total = F(0)
    for draws in itertools.permutations(range(size), children):
        weight, left = F(1), F(1)
        for token in draws:
            weight *= q[token] / left if left else F(0)
            left -= q[token]
        if weight:
            total += weight * accepted_by_walk(p, q, draws)
    assert theory.drawn_acceptance(p, q, children) == total
    if children == 1:
        assert total == sum(map(min, p, q))


def test_neither_fixed_nor_drawn_children_are_always_better() -> None:
    p = normal([9, 1, 0])
    sure, flat = normal([8, 1, 1]), normal([2, 1, 1])
    assert theory.point_acceptance(p, [0]) == F(9, 10)
    assert theory.drawn_acceptance(p, p, 1) == 1 > F(9, 10)
    assert theory.drawn_acceptance(p, flat, 1) == F(6, 10) < F(9, 10)
    assert theory.point_acceptance(p, [0, 1]) == 1 > theory.drawn_acceptance(p, sure, 1)
    assert theory.point_acceptance(p, [0, 0]) == F(9, 10)  # a duplicate adds nothing


def test_the_step_cost_that_forgets_verification() -> None:
    """Leviathan's factor takes the target's pass over 6 tokens for one of 1: here it turns a loss into a gain."""
    tokens = theory.expected_tokens([0.6] * 5)
    cost = theory.cycle_cost(plain=1.0, levels=5 * 0.1, verification=1.8, keeping=0.15)
    assert cost == pytest.approx(2.45)
    assert theory.speedup(tokens, cost) < 1 < tokens / (5 * 0.1 + 1)


def test_the_speedup_of_all_the_work() -> None:
    """Two prompts, 4 times and 1 times as fast: the mean of the ratios is 2.5, the work takes 1.6 times less."""
    assert theory.overall_speedup([4.0, 4.0], [1.0, 4.0]) == pytest.approx(1.6)


@settings(max_examples=100, deadline=None)
@given(chains, st.integers(1, 12), st.lists(st.integers(0, 6), min_size=6, max_size=6))
def test_the_stopping_rule(conditional: list[F], plain: int, steps: list[int]) -> None:
    """With steps that do not get cheaper, the first level that does not pay ends the search."""
    extra = sorted(F(step, 12) for step in steps)[: len(conditional)]
    seconds = list(itertools.accumulate(extra, initial=F(plain, 12)))
    tokens, reach = theory.expected_by_length(conditional), theory.reach(conditional)
    length = 0
    while length < len(conditional) and theory.level_pays(
        reach[length], extra[length], tokens[length] / seconds[length]
    ):
        length += 1
    rates = [a / b for a, b in zip(tokens, seconds)]
    assert rates[length] == max(rates)
    assert theory.best_length(conditional, seconds) == length


def test_a_start_up_cost_breaks_the_stopping_rule() -> None:
    """A drafter whose first level costs much more: the first level does not pay, four do."""
    conditional, seconds = [0.9] * 4, [1.0, 2.0, 2.1, 2.2, 2.3]
    assert not theory.level_pays(0.9, 1.0, 1.0)
    assert theory.best_length(conditional, seconds) == 4


def law_of(conditional: Sequence[F]) -> list[F]:
    alive = [F(1), *theory.reach(conditional), F(0)]
    return [a - b for a, b in itertools.pairwise(alive)]


def mean_of(law: Sequence[F]) -> F:
    return sum((length * p for length, p in enumerate(law, 1)), F(0))


def runs(law: Sequence[F], tokens: int) -> list[tuple[F, list[int]]]:
    """All sequences of cycle lengths until the limit, with their probabilities."""
    done, open_ = [], [(F(1), [])]
    while open_:
        weight, lengths = open_.pop()
        for length, p in enumerate(law, 1):
            if p:
                one = (weight * p, [*lengths, length])
                (done if sum(one[1]) >= tokens else open_).append(one)
    return done


@pytest.mark.parametrize("tokens", [1, 2, 5, 7])
def test_limits_bias_the_mean_length(tokens: int) -> None:
    """Uncut lengths over cycles give E[L] exactly (Wald); delivered tokens over cycles do not."""
    law = law_of([F(4, 5), F(1, 2), F(1, 3)])
    found = runs(law, tokens)
    assert sum(weight for weight, _ in found) == 1
    cycles = sum(weight * len(lengths) for weight, lengths in found)
    uncut = sum(weight * sum(lengths) for weight, lengths in found)
    assert theory.expected_cycles(law, tokens) == cycles
    assert uncut / cycles == mean_of(law)
    assert tokens / cycles < mean_of(law)
    per_request = sum(weight * F(sum(lengths), len(lengths)) for weight, lengths in found)
    assert tokens == 1 or per_request != mean_of(law)  # a mean over requests of their means is biased too


def test_the_overshoot_of_a_far_limit() -> None:
    law = law_of([F(4, 5), F(1, 2), F(1, 3)])
    tokens = 60
    overshoot = theory.expected_cycles(law, tokens) * mean_of(law) - tokens
    assert float(overshoot) == pytest.approx(float(theory.limiting_overshoot(law)), abs=1e-6)
