"""The latency table: interpolation, the sum of parts, the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vocabforge.core.errors import DataError, MismatchError
from vocabforge.models.heads.interface import HeadBase, HeadOptions
from vocabforge.models.heads.registry import build_head, exact_head_of
from vocabforge.models.heads.router import Router
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.tune.latency.records import AXES, MeasuredPart, Point, Rest, Shapes
from vocabforge.tune.latency.table import (
    LATENCY,
    LatencyTable,
    head_family,
    interpolate,
    read_latency,
    write_latency,
)
from vocabforge.tune.types import CycleSetting, HeadSetting, TreeSetting, setting_of

SHAPES = Shapes(kind="llama", hidden_size=32, vocab_size=61, layers=5, parameters=1000, fingerprint="f")
FULL = HeadSetting(kind="full", scored=(61,))


def point(at: dict[str, int], value: float) -> Point:
    return Point(at=at, seconds=value, low=value, high=value, count=1)


def points(axis: str, values: dict[int, float]) -> list[Point]:
    return [point({axis: size}, value) for size, value in values.items()]


def read(values: dict[int, float], wanted: int) -> float:
    return interpolate(points("n", values), ("n",), {"n": wanted}).value


@pytest.mark.parametrize(("wanted", "value"), [(12, 2.0), (16, 3.0), (24, 3.25), (64, 4.0), (1, 1.0)])
def test_lines_between_sizes_continue_above_and_hold_below(wanted: int, value: float) -> None:
    assert read({8: 1.0, 16: 3.0, 32: 3.5, 48: 3.75}, wanted) == pytest.approx(value)
    assert read({8: 1.0}, wanted) == 1.0


def test_samples_need_not_fill_a_grid() -> None:
    def cost(a: int, b: int) -> float:
        return 2.0 * a + 3.0 * b

    found = [point({"a": a, "b": b}, cost(a, b)) for a, b in ((1, 1), (1, 9), (2, 2), (2, 6), (4, 1), (4, 3))]
    assert interpolate(found, ("a", "b"), {"a": 3, "b": 4}).value == pytest.approx(cost(3, 4))


@given(
    st.lists(
        st.tuples(st.integers(1, 99), st.floats(0, 10)), min_size=1, max_size=8, unique_by=lambda x: x[0]
    ),
    st.integers(1, 200),
    st.integers(0, 50),
)
def test_times_never_fall_as_a_size_grows(points: list[tuple[int, float]], size: int, more: int) -> None:
    values = dict(points)
    assert read(values, size) <= read(values, size + more) + 1e-9


# A table whose every time is a formula of the sizes, so that sums can be computed by hand.
def formula(name: str, at: dict[str, int]) -> float:
    return {
        "head": 0.002 * at.get("topk", 0) * at["batch"] + 0.0001 * at.get("scored", 0)
        if "batch" in at
        else 0,
        "start": 0.001,
        "layer": 0.01 * at.get("topk", 0) * at.get("batch", 0),
        "grow": 0.003,
        "choose": 0.004,
        "verify": 0.1 + 0.005 * at.get("nodes", 0) * at.get("batch", 0),
        "commit": 0.02 * at.get("levels", 0),
        "plain": 0.08 + 0.001 * at.get("prefix", 0),
        "prefill": 0.0005 * at.get("tokens", 0),
    }[name]


GRID = {"batch": (1, 4), "topk": (1, 8), "prefix": (64, 256), "nodes": (2, 64), "levels": (1, 8)}
GRID |= {"core": (0,), "scored": (8, 64), "history": (1, 1000), "tokens": (16, 512)}


def part(name: str, family: str) -> MeasuredPart:
    places: list[dict[str, int]] = [{}]
    for axis in AXES[name]:
        places = [{**at, axis: size} for at in places for size in GRID[axis]]
    points = []
    for at in places:
        value = formula(name, at)
        points.append(Point(at=at, seconds=value, low=0.9 * value, high=1.2 * value, count=3))
    return MeasuredPart(name=name, family=family, points=tuple(points))


def make_table(**changes: Any) -> LatencyTable:
    families = {
        "head": [head_family(FULL.family, first=first) for first in (True, False)],
        "grow": [
            f"{kind} {place}" for kind in ("dynamic", "chain") for place in ("first", "further", "last")
        ],
        "start": [""],
        "plain": [""],
        "prefill": ["plain", "drafting"],
    }
    parts = [
        part(name, family)
        for name in AXES
        if name != "rest"
        for family in families.get(name, ["dynamic", "chain"])
    ]
    settings: dict[str, Any] = {
        "vocabforge": "0",
        "environment": {"processor": "x"},
        "dtype": "float32",
        "graphs": False,
        "target": SHAPES,
        "drafter": SHAPES,
        "parts": tuple(parts),
    }
    return LatencyTable(**settings | changes)


def by_hand(tree: TreeSetting, batch: int, scored: int) -> float:
    at = {"batch": batch, "topk": tree.topk, "scored": scored, "nodes": tree.total, "levels": tree.levels}
    heads = tree.levels * formula("head", at)
    layers = formula("start", at) + tree.depth * formula("layer", at)
    grown = tree.levels * formula("grow", at) + formula("choose", at)
    return heads + layers + grown + formula("verify", at) + formula("commit", at)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "tree",
    [
        TreeSetting.chain(0),
        TreeSetting.chain(4),
        TreeSetting(topk=4, depth=0, total=4),
        TreeSetting(topk=3, depth=1, total=9),
        TreeSetting(topk=6, depth=5, total=50),
    ],
)
def test_a_cycle_is_the_sum_of_its_parts(tree: TreeSetting, batch: int) -> None:
    table = make_table()
    setting = CycleSetting(head=FULL, tree=tree, batch=batch, prefix=100)
    found = table.cycle(setting)
    wanted = by_hand(tree, batch, 61)
    assert found.value == pytest.approx(wanted)
    assert found.low == pytest.approx(0.9 * wanted)
    assert found.high == pytest.approx(1.2 * wanted)


def test_each_level_is_scored_with_its_own_number_of_tokens() -> None:
    table, tree = make_table(), TreeSetting.chain(3)
    narrow = FULL.model_copy(update={"scored": (40, 20, 10)})
    one = table.cycle(CycleSetting(head=FULL, tree=tree, prefix=100)).value
    other = table.cycle(CycleSetting(head=narrow, tree=tree, prefix=100)).value
    assert one - other == pytest.approx(0.0001 * (4 * 61 - (40 + 20 + 10 + 10)))


def test_a_head_that_was_not_measured_is_refused() -> None:
    table, tree = make_table(), TreeSetting.chain(2)
    for head in (
        HeadSetting(kind="static", scored=(30,)),
        HeadSetting(kind="ranker", scored=(30,), rank=4),
    ):
        with pytest.raises(MismatchError, match="lacks a part"):
            table.cycle(CycleSetting(head=head, tree=tree, prefix=100))


def test_the_rest_and_the_error_are_part_of_a_prediction() -> None:
    rest = Rest(per_cycle=0.01, per_level=0.002, per_row=0.003)
    table, setting = make_table(), CycleSetting(head=FULL, tree=TreeSetting.chain(2), batch=2, prefix=100)
    wider = make_table(rest=rest, error=0.1)
    assert wider.cycle(setting).value - table.cycle(setting).value == pytest.approx(0.01 + 3 * 0.002 + 0.003)
    value, low, high = wider.cycle(setting)
    assert low < 0.9 * value < 1.1 * value < high


def test_models_of_other_sizes_are_refused_and_other_weights_are_not(tmp_path: Path) -> None:
    table = make_table()
    table.check_shapes(SHAPES.model_copy(update={"fingerprint": "other"}), SHAPES, source="here")
    with pytest.raises(MismatchError, match="drafter of other sizes") as caught:
        table.check_shapes(SHAPES, SHAPES.model_copy(update={"hidden_size": 64}), source="here")
    assert "hidden_size 64" in str(caught.value)


def test_the_file_gives_the_same_table(tmp_path: Path) -> None:
    setting = CycleSetting(head=FULL, tree=TreeSetting(topk=3, depth=1, total=9), batch=2, prefix=99)
    table = make_table(rest=Rest(per_cycle=-1e-5), notes=("left out",))
    write_latency(tmp_path / LATENCY, table)
    for path in (tmp_path, tmp_path / LATENCY):
        again = read_latency(path)
        assert again == table
        assert again.cycle(setting) == table.cycle(setting)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.update(schema_version=2), "another version"),
        (lambda file: file.update(more=1), "more"),
        (lambda file: file["parts"][0]["points"][0].update(seconds=-1.0), "seconds"),
        (lambda file: file["parts"][0]["points"][0]["at"].update(rows=3), "head by batch"),
        (lambda file: file["parts"][0].update(name="lunch"), "lunch"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, change: Any, words: str) -> None:
    write_latency(tmp_path / LATENCY, make_table())
    content = json.loads((tmp_path / LATENCY).read_text("utf-8"))
    change(content)
    (tmp_path / LATENCY).write_text(json.dumps(content), "utf-8")
    with pytest.raises(DataError, match=words):
        read_latency(tmp_path)
    with pytest.raises(DataError, match="latency file"):
        read_latency(tmp_path / "nowhere")


def heads() -> dict[str, tuple[Any, HeadSetting]]:
    weight = torch.randn(61, 8)
    base = HeadBase(weight, torch.arange(61), torch.randn(61, 8))
    part = HeadBase(weight[:20], torch.arange(20), base.embedding)
    scorer, router = LowRankScorer(8, 61, 4), Router(8, torch.arange(61) % 6, 6)
    ranked = tuple(range(10))

    def make(kind: str, module: Any = None, **options: Any) -> Any:
        return build_head(kind, base, module, HeadOptions(**options))

    return {
        "full": (exact_head_of(base), HeadSetting(kind="full", scored=(61,))),
        "static": (exact_head_of(part), HeadSetting(kind="static", scored=(20,))),
        "scheduled": (
            make("scheduled", ranked=ranked, schedule=(10, 6, 3)),
            HeadSetting(kind="scheduled", scored=(10, 6, 3)),
        ),
        "ranker": (
            make("ranker", scorer, shortlist=12, rows="shared"),
            HeadSetting(kind="ranker", scored=(12,), rank=4, shared=True),
        ),
        "low-rank": (make("low-rank", scorer), HeadSetting(kind="low-rank", scored=(61,), rank=4)),
        "router": (
            make("router", router, budgets=(3, 2)),
            HeadSetting(kind="router", scored=(30, 20), clusters=6, shared=True),
        ),
        "context": (
            make("context", ranked=ranked, context=9),
            HeadSetting(kind="context", scored=(19,), core=10),
        ),
        "hybrid": (
            make("hybrid", scorer, ranked=ranked, shortlist=7, fp8=True),
            HeadSetting(kind="hybrid", scored=(17,), core=10, rank=4, fp8=True),
        ),
    }


@pytest.mark.parametrize("name", list(heads()))
def test_the_setting_of_a_head_holds_the_sizes_that_its_time_depends_on(name: str) -> None:
    head, setting = heads()[name]
    assert setting_of(head) == setting
