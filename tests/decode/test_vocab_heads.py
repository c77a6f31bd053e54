"""Draft heads over a draft vocabulary, as users ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models.head_cases import RANKED, VOCAB, make_base, make_module
from vocabforge.core.errors import ArtifactError, MismatchError, UsageError
from vocabforge.decode.build.heads import BuiltHead, draft_vocabulary, parse_dynamic, spec_head
from vocabforge.decode.spec import DraftVocabulary, MethodSpec
from vocabforge.models.heads.io import HeadOwner, load_head, save_head
from vocabforge.models.heads.registry import HeadBase, HeadOptions, build_head
from vocabforge.models.heads.router import Router
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.vocab.subset.subset import VocabSubset, save_subset

OWNER = HeadOwner("d" * 64, "t" * 64, "k" * 64)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draft vocabularies ``core`` and ``pafr`` (with a schedule), and trained heads ``r`` and ``l``."""
    place = tmp_path_factory.mktemp("vocab-heads")
    ranked = np.array(RANKED, dtype=np.int64)
    for name, schedule in (("core", ()), ("pafr", (20, 20, 8))):
        subset = VocabSubset(np.sort(ranked), ranked, VOCAB, "k" * 64, schedule=schedule)
        save_subset(subset, place / name)
    save_head(place / "r", "ranker", make_module("ranker"), OWNER, {"shortlist": 30})
    save_head(place / "l", "low-rank", make_module("low-rank"), OWNER)
    return place


def built(place: Path, base: HeadBase, fingerprint: str | None = None, **asked: Any) -> BuiltHead:
    """The head of a spec whose vocabulary and trained head are named as in ``place``."""
    trained = (
        None if "head" not in asked else load_head(place / asked["head"], device="cpu", dtype=torch.float32)
    )
    paths = {name: place / asked[name] for name in ("vocab", "head") if name in asked}
    found = spec_head(base, MethodSpec(**{**asked, **paths}), trained, fingerprint)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("asked", "kind", "text"),
    [
        ({"vocab": "core"}, "StaticHead", "draft vocabulary of 20 tokens"),
        ({"vocab": "pafr"}, "ScheduledHead", "scheduled head over 20 tokens, tokens by draft step 20 20 8"),
        (
            {"head": "r", "head_rows": "shared"},
            "RankerHead",
            "ranker head over 97 tokens, shortlist of 30, shared rows",
        ),
        ({"head": "l"}, "LowRankHead", "low-rank head over 97 tokens"),
        (
            {"vocab": "core", "dynamic": "context:30"},
            "ContextHead",
            "context head over 97 tokens, hot core of 20, up to 30 of the text",
        ),
    ],
)
def test_every_head_that_can_be_asked_for(place: Path, asked: dict[str, Any], kind: str, text: str) -> None:
    found = built(place, make_base(), "k" * 64, **asked)
    assert (type(found.head).__name__, found.text, found.extra) == (kind, text, kind != "StaticHead")
    assert spec_head(make_base(), MethodSpec()) is None


def test_a_core_of_a_reduced_head_loses_the_ids_without_a_row(place: Path) -> None:
    """As a draft vocabulary of its own it is refused."""
    ids = torch.arange(1, VOCAB, 3)
    base = make_base(ids)
    known = len(set(ids.tolist()) & set(RANKED))
    with pytest.raises(
        MismatchError, match=rf"(?s)not score every token.*{20 - known} ids without a row.*prune"
    ):
        built(place, base, vocab="core")
    assert built(place, base, vocab="core", dynamic="context").head.core_size == known


@pytest.mark.parametrize("text", ["", "router", "context:", "context:0", "context:x", "context:1:2"])
def test_dynamic_sources_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_dynamic(text)


def test_mistakes_are_told(place: Path) -> None:
    base = make_base()
    with pytest.raises(UsageError, match=r"(?s)ranker was removed.*--head without --vocab"):
        parse_dynamic("ranker:5")
    with pytest.raises(MismatchError, match="different tokenizers"):
        built(place, base, "x" * 64, vocab="core")
    with pytest.raises(ArtifactError):
        built(place, base, vocab="r")


ROWS, WIDTH = 96, 16
EVEN = tuple(range(0, 80, 2))


def small_base() -> HeadBase:
    weight = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    return HeadBase(weight, torch.arange(ROWS), weight)


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        ("full", HeadOptions(), ROWS),
        ("scheduled", HeadOptions(ranked=EVEN, schedule=(40, 20, 10)), 20),  # 40, 20, 10, 10 over four steps
        ("context", HeadOptions(ranked=EVEN, context=24), 64),
        ("context", HeadOptions(ranked=EVEN, context=90), ROWS),  # no more than there are
        ("ranker", HeadOptions(shortlist=12), 12),
        ("low-rank", HeadOptions(), ROWS),
        ("router", HeadOptions(budgets=(4, 2)), 30),  # clusters of 12: 48, 24, 24, 24
    ],
)
def test_the_tokens_scored_are_the_mean_over_the_steps(kind, options, expected):
    modules = {
        "ranker": lambda: LowRankScorer(WIDTH, ROWS, 4),
        "low-rank": lambda: LowRankScorer(WIDTH, ROWS, 4),
        "router": lambda: Router(WIDTH, torch.arange(ROWS) % 8, 8),
    }
    head = build_head(kind, small_base(), modules[kind]() if kind in modules else None, options)
    assert draft_vocabulary(head, 4, 128) == DraftVocabulary(kind, expected, 128)
