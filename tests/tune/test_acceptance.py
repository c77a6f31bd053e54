"""Acceptance is the engine's, kept on disk at once, and never decoded twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tune.support import make_place, row
from vocabforge.core.errors import ArtifactError
from vocabforge.decode.build.models import Models
from vocabforge.decode.proposers.registry import Proposer
from vocabforge.evaluate.acceptance.meter import AcceptanceMeter
from vocabforge.evaluate.acceptance.prompts import LivePrompts
from vocabforge.tune.search.acceptance import AcceptanceSource, AcceptanceStore, accepted_length
from vocabforge.tune.search.session import proposer_of
from vocabforge.tune.search.space import HeadChoice, TuneCandidate
from vocabforge.tune.types import TreeSetting

PROMPTS = LivePrompts([list(range(70 + n, 90 + 2 * n)) for n in range(4)], (2,))
CHAIN = TuneCandidate(HeadChoice(), TreeSetting.chain(2))
ABOUT = {"tree": "chain 3"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(make_place(tmp_path_factory.mktemp("acceptance")) / "t", device="cpu")


def drafted(models: Models) -> Proposer:
    return proposer_of(models, models.target.parent / "d", CHAIN)


def source_of(models: Models, folder: Path, new: int = 24, **identity: object) -> AcceptanceSource:
    store = AcceptanceStore(folder)
    return AcceptanceSource(models.model, PROMPTS, new, store, {"target": "t", **identity})


def test_rows_are_what_the_engine_does(models: Models, tmp_path: Path) -> None:
    source = source_of(models, tmp_path)
    rows = source.rows(ABOUT, lambda: drafted(models), range(4))
    meter = AcceptanceMeter(models.model, PROMPTS, 24)
    wanted = meter.measure(drafted(models))
    assert [one.cycles for one in rows] == [len(one.accept_lengths) for one in wanted.made]
    assert [one.committed for one in rows] == [sum(one.accept_lengths) for one in wanted.made]
    assert [one.new_tokens for one in rows] == [len(one.token_ids) for one in wanted.made]
    assert [one.prompt_tokens for one in rows] == [len(prompt) for prompt in PROMPTS.prompts]
    assert sum(one.identical for one in rows) == wanted.identical
    assert accepted_length(rows) == wanted.length
    plain = source.plain()
    assert [one.new_tokens for one in plain] == [len(one.token_ids) for one in meter.plain()]
    assert [one.cycles for one in plain] == [one.new_tokens - 1 for one in plain]


def test_nothing_is_decoded_twice(models: Models, tmp_path: Path) -> None:
    first = source_of(models, tmp_path).rows(ABOUT, lambda: drafted(models), range(2))
    again = source_of(models, tmp_path)
    assert again.rows(ABOUT, lambda: pytest.fail("known"), range(2)) == first
    more = again.rows(ABOUT, lambda: drafted(models), range(4))
    assert more[:2] == first
    assert source_of(models, tmp_path).rows(ABOUT, lambda: pytest.fail("known"), range(4)) == more


@pytest.mark.parametrize("damage", ["cut", "row", "list"])
def test_a_damaged_file_is_told(tmp_path: Path, damage: str) -> None:
    store = AcceptanceStore(tmp_path)
    store.write("a" * 64, ABOUT, {"p": row(8, 3)})
    (file,) = tmp_path.glob("*.json")
    body = json.loads(file.read_text("utf-8"))
    if damage == "row":
        body["rows"]["p"]["cycles"] = -1
    if damage == "list":
        body = [body]
    text = json.dumps(body)
    file.write_text(text[:40] if damage == "cut" else text, "utf-8")
    with pytest.raises(ArtifactError, match="cannot be read"):
        store.read("a" * 64)
