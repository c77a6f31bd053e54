"""The stage ``times``: what it measures, what it keeps, and the larger shape's times. Nothing here rests on a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.study.decoding_support import VOCAB
from tests.study.times_support import HIDDEN, make_parts, times_config
from vocabforge.core.errors import DataError, MismatchError
from vocabforge.models.lean import load_target
from vocabforge.study import shapes, times
from vocabforge.study.layout import Layout
from vocabforge.study.methods import StudyHeads, methods
from vocabforge.study.roofline import Sizes
from vocabforge.study.shapes import (
    ColdClock,
    HeadTime,
    ShapeHeads,
    ShapeLayers,
    ShapePlan,
    ShapeTimes,
    Timed,
    fitting,
    measure_shape,
    representatives,
    shape_of,
)
from vocabforge.study.times import StudyTimes, read_times, tree_of, trees_of
from vocabforge.tune.table import read_latency
from vocabforge.tune.types import CycleSetting, HeadSetting, TreeSetting, setting_of

FULL = HeadSetting(kind="full", scored=(300,))
STATIC = HeadSetting(kind="static", scored=(100,))
FALLING = HeadSetting(kind="scheduled", scored=(100, 100, 50))
LOW_RANK = HeadSetting(kind="low-rank", scored=(300,), rank=8)
RANKER = HeadSetting(kind="ranker", scored=(24,), rank=8)
ROUTER = HeadSetting(kind="router", scored=(150, 50), clusters=6, shared=True)
CONTEXT = HeadSetting(kind="context", scored=(36,), core=20)
HYBRID = HeadSetting(kind="hybrid", scored=(28,), core=20, rank=8)
EVERY = FULL, STATIC, FALLING, LOW_RANK, RANKER, ROUTER, CONTEXT, HYBRID
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    layout = make_parts(tmp_path_factory.mktemp("times") / "study")
    times.run(times_config(layout.root), layout)
    return layout


@pytest.fixture(scope="module")
def found(made: Layout) -> StudyTimes:
    return read_times(made.times)


class TestStage:
    def test_every_method_has_sizes(self, made: Layout, found: StudyTimes) -> None:
        ways = methods(times_config(made.root), made)
        assert set(found.heads) == {way.key for way in ways}
        by_key = {way.key: way for way in ways}
        assert {found.heads[key].kind for key, way in by_key.items() if way.family == "reduced"} == {"static"}
        assert (found.rows, found.hidden) == (VOCAB, HIDDEN)
        assert {one.rank for one in found.heads.values()} == {0, 4, 8}

    def test_every_head_and_tree_has_a_cycle(self, found: StudyTimes) -> None:
        assert set(found.trees) == {"chain", "tree 8", "dynamic tree"}
        for head in found.heads.values():
            for tree in found.trees.values():
                cycle = found.latency.cycle(CycleSetting(head=head, tree=tree, prefix=found.prefix))
                assert cycle.value > 0
                assert found.shape is not None
                large = found.large(key_of(found, head), Sizes(found.shape.rows, found.shape.hidden))
                whole = found.shape.cycle(large, tree)
                assert whole.seconds.value > whole.head.value > 0
                assert whole.notes == ()

    def test_the_prefix_is_that_of_the_prompts(self, made: Layout, found: StudyTimes) -> None:
        config = times_config(made.root)
        lengths = [len(ids) for ids in times.study_prompts(config, made)]
        assert len(lengths) == 4  # of two sets
        assert found.prefix == round(sum(lengths) / 4 + config.answers.tokens / 2)

    def test_tune_can_read_the_table(self, made: Layout, found: StudyTimes) -> None:
        assert read_latency(made.root / "latency.json") == found.latency

    def test_what_is_there_is_not_measured_again(self, made: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*anything: Any) -> None:
            raise AssertionError("measured again")

        before = made.times.read_text("utf-8")
        made.times.unlink()
        with monkeypatch.context() as patch:
            patch.setattr(times, "measure_latency", refuse)
            patch.setattr(times, "measure_shape", refuse)
            times.run(times_config(made.root), made)
            assert made.times.read_text("utf-8") == before
            times.run(times_config(made.root, bandwidth=1.0, layer_us=1.0), made)  # of the roofline alone
            with pytest.raises(AssertionError, match="measured again"):
                times.run(times_config(made.root, shape_budget_s=0.2), made)

    def test_no_larger_shape(self, made: Layout, found: StudyTimes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(times, "measure_latency", lambda *_: found.latency)
        times.run(times_config(made.root, shape_budget_s=0), made)
        assert read_times(made.times).shape is None

    def test_a_damaged_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "times.json").write_text('{"schema_version": 1, "prefix": 0}')
        with pytest.raises(DataError, match="does not fit its schema"):
            read_times(tmp_path / "times.json")


def key_of(found: StudyTimes, head: HeadSetting) -> str:
    return next(key for key, one in found.heads.items() if one == head)


def test_heads_are_those_of_the_methods(made: Layout) -> None:
    config = times_config(made.root)
    heads = StudyHeads(made.seed(3), made.target, load_target(made.target))
    sizes = {way.key: heads.setting(way) for way in methods(config, made)}
    assert sizes["full-head-v-270"] == HeadSetting(kind="full", scored=(VOCAB,))
    assert sizes["eagle-3-reduced-r-40"].scored == sizes["fr-spec-r-40"].scored == (40,)
    assert sizes["pa-fr-decay-80-to-20"].scored == (80, 80, 40)
    assert sizes["ranker-d-4-joint-k-24"] == HeadSetting(kind="ranker", scored=(24,), rank=8)
    hybrid = next(one for key, one in sizes.items() if key.startswith("hybrid"))
    assert (hybrid.scored, hybrid.core, hybrid.rank) == ((28,), 20, 8)


def test_trees() -> None:
    config = times_config(Path("nowhere"))
    assert trees_of(config) == {
        "chain": TreeSetting.chain(2),
        "tree 8": TreeSetting(topk=4, depth=2, total=8),
        "dynamic tree": TreeSetting(topk=3, depth=1, total=7),
    }
    assert tree_of(4, 6, 5) == TreeSetting(topk=4, depth=3, total=5)  # fewer levels than asked for
    assert tree_of(1, 6, 5) is None
    assert tree_of(2, 1, 9) is None


def test_representatives_have_every_size_once() -> None:
    again = HeadSetting(kind="scheduled", scored=(100,))
    chosen = representatives([*EVERY, RANKER, again])
    assert chosen[0] == FULL
    assert [(one.kind, one.scored) for one in chosen if one.kind in ("static", "scheduled")] == [
        ("static", (50,)),
        ("static", (100,)),
    ]
    assert [one.scored for one in chosen if one.kind == "router"] == [(50,), (150,)]
    assert len(chosen) == len(set(chosen)) == 9


class TestShapeParts:
    def test_qwen3(self) -> None:
        shape = shape_of(4096, 151_936)
        sizes = shape.layers, shape.intermediate, shape.heads, shape.kv_heads, shape.head_dim
        assert sizes == (36, 12_288, 32, 8, 128)

    @pytest.mark.parametrize("setting", [one for one in EVERY if one.kind != "scheduled"])
    def test_heads_have_the_asked_sizes(self, setting: HeadSetting) -> None:
        parts = ShapeHeads(300, 64, CPU, text=16)
        head = parts.head(setting)
        made = setting_of(head)
        assert (made.family, made.core) == (setting.family, setting.core)
        assert made.scored[0] == setting.scored[0]
        for rows in (1, 4):
            _, ids = parts.call(head, rows, rows)()
            assert ids.shape == (rows, rows)
        assert head.weight.dtype == torch.bfloat16 if hasattr(head, "weight") else True

    def test_routers_of_one_size_share_their_rows(self) -> None:
        parts = ShapeHeads(300, 64, CPU)
        one, other = (parts.head(ROUTER.model_copy(update={"scored": (size,)})) for size in (50, 100))
        assert (one.budgets, other.budgets) == ((1,), (2,))
        assert one.router is other.router

    def test_passes(self) -> None:
        layers = ShapeLayers(shape_of(64, 300), CPU, prefix=5, most=7)
        with torch.inference_mode():
            assert layers.target(7)().hidden.shape == (1, 7, 64)
            assert layers.drafter(4)().shape == (1, 4, 64)
            assert layers.fuse()().shape == (1, 1, 64)


def test_a_clock_reads_the_cache_before_each_call() -> None:
    clock, order = ColdClock(CPU, 4096), []
    read = clock._read
    clock._read = lambda: (order.append("read"), read())[1]  # type: ignore[method-assign]
    assert clock(lambda: order.append("call")) >= 0
    assert order == ["read", "call"]


class TestMeasuring:
    plan = ShapePlan(64, 300, 4, (4, 8), 5, 0.05, rounds=3)

    def test_all_of_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Seconds are those of the clock: medians of rounds, with bounds around them."""
        numbers = iter(range(100_000))
        monkeypatch.setattr(ColdClock, "__call__", lambda self, call: 1.0 + next(numbers) % 2)
        found = measure_shape(EVERY, self.plan, CPU)
        assert found is not None
        assert (found.layers, found.rows, found.hidden, found.notes) == (36, 300, 64, ())
        assert {one.setting for one in found.heads} == set(representatives(EVERY))
        assert {one.rows for one in found.heads} == {1, 4}
        assert [one.rows for one in found.target] == [one.rows for one in found.logits] == [1, 4, 8]
        for one in (*found.heads, *found.drafter, *found.target, *found.logits, *found.fuse):
            assert 1.0 <= one.low <= one.seconds <= one.high <= 2.0
        assert ShapeTimes.model_validate_json(found.model_dump_json()) == found

    def test_too_little_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kept, notes = fitting(list(EVERY), self.plan, 1e9, copies=True)
        assert (kept, notes) == (list(EVERY), [])
        needed = next(
            size for size in range(10**5, 10**7, 100) if fitting([FULL], self.plan, size, copies=True)[0]
        )
        kept, notes = fitting(list(EVERY), self.plan, needed + 12_000, copies=True)
        assert [one.kind for one in kept] == ["full", "static", "scheduled", "low-rank", "ranker", "context"]
        assert len(notes) == 2
        assert "no memory left: router" in notes[0]
        monkeypatch.setattr(shapes, "free_bytes", lambda device: 1000.0)
        assert measure_shape(EVERY, self.plan, CPU) is None


