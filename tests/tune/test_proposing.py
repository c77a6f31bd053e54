"""A candidate drafts exactly as its recipe does, whatever the head."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tune.support import ROWS, make_place
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.decode.build.models import Models
from vocabforge.models.heads.io import HeadOwner, save_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.tune.results import scores_of
from vocabforge.tune.session import TuneSession
from vocabforge.tune.settings import MethodSpace, TuneSettings
from vocabforge.tune.space import head_choices

PROMPT = list(range(70, 90))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("proposing"))


@pytest.fixture(scope="module")
def models(place: Path) -> Models:
    return Models(place / "t", device="cpu")


def space_of(place: Path) -> MethodSpace:
    return MethodSpace(
        vocab=[f"v={place / 'v'}"],
        head=[f"r={place / 'r'}"],
        shortlist="16,64",
        dynamic=["context:24", "ranker:8"],
    )


def session_of(place: Path, space: MethodSpace, output: Path) -> TuneSession:
    settings = TuneSettings(
        target=place / "t",
        drafter=place / "d",
        prompts=str(place / "q.jsonl"),
        prompt_format="raw",
        device="cpu",
        max_new_tokens=8,
    )
    return TuneSession(output, settings, space)


def test_every_head_has_a_name_and_its_sizes(place: Path, tmp_path: Path) -> None:
    session = session_of(place, space_of(place), tmp_path)
    choices = session.choices
    assert [one.name for one in choices] == ["full", "v", "r-k16", "r-k64", "v+context24", "v+r8"]
    scores = [scores_of(session.head(one)) for one in choices]
    assert scores[:4] == [f"full {ROWS}", "static 50", "ranker 16", "ranker 64"]
    assert [text.split()[0] for text in scores[4:]] == ["context", "hybrid"]


def test_a_head_of_another_drafter_is_refused(place: Path, models: Models, tmp_path: Path) -> None:
    owner = models.owner(place / "d")
    other = HeadOwner("0" * 64, owner.target, owner.tokenizer)
    save_head(tmp_path / "r", "ranker", LowRankScorer(32, ROWS, 8), other)
    with pytest.raises(MismatchError, match="another drafter"):
        session_of(place, MethodSpace(head=[str(tmp_path / "r")]), tmp_path / "out")


@pytest.mark.parametrize(
    "given",
    [
        {"shortlist": "8"},
        {"budget": "4", "head": ["r"]},
        {"dynamic": ["ranker"], "vocab": ["v"]},
        {"dynamic": ["context"]},
    ],
)
def test_options_without_a_use_are_refused(place: Path, given: dict) -> None:
    for name in {"head", "vocab"} & set(given):
        given = {**given, name: [str(place / one) for one in given[name]]}
    with pytest.raises(UsageError):
        head_choices(MethodSpace(**given))
