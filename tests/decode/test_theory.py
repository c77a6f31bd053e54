"""What docs/speculation-theory.md says of the figures that VocabForge reports, by exact enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction as F

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.decode.control.estimates import expected_by_length


def by_enumeration(conditional: Sequence[F]) -> F:
    """Expected committed tokens of a chain from all outcomes of every position's decision."""
    total = F(0)
    for outcome in itertools.product([True, False], repeat=len(conditional)):
        weight = F(1)
        for happens, p in zip(outcome, conditional):
            weight *= p if happens else 1 - p
        length = next((j for j, happens in enumerate(outcome) if not happens), len(conditional))
        total += weight * (length + 1)
    return total


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 11).map(lambda n: F(n, 12)), min_size=1, max_size=6))
def test_expected_tokens_is_what_enumeration_gives(conditional: list[F]) -> None:
    lengths = expected_by_length(conditional)
    assert lengths == [by_enumeration(conditional[:n]) for n in range(len(conditional) + 1)]


def runs(distribution: Sequence[F], tokens: int) -> list[tuple[F, list[int]]]:
    """All sequences of cycle lengths until the limit, with their probabilities."""
    done, open_ = [], [(F(1), [])]
    while open_:
        weight, lengths = open_.pop()
        for length, p in enumerate(distribution, 1):
            one = (weight * p, [*lengths, length])
            (done if sum(one[1]) >= tokens else open_).append(one)
    return done


@pytest.mark.parametrize("tokens", [1, 2, 5, 7])
def test_limits_bias_the_mean_length(tokens: int) -> None:
    """Uncut lengths over cycles give E[L] exactly (Wald); delivered tokens over cycles do not."""
    distribution = [F(1, 5), F(2, 5), F(4, 15), F(2, 15)]
    mean = sum(length * p for length, p in enumerate(distribution, 1))
    found = runs(distribution, tokens)
    assert sum(weight for weight, _ in found) == 1
    cycles = sum(weight * len(lengths) for weight, lengths in found)
    assert sum(weight * sum(lengths) for weight, lengths in found) / cycles == mean
    assert tokens / cycles < mean
    per_request = sum(weight * F(sum(lengths), len(lengths)) for weight, lengths in found)
    assert tokens == 1 or per_request != mean  # a mean over requests of their means is biased too
