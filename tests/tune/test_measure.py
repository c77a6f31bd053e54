"""Rows are what the engine does, timed in turns, kept on disk at once, and never measured twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.support import make_place, row
from vocabforge.core.errors import UsageError
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.engine import Decoder
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.acceptance.meter import LivePrompts, pooled
from vocabforge.tune.measure import SpeedMeter, measured

PROMPTS = LivePrompts([list(range(70 + n, 90 + 2 * n)) for n in range(4)], (2,))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(make_place(tmp_path_factory.mktemp("speeds")) / "t", device="cpu")


def always() -> float:
    return 1.0


def chain_for(models: Models) -> MethodSpec:
    return MethodSpec(drafter=models.target.parent / "d", tree="chain", depth=2, control="fixed")


def meter_of(models: Models, folder: Path, batch: int = 1, **identity: Any) -> SpeedMeter:
    def decoder(spec: MethodSpec | None) -> Decoder:
        made = build_method(models, spec or MethodSpec(), "one", rows=batch).generator
        assert isinstance(made, Decoder)
        return made

    return SpeedMeter(folder, {"target": "t", **identity}, PROMPTS, 24, batch, decoder)


def test_rows_are_what_the_engine_does(models: Models, tmp_path: Path) -> None:
    answers: list[int] = []
    with meter_of(models, tmp_path / "speeds") as meter:
        meter.on_answers = answers.append
        meter.measure({"chain": chain_for(models)}, 4, always)
    rows = meter.rows("chain")
    decoder = Decoder(models.model, build_method(models, chain_for(models), "one").generator.proposer)
    made = [
        decoder.generate(prompt, max_new_tokens=24, stop_ids=PROMPTS.stop_ids) for prompt in PROMPTS.prompts
    ]
    assert [one.cycles for one in rows] == [len(one.accept_lengths) for one in made]
    assert [one.committed for one in rows] == [sum(one.accept_lengths) for one in made]
    assert [one.new_tokens for one in rows] == [len(one.token_ids) for one in made]
    assert all(one.identical and one.plain_tokens == one.new_tokens for one in rows)
    assert measured(rows).accepted.value == pytest.approx(pooled(made)["accepted_length"])
    assert answers == [1, 1, 1, 1]


def test_groups_of_several_requests_cover_the_prompts(models: Models, tmp_path: Path) -> None:
    alone, three = meter_of(models, tmp_path / "one"), meter_of(models, tmp_path / "three", 3)
    with alone, three:
        alone.measure({"chain": chain_for(models)}, alone.groups, always)
        three.measure({"chain": chain_for(models)}, three.groups, always)
    one, several = alone.rows("chain"), three.rows("chain")
    assert [len(one), len(several)] == [4, 2]
    assert several[0].new_tokens == sum(row.new_tokens for row in one[:3])
    assert several[1].new_tokens == one[3].new_tokens + sum(row.new_tokens for row in one[:2])


def test_nothing_is_measured_twice(models: Models, tmp_path: Path) -> None:
    methods, answers = {"chain": chain_for(models)}, []
    with meter_of(models, tmp_path / "speeds") as first:
        first.measure(methods, 2, always)
    with meter_of(models, tmp_path / "speeds") as again:
        again.on_answers = answers.append
        again.measure(methods, 2, always)
        assert answers == []
        again.measure(methods, 4, always)
        assert answers == [1, 1]
        assert again.rows("chain", 2) == first.rows("chain")
    with pytest.raises(UsageError, match='environment: none, now "another machine"'):
        meter_of(models, tmp_path / "speeds", environment="another machine")


def test_time_that_is_up_ends_the_first_group_and_finishes_later_ones(models: Models, tmp_path: Path) -> None:
    methods, answers = {"one": chain_for(models), "two": chain_for(models)}, []
    with meter_of(models, tmp_path / "up") as meter:
        meter.measure(methods, 4, lambda: 0.0)
        assert [len(meter.rows(one)) for one in methods] == [1, 0]
    with meter_of(models, tmp_path / "begun") as meter:
        meter.on_answers = answers.append
        meter.measure(methods, 4, lambda: 3 - len(answers))
        assert [len(meter.rows(one)) for one in methods] == [2, 2]


def test_the_speed_up_is_that_of_the_turns() -> None:
    """A machine that becomes twice as slow half-way changes nothing."""
    rows = [row(1.5), row(1.5, seconds=2.0), row(1.5, seconds=2.0)]
    found = measured(rows)
    assert found.speedup.value == pytest.approx(1.5)
    assert found.tokens_per_s.value == pytest.approx(1.5 * 180 / 5)
    assert found.accepted.value == pytest.approx(2.0)
