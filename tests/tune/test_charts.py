"""The plane of cycle time and accepted length."""

from __future__ import annotations

import numpy as np
import pytest

from vocabforge.tune.report.charts import ChartPoint, contour_rates, frontier, pareto_chart


def test_the_frontier_is_what_nothing_is_quicker_and_better_than() -> None:
    random = np.random.default_rng(0)
    places = [ChartPoint(1, str(n), *map(float, random.uniform(1, 9, 2))) for n in range(60)]
    wanted = {
        one.name
        for one in places
        if not any(
            other.ms <= one.ms and other.accepted >= one.accepted and other is not one for other in places
        )
    }
    found = frontier(places)
    assert {one.name for one in found} == wanted
    assert [one.ms for one in found] == sorted(one.ms for one in found)


@pytest.mark.parametrize("rates", [[10.0, 250.0], [0.02, 0.05], [1e5, 3e5], [99.0, 99.0], [0.5]])
def test_lines_of_equal_speed_are_few_and_around_what_is_shown(rates: list[float]) -> None:
    found = contour_rates(rates)
    assert 1 <= len(found) <= 9
    assert found == sorted(found)
    assert min(found) > 0
    assert found[-1] >= max(rates) * 0.9


def test_the_chart_names_its_lines() -> None:
    svg = pareto_chart(
        "p",
        [ChartPoint(1, "a", 10.0, 3.0), ChartPoint(2, "b", 20.0, 4.0, best=True)],
        ChartPoint(0, "plain", 5.0, 1.0),
    )
    assert svg.startswith("<svg")
    assert "/s</text>" in svg
    assert "cycle, ms" in svg
