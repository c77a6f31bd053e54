"""Measuring latency, under a clock that only the models and the heads move: what is predicted must then be exact."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decode.drafting import make_drafter
from tests.worlds import tiny_drafter, tiny_target
from vocabforge.bench.kernels.cycle import new_capture
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.heads.exact import FullHead
from vocabforge.models.heads.interface import HeadOptions
from vocabforge.models.heads.low_rank import RankerHead
from vocabforge.models.heads.registry import base_of, base_of_model, build_head, exact_head, exact_head_of
from vocabforge.models.heads.router import Router, RouterHead
from vocabforge.models.heads.scheduled import ScheduledHead
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.tune.latency.graphs import captured_parts
from vocabforge.tune.latency.measure import (
    LatencyInputs,
    measure_latency,
)
from vocabforge.tune.latency.parts import CycleRun, CycleRunner
from vocabforge.tune.latency.table import LatencyTable
from vocabforge.tune.types import CycleSetting, TreeSetting, setting_of

TREES = (
    TreeSetting.chain(0),
    TreeSetting.chain(4),
    TreeSetting(topk=2, depth=2, total=8),
    TreeSetting(topk=4, depth=1, total=12),
    TreeSetting(topk=4, depth=3, total=20),
)
OTHER = TreeSetting(topk=3, depth=2, total=15)  # in between, never measured
PROMPTS = [[3 + place % 50 for place in range(length)] for length in (12, 20, 40)]

# Seconds that the false clock moves.
PASS, NODE, LAYER, ROW, TOKEN, AHEAD = 0.1, 0.01, 0.003, 0.0005, 0.00001, 0.0007


class FalseClock:
    """Stands still but for :meth:`add`."""

    def __init__(self) -> None:
        self.now = 100.0

    def add(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LeanModel, Any]:
    folder = tiny_target(tmp_path_factory.mktemp("target"))
    return load_target(folder, dtype=torch.float32), tiny_drafter(HFTarget.load(folder))


def heads_of(drafter: Any) -> list[Any]:
    base, ranked = base_of(drafter), tuple(range(30))
    router = Router(base.weight.shape[1], torch.arange(61) % 6, 6)
    scorer = LowRankScorer(base.weight.shape[1], 61, 4)
    return [
        exact_head(drafter),
        build_head("scheduled", base, None, HeadOptions(ranked=ranked, schedule=(30, 20, 10))),
        build_head("ranker", base, scorer, HeadOptions(shortlist=16)),
        build_head("router", base, router, HeadOptions(budgets=(3,))),
    ]


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[FalseClock]:
    clock = FalseClock()

    def slow(patch: pytest.MonkeyPatch, kind: Any, name: str, seconds: Any) -> None:
        inner = getattr(kind, name)

        def run(self: Any, *args: Any, **named: Any) -> Any:
            clock.add(seconds(self, *args))
            return inner(self, *args, **named)

        patch.setattr(kind, name, run)

    with pytest.MonkeyPatch.context() as patch:
        slow(patch, LeanModel, "forward", lambda model, ids, *rest: PASS + NODE * ids.numel())
        slow(patch, Eagle3Drafter, "extend", lambda drafter, ids, *rest: LAYER + ROW * ids.numel())
        for kind in (FullHead, ScheduledHead, RankerHead, RouterHead):
            slow(patch, kind, "topk", _answer_seconds)
        slow(patch, FullHead, "best", lambda head, hidden: TOKEN * head.size * len(hidden))
        slow(patch, RouterHead, "prepare", lambda head, state: AHEAD)
        patch.setattr(time, "perf_counter", clock)
        yield clock


def _answer_seconds(head: Any, hidden: Any, k: int, state: Any = None) -> float:
    return TOKEN * scored(head, state) * len(hidden)


def scored(head: Any, state: Any) -> int:
    return int(head.scored(state.step) if hasattr(head, "scored") else head.size)


def seconds_of(setting: CycleSetting, *, graphs: bool = False) -> float:
    """What a cycle takes under the false clock, computed from the tree alone.

    Of a chain what is accepted is committed, here nothing but the root; else the whole path is, padded.
    """
    tree, rows = setting.tree, setting.batch
    wide = tree.topk * rows
    heads = sum(setting.head.at(step) * (wide if step else rows) for step in range(tree.levels)) * TOKEN
    ahead = AHEAD * tree.depth if setting.head.kind == "router" else 0.0
    layers = tree.depth * (LAYER + ROW * wide)
    commit = LAYER + ROW * rows * (1 if tree.topk == 1 and not graphs else tree.levels + 1)
    return PASS + NODE * rows * tree.total + heads + ahead + layers + commit


def measured(models: tuple[LeanModel, Any], **changes: Any) -> LatencyTable:
    model, drafter = models
    settings: dict[str, Any] = {"trees": TREES, "prompts": PROMPTS, "new": 40, "heads": heads_of(drafter)}
    inputs = LatencyInputs(model, drafter, **settings | changes)
    return measure_latency(inputs, 1e6, rounds=1, cycles=2)


@pytest.fixture(scope="module")
def table(models: tuple[LeanModel, Any]) -> LatencyTable:
    return measured(models, target="t", digest="d")


def check_exact(table: LatencyTable, heads: list[Any], trees: Iterable[TreeSetting], batch: int) -> None:
    for head in heads:
        for tree in trees:
            setting = CycleSetting(head=setting_of(head), tree=tree, batch=batch, prefix=45)
            assert table.cycle(setting).value == pytest.approx(
                seconds_of(setting, graphs=table.graphs), rel=1e-6
            ), setting.label


def test_cycles_of_other_sizes_are_predicted_exactly(
    models: tuple[LeanModel, Any], table: LatencyTable
) -> None:
    trees = (*TREES, TreeSetting.chain(2), OTHER)
    check_exact(table, heads_of(models[1]), trees, 1)
    assert table.error < 1e-6
    assert table.plain(1, 45).value == pytest.approx(PASS + NODE)
    assert table.prefill(20, drafting=False).value == pytest.approx(PASS + 20 * NODE)
    assert table.prefill(30).value == pytest.approx(PASS + LAYER + 30 * (NODE + ROW))


def test_cycles_of_other_batches_are_predicted_exactly(models: tuple[LeanModel, Any]) -> None:
    heads = heads_of(models[1])[::3]
    table = measured(models, heads=heads, trees=TREES[2:], batches=(1, 3))
    for batch in (1, 2, 3):
        check_exact(table, heads, (*TREES[2:], OTHER), batch)
    assert table.plain(2, 45).value == pytest.approx(PASS + 2 * NODE)


def test_a_real_cycle_takes_what_the_table_says(models: tuple[LeanModel, Any], table: LatencyTable) -> None:
    model, drafter = models
    bench = CycleRunner(model, drafter, heads_of(drafter), PROMPTS)
    decoder = Decoder(model, bench.proposer(2, OTHER), 120)
    made = decoder.generate(PROMPTS[0], max_new_tokens=30, stop_ids=())
    setting = CycleSetting(head=bench.settings[2], tree=OTHER, prefix=27)
    wanted = len(made.accept_lengths) * table.cycle(setting).value
    assert made.decode_s == pytest.approx(wanted, rel=1e-6)
    assert made.prefill_s == pytest.approx(table.prefill(len(PROMPTS[0])).value, rel=1e-6)


def test_what_no_part_explains_is_fitted(
    models: tuple[LeanModel, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = CycleRunner.whole

    def slower(self: CycleRunner, run: CycleRun, count: int) -> list[float]:
        more = 0.05 if run.tree is not None else 0.0
        return [seconds + more for seconds in inner(self, run, count)]

    monkeypatch.setattr(CycleRunner, "whole", slower)
    heads = heads_of(models[1])[:1]
    table = measured(models, heads=heads, trees=TREES[2:])
    assert table.rest.per_cycle == pytest.approx(0.05)
    setting = CycleSetting(head=setting_of(heads[0]), tree=TREES[3], prefix=45)
    assert table.cycle(setting).value == pytest.approx(seconds_of(setting) + 0.05)


def test_without_time_one_of_each_kind_is_measured_and_the_rest_named(models: tuple[LeanModel, Any]) -> None:
    model, drafter = models
    inputs = LatencyInputs(model, drafter, heads_of(drafter), TREES, PROMPTS, new=40)
    table = measure_latency(inputs, 0.0, cycles=1)
    assert any("chain1;" in note for note in table.notes)
    assert all(note.startswith("not measured, no time left") for note in table.notes)
    for head in heads_of(drafter):
        for tree in TREES:
            assert table.cycle(CycleSetting(head=setting_of(head), tree=tree, prefix=45)).value > 0


def test_captured_cycles_are_timed_part_by_part(models: tuple[LeanModel, Any]) -> None:
    model, drafter = models
    bench = CycleRunner(model, drafter, [exact_head(drafter)], PROMPTS, lambda: new_capture(model.device))
    found = {
        (where.name, where.family): seconds
        for where, seconds in captured_parts(bench, CycleRun(0, TREES[-1], 2, 40), seconds=0.0)
    }
    assert found["verify", "dynamic"] == pytest.approx(PASS + NODE * 40)
    assert found["layer", "dynamic"] == pytest.approx(LAYER + ROW * 8)
    heads = {family.rsplit(" ", 1)[1]: one for (name, family), one in found.items() if name == "head"}
    assert heads == pytest.approx({"first": TOKEN * 61 * 2, "further": TOKEN * 61 * 8})
    assert found["choose", "dynamic"] == pytest.approx(0.0, abs=1e-9)


def test_captured_cycles_are_predicted_with_the_fitted_rest(
    models: tuple[LeanModel, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    heads = [exact_head(models[1])]
    table = measured(models, graphs=True, heads=heads)
    assert table.graphs
    assert table.rest.per_level == pytest.approx(ROW)  # a commit's rows
    assert table.rest.per_cycle == pytest.approx(LAYER + ROW)
    check_exact(table, heads, TREES, 1)
    assert "Captured" not in capsys.readouterr().err  # one line for each of hundreds


@pytest.mark.parametrize("kind", ["eagle1", "medusa", "draft-model", "peagle", "dspark"])
def test_every_kind_of_drafter_can_be_measured(
    models: tuple[LeanModel, Any], tmp_path: Path, kind: str
) -> None:
    folder = tiny_target(tmp_path)
    model = models[0]
    drafter: Any = model
    heads = [exact_head_of(base_of_model(model))]
    if kind != "draft-model":
        drafter = make_drafter(kind, folder, HFTarget.load(folder), "own")
        heads = [exact_head(drafter)]
    trees = (TreeSetting.chain(1), TreeSetting(topk=2, depth=1, total=6))
    inputs = LatencyInputs(model, drafter, heads, trees, PROMPTS, new=40)
    table = measure_latency(inputs, 1e6, rounds=1, cycles=1)
    setting = CycleSetting(head=setting_of(heads[0]), tree=trees[1], prefix=45)
    assert table.drafter.kind == kind
    assert table.cycle(setting).value >= PASS + NODE * 6 - 1e-9
    assert table.error < 1e-6


def test_a_short_context_takes_fewer_cycles_and_a_tiny_one_is_refused(
    models: tuple[LeanModel, Any], tmp_path: Path
) -> None:
    drafter = models[1]
    short, tiny = (
        load_target(tiny_target(tmp_path / str(size), max_position_embeddings=size), dtype=torch.float32)
        for size in (48, 24)
    )
    run = CycleRun(0, TreeSetting.chain(4), 1, 20)
    assert len(CycleRunner(short, drafter, heads_of(drafter), PROMPTS).whole(run, 20)) == 3
    with pytest.raises(UsageError, match="too short"):
        CycleRunner(tiny, drafter, heads_of(drafter), PROMPTS).whole(run, 20)
