"""Rows are what the engine does, timed in turns, kept on disk at once, and never measured twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tune.support import make_place, row
from vocabforge.core.errors import ArtifactError
from vocabforge.decode.build.methods import build_method
from vocabforge.decode.build.models import Models
from vocabforge.decode.engine import Decoder
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.acceptance.meter import AcceptanceMeter, LivePrompts, pooled
from vocabforge.tune.measure import SpeedMeter, TurnStore, measured
from vocabforge.tune.space import HeadChoice, TreeSetting, TuneCandidate

PROMPTS = LivePrompts([list(range(70 + n, 90 + 2 * n)) for n in range(4)], (2,))
CHAIN = TuneCandidate(HeadChoice(), TreeSetting.chain(2))
ABOUT = {"tree": "chain 3"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(make_place(tmp_path_factory.mktemp("speeds")) / "t", device="cpu")


def always() -> float:
    return 1.0


def meter_of(models: Models, folder: Path, **identity: Any) -> SpeedMeter:
    def decoder(candidate: TuneCandidate | None, batch: int) -> Decoder:
        spec = MethodSpec() if candidate is None else candidate.recipe(models.target.parent / "d")
        made = build_method(models, spec, "one", rows=batch).generator
        assert isinstance(made, Decoder)
        return made

    return SpeedMeter(PROMPTS, 24, decoder, TurnStore(folder), {"target": "t", **identity})


def test_rows_are_what_the_engine_does(models: Models, tmp_path: Path) -> None:
    meter, answers = meter_of(models, tmp_path), []
    meter.on_answers = answers.append
    meter.measure([(CHAIN, ABOUT)], 4, 1, always)
    rows = meter.rows(ABOUT, 4, 1)
    acceptance = AcceptanceMeter(models.model, PROMPTS, 24)
    proposer = build_method(models, CHAIN.recipe(models.target.parent / "d"), "one").generator.proposer
    decoder = acceptance.decoder(proposer)
    made = [acceptance.decode(decoder, number) for number in range(len(PROMPTS.prompts))]
    assert [one.cycles for one in rows] == [len(one.accept_lengths) for one in made]
    assert [one.committed for one in rows] == [sum(one.accept_lengths) for one in made]
    assert [one.new_tokens for one in rows] == [len(one.token_ids) for one in made]
    assert all(one.identical and one.plain_tokens == one.new_tokens for one in rows)
    assert measured(rows, 1).accepted.value == pytest.approx(pooled(made)["accepted_length"])
    assert answers == [1, 1, 1, 1]


def test_groups_of_several_requests_cover_the_prompts(models: Models, tmp_path: Path) -> None:
    meter = meter_of(models, tmp_path)
    alone, pairs = ABOUT | {"batch": 1}, ABOUT | {"batch": 3}
    meter.measure([(CHAIN, alone)], 4, 1, always)
    meter.measure([(CHAIN, pairs)], 4, 3, always)
    one, three = meter.rows(alone, 4, 1), meter.rows(pairs, 4, 3)
    assert [len(one), len(three)] == [4, 2]
    assert three[0].new_tokens == sum(row.new_tokens for row in one[:3])
    assert three[1].new_tokens == one[3].new_tokens + sum(row.new_tokens for row in one[:2])


def test_nothing_is_measured_twice(models: Models, tmp_path: Path) -> None:
    first = meter_of(models, tmp_path)
    first.measure([(CHAIN, ABOUT)], 2, 1, always)
    again, answers = meter_of(models, tmp_path), []
    again.on_answers = answers.append
    again.measure([(CHAIN, ABOUT)], 2, 1, always)
    assert answers == []
    again.measure([(CHAIN, ABOUT)], 4, 1, always)
    assert answers == [1, 1]
    assert again.rows(ABOUT, 4, 1)[:2] == first.rows(ABOUT, 2, 1)
    assert meter_of(models, tmp_path, environment="another machine").rows(ABOUT, 4, 1) == []


def test_when_the_time_is_up_one_candidate_is_measured(models: Models, tmp_path: Path) -> None:
    meter = meter_of(models, tmp_path)
    other = ABOUT | {"other": True}
    meter.measure([(CHAIN, ABOUT), (CHAIN, other)], 4, 1, lambda: 0.0)
    assert [len(meter.rows(one, 4, 1)) for one in (ABOUT, other)] == [1, 0]


def test_a_group_that_was_begun_is_finished(models: Models, tmp_path: Path) -> None:
    meter, other, answers = meter_of(models, tmp_path), ABOUT | {"other": True}, []
    meter.on_answers = answers.append
    meter.measure([(CHAIN, ABOUT), (CHAIN, other)], 4, 1, lambda: 3 - len(answers))
    assert [len(meter.rows(one, 4, 1)) for one in (ABOUT, other)] == [2, 2]


def test_the_speed_up_is_that_of_the_turns() -> None:
    """A machine that becomes twice as slow half-way changes nothing."""
    rows = [row(1.5), row(1.5, seconds=2.0), row(1.5, seconds=2.0)]
    found = measured(rows, 1)
    assert found.speedup.value == pytest.approx(1.5)
    assert found.tokens_per_s.value == pytest.approx(1.5 * 180 / 5)
    assert found.accepted.value == pytest.approx(2.0)
    assert found.cycle == pytest.approx(5 / 1.5 / 90)


@pytest.mark.parametrize("damage", ["cut", "row", "list"])
def test_a_damaged_file_is_told(tmp_path: Path, damage: str) -> None:
    store = TurnStore(tmp_path)
    store.write("a" * 64, ABOUT, {"1:0": row(1.2)})
    (file,) = tmp_path.glob("*.json")
    body = json.loads(file.read_text("utf-8"))
    if damage == "row":
        body["rows"]["1:0"]["cycles"] = -1
    if damage == "list":
        body = [body]
    text = json.dumps(body)
    file.write_text(text[:40] if damage == "cut" else text, "utf-8")
    with pytest.raises(ArtifactError, match="cannot be read"):
        store.read("a" * 64)