def timed(rows: int, seconds: float) -> dict[str, Any]:
    return {"rows": rows, "seconds": seconds, "low": 0.5 * seconds, "high": 2 * seconds, "count": 3}


def test_a_cycle_of_the_larger_shape_is_the_sum_of_its_parts() -> None:
    """A head of 1 ms + 1 µs a token, a row more 10%; layers of 10 ms (1 row) to 20 ms (11 rows)."""
    heads = [
        HeadTime(setting=one.model_copy(update={"scored": (size,)}), **timed(rows, seconds))
        for one in (STATIC, RANKER)
        for size in (50, 150)
        for rows, seconds in ((1, 1e-3 + 1e-6 * size), (4, 1.3e-3 + 1.3e-6 * size))
    ]
    shape = ShapeTimes(
        hidden=64,
        rows=300,
        layers=10,
        prefix=5,
        dtype="bfloat16",
        environment={},
        heads=tuple(heads),
        drafter=(Timed(**timed(1, 0.01)), Timed(**timed(11, 0.02))),
        target=(Timed(**timed(1, 0.1)), Timed(**timed(11, 0.2))),
        logits=(Timed(**timed(1, 0.5)), Timed(**timed(11, 0.5))),
        fuse=(Timed(**timed(1, 0.001)),),
    )
    assert shape.plain().value == pytest.approx(10 * 0.1 + 0.5)
    cycle = shape.cycle(FALLING, TreeSetting.chain(2))  # 100, 100, 50 tokens
    assert cycle.head.value == pytest.approx(2 * 1.1e-3 + 1.05e-3)
    passes = 3 * 0.01 + 0.001 + 10 * 0.13 + 0.5  # four nodes
    assert cycle.seconds.value == pytest.approx(cycle.head.value + passes)
    assert cycle.seconds.low == pytest.approx(0.5 * cycle.seconds.value)
    tree = shape.cycle(STATIC, TreeSetting(topk=4, depth=2, total=11))
    assert tree.head.value == pytest.approx(1.1e-3 + 2 * 1.43e-3)
    assert tree.seconds.value == pytest.approx(tree.head.value + 0.01 + 2 * 0.013 + 0.001 + 10 * 0.2 + 0.5)
    wide = shape.cycle(STATIC.model_copy(update={"scored": (250,)}), TreeSetting.chain(0))
    assert wide.notes == ("head: scored beyond what was measured",)
    assert wide.head.value == pytest.approx(1.25e-3)
    with pytest.raises(MismatchError, match="lack this kind of draft head"):
        shape.cycle(ROUTER, TreeSetting.chain(0))
