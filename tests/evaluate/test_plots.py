"""Charts: methods can be told apart, values stand where they belong, nothing odd comes out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from vocabforge.evaluate.page import SHAPES, _swatch
from vocabforge.evaluate.plots import METHOD_COLOURS, method_colour, method_dash, method_marker
from vocabforge.evaluate.report_plots import (
    Bar,
    Trace,
    _side_by_side,
    bar_rows,
    histogram_rows,
    size_points,
    stacked_rows,
    trace_lines,
)


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("text")]


def test_more_than_seven_methods_look_different() -> None:
    looks = {(method_colour(index), method_marker(index)) for index in range(METHOD_COLOURS * 7)}
    assert len(looks) == METHOD_COLOURS * 7
    dashes = {(method_colour(index), str(method_dash(index))) for index in range(METHOD_COLOURS * 4)}
    assert len(dashes) == METHOD_COLOURS * 4
    assert len({str(_swatch(index)) for index in range(METHOD_COLOURS * SHAPES)}) == METHOD_COLOURS * SHAPES


def test_bars_are_as_long_as_their_values() -> None:
    svg = bar_rows(
        "b", "tokens per second", [Bar(0, "plain", "10", 10.0, 9.0, 11.0), Bar(1, "fast", "30", 30.0)]
    )
    lengths = {}
    for colour in (0, 1):
        (path,) = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: var\(--m{colour}\)', svg)
        x = [float(value) for value in re.findall(r"[ML] ([-\d.]+) ", path)]
        lengths[colour] = max(x) - min(x)
    assert abs(lengths[1] / lengths[0] - 3) < 1e-3
    assert {"plain", "10", "fast", "30", "tokens per second"} <= set(texts(svg))
    assert "var(--ink)" in svg, "no whisker"


def test_shares_are_written_where_they_fit() -> None:
    svg = stacked_rows(
        "t", "ms", [("a", "4 ms"), ("b", "1 ms")], [(1, [3.0, 0.0]), (2, [0.9, 1.0]), (0, [0.1, 0.0])]
    )
    assert {"75%", "22%", "100%", "4 ms"} <= set(texts(svg))
    assert "2%" not in texts(svg)
    assert "0%" not in texts(svg)


def test_histograms_say_small_shares() -> None:
    counted = {"1": 1, "2": 399, "4": 600}
    svg = histogram_rows("h", "tokens", [(Bar(1, "m", "mean 3.2", 3.2), counted)])
    assert {"<1", "40", "60", "mean 3.2"} <= set(texts(svg))
    many = {str(length): 1 for length in range(1, 31)}
    assert "3" not in texts(histogram_rows("h", "tokens", [(Bar(1, "m", "", 3.2), many)]))
    assert texts(histogram_rows("h", "tokens", [(Bar(1, "m", "mean –", None), {})])) == [
        "1",
        "tokens",
        "m",
        "mean –",
    ]


def test_lines_and_points_with_values_missing() -> None:
    svg = trace_lines("r", ("run", "%"), [Trace(0, [1, 2, 3], [99.0, None, 101.0])], level=100.0)
    assert {"1", "2", "3", "run"} <= set(texts(svg))
    assert "nan" not in svg
    alone = trace_lines("r", ("run", "%"), [Trace(8, [1], [50.0])], whole=True)
    assert {"1", "100"} <= set(texts(alone))
    points = [
        Bar(1, "a", "", 40.0, 38.0, 42.0, 128_256.0),
        Bar(2, "b", "", 50.0, x=1024.0),
        Bar(3, "c", "", None, x=64.0),
    ]
    shown = texts(size_points("v", "tokens per second", points, level=30.0))
    assert {"64", "1k", "128k"} <= set(shown) | {"128k", "1k"}
    assert [tick for tick in shown if tick.endswith("k")]


def test_drafters_of_one_vocabulary_stand_side_by_side_and_a_line_joins_each() -> None:
    points = [Bar(place, "m", "", 40.0 + place, x=x) for place, x in enumerate((1024.0, 512.0, 1024.0))]
    assert _side_by_side(points) == pytest.approx([1024 / 1.07**0.5, 512, 1024 * 1.07**0.5])
    apart = size_points("v", "y", points)
    joined = size_points("v", "y", points, lines=[[0, 1]])
    assert joined.count("<path") == apart.count("<path") + 1
    assert "nan" not in size_points("v", "y", [*points, Bar(3, "m", "", None, x=64.0)], lines=[[0, 3], [3]])


def test_names_are_no_formulas() -> None:
    assert "$\\frac$ a_b" in bar_rows("b", "x", [Bar(0, "$\\frac$ a_b", "40", 40.0)])


def test_an_interval_that_leaves_the_value_out_is_drawn_all_the_same() -> None:
    """A bootstrap's percentiles need not hold the estimate."""
    assert "<svg" in bar_rows("b", "x", [Bar(0, "a", "40", 40.0, 41.0, 42.0)])
    assert "<svg" in size_points(
        "v", "y", [Bar(1, "a", "", 40.0, 38.0, 39.0, 2.0), Bar(2, "b", "", 1.0, x=1.0)]
    )
