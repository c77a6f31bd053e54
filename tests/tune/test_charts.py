"""The plane of cycle time and accepted length."""

from __future__ import annotations

import numpy as np
import pytest

from vocabforge.tune.report.page import contour_rates, frontier


def test_the_frontier_is_what_nothing_is_quicker_and_better_than() -> None:
    random = np.random.default_rng(0)
    points = [(float(ms), float(length)) for ms, length in random.uniform(1, 9, (60, 2))]
    wanted = {
        (ms, length)
        for ms, length in points
        if not any(a <= ms and b >= length and (a, b) != (ms, length) for a, b in points)
    }
    assert frontier(points) == sorted(wanted)


@pytest.mark.parametrize("rates", [[10.0, 250.0], [0.02, 0.05], [1e5, 3e5], [99.0, 99.0], [0.5]])
def test_lines_of_equal_speed_are_few_and_around_what_is_shown(rates: list[float]) -> None:
    found = contour_rates(rates)
    assert 1 <= len(found) <= 9
    assert found == sorted(found)
    assert min(found) > 0
    assert found[-1] >= max(rates) * 0.9
