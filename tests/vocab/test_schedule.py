"""Schedules of PA-FR."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabforge.core.errors import UsageError
from vocabforge.vocab.subset.schedule import LAWS, schedule_sizes


@given(st.sampled_from(sorted(LAWS)), st.integers(1, 200_000), st.data())
def test_bounds_and_fall(law, k_max, data):
    k_min = k_max if law == "constant" else data.draw(st.integers(1, k_max))
    steps = data.draw(st.integers(1, 12))
    sizes = schedule_sizes(law, k_max, k_min, steps)
    assert len(sizes) == steps
    assert sizes[:2] == (k_max, k_max)[:steps]
    assert all(k_min <= size <= k_max for size in sizes)
    assert list(sizes) == sorted(sizes, reverse=True)
    if law in ("linear", "geometric") and steps > 2:
        assert sizes[-1] == k_min


def test_the_laws_by_hand():
    assert schedule_sizes("decay", 100, 20, 8) == (100, 100, 50, 33, 25, 20, 20, 20)
    assert schedule_sizes("linear", 100, 20, 6) == (100, 100, 80, 60, 40, 20)
    assert schedule_sizes("geometric", 160, 10, 6) == (160, 160, 80, 40, 20, 10)
    assert schedule_sizes("constant", 9, None, 3) == (9, 9, 9)


@pytest.mark.parametrize(
    ("law", "k_max", "k_min", "steps", "message"),
    [
        ("decay", 10, 11, 7, "not in order"),
        ("decay", 10, 0, 7, "not in order"),
        ("decay", 10, None, 7, "--k-min"),
        ("decay", 10, 5, 0, "at least one draft step"),
        ("constant", 10, 5, 7, "one size only"),
        ("decai", 10, 5, 7, "did you mean decay"),
    ],
)
def test_mistakes(law, k_max, k_min, steps, message):
    with pytest.raises(UsageError, match=message):
        schedule_sizes(law, k_max, k_min, steps)
