"""The formulas of docs/speculation-theory.md: the right ones by enumeration, and how the usual ones err."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction as F
from itertools import accumulate
from operator import mul
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.decode.control.estimates import expected_by_length

# float or Fraction: exact in, exact out
Number = Any


def reach(conditional: Sequence[Number]) -> list[Number]:
    """P(at least j draft tokens are accepted), j = 1 .. g: the products of conditional acceptances.

    Args:
        conditional: (g,) P(position j is accepted | the ones before it are).
    """
    return list(accumulate(conditional, mul))


def expected_tokens(conditional: Sequence[Number]) -> Number:
    """Expected committed tokens of a chain's cycle, the target's own token included: ``1 + sum_j reach_j``."""
    return expected_by_length(conditional)[-1]


def expected_tokens_alike(acceptance: Number, length: int) -> Number:
    """The same where every position has one acceptance: Leviathan et al. 2023, equation 1, at 1 too."""
    return sum(acceptance**j for j in range(length + 1))


def pooled_acceptance(conditional: Sequence[Number]) -> Number:
    """Accepted / tested draft tokens of many cycles; a token behind a rejected one is not tested."""
    alive = [1, *reach(conditional)]
    return sum(alive[1:]) / sum(alive[:-1])


def drawn_acceptance(target: Sequence[Number], draft: Sequence[Number], children: int) -> Number:
    """P(one of k children is accepted), verification B: drawn from ``draft`` without replacement.

    By enumeration of the draws, ``V**(k - 1)`` of them; for one child it is ``sum_v min(p, q)``.

    Args:
        target, draft: (V,) distributions of sum 1.
        children: k; drawing ends early where nothing is left to draw.
    """
    if children == 0 or not any(draft):
        return 0
    first = sum(map(min, target, draft))
    if first == 1:
        return first
    residual = [max(p - q, 0) / (1 - first) for p, q in zip(target, draft)]
    later = 0 * first
    for drawn, q in enumerate(draft):
        refused = max(q - target[drawn], 0)  # P(drawn and refused)
        if refused > 0:
            rest = [0 * q if v == drawn else w for v, w in enumerate(draft)]
            left = sum(rest)
            if left > 0:
                rest = [w / left for w in rest]
                later += refused * drawn_acceptance(residual, rest, children - 1)
    return first + later


def expected_cycles(distribution: Sequence[Number], tokens: int) -> Number:
    """Expected cycles until at least ``tokens`` tokens are committed, cycles being independent.

    Args:
        distribution: (g + 1,) P(a cycle commits 1 .. g + 1 tokens).
        tokens: the length limit.
    """
    visits: list[Number] = [1]  # P(some cycle starts with exactly this many tokens committed)
    for place in range(1, tokens):
        visits.append(
            sum(distribution[j - 1] * visits[place - j] for j in range(1, min(len(distribution), place) + 1))
        )
    return sum(visits[:tokens])


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
    assert expected_tokens(conditional) == by_enumeration(conditional)
    lengths = expected_by_length(conditional)
    assert lengths == [expected_tokens(conditional[:n]) for n in range(len(conditional) + 1)]


def plug_in(conditional: Sequence[F]) -> F:
    return expected_tokens_alike(pooled_acceptance(conditional), len(conditional))


@settings(max_examples=50, deadline=None)
@given(chains)
def test_which_way_the_pooled_acceptance_errs(conditional: list[F]) -> None:
    """Too high where acceptance rises with the position, too low where it falls."""
    rising, falling = sorted(conditional), sorted(conditional, reverse=True)
    assert plug_in(rising) >= expected_tokens(rising)
    assert plug_in(falling) <= expected_tokens(falling)
    if len(set(conditional)) > 1:
        assert plug_in(rising) > expected_tokens(rising)
        assert plug_in(falling) < expected_tokens(falling)


distributions = st.lists(st.integers(0, 4), min_size=3, max_size=4).filter(any)


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
@given(distributions, distributions, st.integers(1, 3))
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
    assert drawn_acceptance(p, q, children) == total
    if children == 1:
        assert total == sum(map(min, p, q))


def distribution_of(conditional: Sequence[F]) -> list[F]:
    alive = [F(1), *reach(conditional), F(0)]
    return [a - b for a, b in itertools.pairwise(alive)]


def mean_of(distribution: Sequence[F]) -> F:
    return sum((length * p for length, p in enumerate(distribution, 1)), F(0))


def runs(distribution: Sequence[F], tokens: int) -> list[tuple[F, list[int]]]:
    """All sequences of cycle lengths until the limit, with their probabilities."""
    done, open_ = [], [(F(1), [])]
    while open_:
        weight, lengths = open_.pop()
        for length, p in enumerate(distribution, 1):
            if p:
                one = (weight * p, [*lengths, length])
                (done if sum(one[1]) >= tokens else open_).append(one)
    return done


@pytest.mark.parametrize("tokens", [1, 2, 5, 7])
def test_limits_bias_the_mean_length(tokens: int) -> None:
    """Uncut lengths over cycles give E[L] exactly (Wald); delivered tokens over cycles do not."""
    distribution = distribution_of([F(4, 5), F(1, 2), F(1, 3)])
    found = runs(distribution, tokens)
    assert sum(weight for weight, _ in found) == 1
    cycles = sum(weight * len(lengths) for weight, lengths in found)
    uncut = sum(weight * sum(lengths) for weight, lengths in found)
    assert expected_cycles(distribution, tokens) == cycles
    assert uncut / cycles == mean_of(distribution)
    assert tokens / cycles < mean_of(distribution)
    per_request = sum(weight * F(sum(lengths), len(lengths)) for weight, lengths in found)
    assert tokens == 1 or per_request != mean_of(
        distribution
    )  # a mean over requests of their means is biased too
