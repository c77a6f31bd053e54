"""Charts: methods can be told apart, values stand where they belong, nothing odd comes out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from vocabforge.evaluate.reports.plots import (
    INK,
    Bar,
    Panel,
    Trace,
    bar_rows,
    line_svg,
    method_colour,
)


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("text")]


def test_bars_are_as_long_as_their_values() -> None:
    bars = [Bar("plain", "10", [(0, 10.0)], 9.0, 11.0), Bar("fast", "30", [(1, 30.0)])]
    svg = bar_rows("b", "tokens per second", bars)
    lengths = {}
    for colour in (0, 1):
        (path,) = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: {method_colour(colour)}', svg)
        x = [float(value) for value in re.findall(r"[ML] ([-\d.]+) ", path)]
        lengths[colour] = max(x) - min(x)
    assert abs(lengths[1] / lengths[0] - 3) < 1e-3
    assert {"plain", "10", "fast", "30", "tokens per second"} <= set(texts(svg))
    assert INK in svg, "no whisker"


def test_shares_are_written_where_they_fit() -> None:
    bars = [
        Bar("a", "4 ms", [(1, 3.0), (2, 0.9), (0, 0.1)]),
        Bar("b", "1 ms", [(1, 0.0), (2, 1.0), (0, 0.0)]),
    ]
    svg = bar_rows("t", "ms", bars)
    assert {"75%", "22%", "100%", "4 ms"} <= set(texts(svg))
    assert "2%" not in texts(svg)
    assert "0%" not in texts(svg)


def test_lines_and_points_with_values_missing() -> None:
    svg = line_svg("r", Panel("", ("run", "%"), [Trace(0, [1, 2, 3], [99.0, None, 101.0])]))
    assert {"1", "2", "3", "run"} <= set(texts(svg))
    assert "nan" not in svg
    alone = line_svg("r", Panel("", ("run", "%"), [Trace(8, [1], [50.0])], bottom=0, top=102))
    assert {"1", "100"} <= set(texts(alone))
    points = [Trace(1, [128_256.0], [40.0]), Trace(2, [1024.0], [50.0]), Trace(3, [64.0], [None])]
    shown = line_svg("v", Panel("", ("size", "tokens per second"), points, log_x=True))
    assert {"64", "1k"} <= set(texts(shown))
    assert "nan" not in shown
