"""Coverage curves, smallest sizes, and the figures on unseen tokens."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabforge.core.errors import UsageError
from vocabforge.vocab.subset.coverage import (
    coverage_at,
    rank_all,
    size_for_coverage,
    unseen_mass,
    unseen_share,
)
from vocabforge.vocab.subset.subset import make_subset


@st.composite
def cases(draw):
    counts = np.array(draw(st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(any)), dtype=np.int64)
    forced = draw(st.sets(st.integers(0, len(counts) - 1), max_size=4))
    share = draw(st.one_of(st.floats(0.001, 1.0), st.sampled_from([0.5, 0.9, 0.95, 1.0])))
    return counts, forced, share


@given(cases())
def test_the_curve(case):
    counts, forced, _ = case
    ranked = rank_all(counts, forced)
    sizes = list(range(1, len(counts) + 1))
    curve = coverage_at(ranked, counts, sizes)
    assert curve == sorted(curve)
    assert curve[-1] == 1.0
    for size in sizes:
        if size >= max(1, len(forced)):
            subset = make_subset(counts, size, forced, fingerprint="f", fill="lowest-id")
            assert subset.coverage == curve[size - 1]


@given(cases())
def test_the_size_is_the_smallest(case):
    counts, forced, share = case
    size = size_for_coverage(counts, share, forced)
    ranked = rank_all(counts, forced)
    inside = [int(counts[ranked[:r]].sum()) for r in range(len(counts) + 1)]
    needed = Fraction(repr(share)) * inside[-1]  # whole numbers decide, not their floating-point quotient
    assert inside[size] >= needed
    assert size == max(1, len(forced)) or inside[size - 1] < needed
    assert set(forced) <= set(ranked[:size].tolist())


def test_the_share_is_decimal():
    """0.9 of 10 tokens is 9 tokens, though the binary 0.9 is a little more than nine tenths."""
    counts = np.array([9, 1], dtype=np.int64)
    assert size_for_coverage(counts, 0.9) == 1
    assert size_for_coverage(np.array([7, 2, 1]), 0.7) == 1
    assert size_for_coverage(np.array([7, 2, 1]), 0.7000001) == 2


def test_all_seen_ids_and_forced_ones():
    counts = np.array([0, 5, 0, 1, 0])
    assert size_for_coverage(counts, 1.0) == 2
    assert size_for_coverage(counts, 1.0, [4]) == 3
    assert size_for_coverage(counts, 0.01, [1, 2, 4]) == 3


@pytest.mark.parametrize("share", [0.0, -0.1, 1.2, float("nan")])
def test_impossible_shares(share):
    with pytest.raises(UsageError, match="not a share of the tokens"):
        size_for_coverage(np.array([1, 2]), share)


def test_unseen_mass_predicts_held_out_text():
    """Good-Turing on a sample of a long-tailed distribution, against what a second sample really holds."""
    random = np.random.default_rng(0)
    distribution = 1 / np.arange(1, 5001) ** 1.1
    distribution /= distribution.sum()
    first, second = (
        np.bincount(random.choice(5000, 20000, p=distribution), minlength=5000) for _ in range(2)
    )
    assert unseen_mass(first) == np.count_nonzero(first == 1) / 20000
    assert unseen_mass(first) == pytest.approx(unseen_share(first, second), rel=0.1)
