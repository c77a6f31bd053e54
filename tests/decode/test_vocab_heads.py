"""Draft heads over a draft vocabulary, as users ask for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.head_cases import HIDDEN, RANKED, VOCAB, make_base, make_context, make_module
from tests.support import tiny_target
from vocabforge.cli.head_options import HeadOptions, HeadUseOptions, OneHeadOptions, Rows, check_one_way
from vocabforge.core.errors import ArtifactError, MismatchError, UsageError
from vocabforge.decode.build_heads import HeadRequest, heads_of, load_heads
from vocabforge.decode.build_vocab_heads import Dynamic, heads_for, parse_dynamic
from vocabforge.models.head_io import HeadOwner, save_head
from vocabforge.models.heads import (
    ContextHead,
    DraftState,
    HybridHead,
    ScheduledHead,
    StaticHead,
    base_of_model,
    exact_head_of,
)
from vocabforge.models.lean import load_target
from vocabforge.vocab.subset import VocabSubset, save_subset

OWNER = HeadOwner("d" * 64, "t" * 64, "k" * 64)
CPU = {"steps": 3, "device": torch.device("cpu"), "dtype": torch.float32}


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


def named(place: Path, request: HeadRequest, names: str):
    heads = load_heads(request, [(name, place / name) for name in names], **CPU)
    return heads_of(heads, {Path("a"): OWNER})[Path("a")]


def test_a_vocabulary_with_a_schedule_drafts_with_it(place: Path) -> None:
    base = make_base()
    static, scheduled = (
        one.head
        for one in heads_for(base, [(name, place / name) for name in ("core", "pafr")], [], None, "k" * 64)
    )
    assert isinstance(static, StaticHead)
    assert isinstance(scheduled, ScheduledHead)
    assert torch.equal(static.target_ids, torch.tensor(sorted(RANKED)))
    assert torch.equal(static.weight, base.weight[torch.tensor(sorted(RANKED))])
    assert scheduled.sizes == (20, 20, 8)
    tokens = torch.zeros(1, dtype=torch.int64)
    late = DraftState(2, tokens, torch.zeros(1, HIDDEN))
    assert scheduled.scores(torch.randn(1, HIDDEN), 1, late)[1].tolist() == sorted(RANKED[:8])


def test_all_heads_of_a_run_in_order_of_what_was_asked(place: Path) -> None:
    request = HeadRequest(dynamic=("context:30", "ranker"), rows="shared")
    base, vocabs = make_base(), [("core", place / "core"), ("pafr", place / "pafr")]
    found = heads_for(base, vocabs, named(place, request, "rl"), request, "k" * 64)
    assert [(one.label, type(one.head).__name__, one.extra) for one in found] == [
        ("core", "StaticHead", False),
        ("pafr", "ScheduledHead", True),
        ("r", "RankerHead", True),
        ("l", "LowRankHead", True),
        ("core+context", "ContextHead", True),
        ("core+r", "HybridHead", True),
        ("pafr+context", "ContextHead", True),
        ("pafr+r", "HybridHead", True),
    ]
    assert [one.text for one in found[:6]] == [
        "draft vocabulary of 20 tokens",
        "scheduled head over 20 tokens, tokens by draft step 20 20 8",
        "ranker head over 97 tokens, shortlist of 30, shared rows",
        "low-rank head over 97 tokens",
        "context head over 97 tokens, hot core of 20, up to 30 of the text",
        "hybrid head over 97 tokens, hot core of 20, tail of 512 from a ranker, shared rows",
    ]


def test_a_core_of_a_reduced_head_loses_the_ids_without_a_row(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a draft vocabulary of its own it is refused."""
    ids = torch.arange(1, VOCAB, 3)
    base, core = make_base(ids), [("core", place / "core")]
    known = len(set(ids.tolist()) & set(RANKED))
    with pytest.raises(
        MismatchError, match=rf"(?s)not score every token.*{20 - known} ids without a row.*prune"
    ):
        heads_for(base, core, [])
    found = heads_for(base, core, [], HeadRequest(dynamic=("context",)))
    assert [(one.label, one.head.core_size) for one in found] == [("core+context", known)]
    assert (
        f"hot core only, less the ids that the drafter's head lacks ({20 - known}" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("context", Dynamic("context")),
        ("context:7", Dynamic("context", 7)),
        ("ranker:512", Dynamic("ranker", 512)),
    ],
)
def test_dynamic_sources(text: str, expected: Dynamic) -> None:
    assert parse_dynamic(text) == expected


@pytest.mark.parametrize(
    "text", ["", "router", "context:", "context:0", "context:x", "ranker:-1", "ranker:1:2"]
)
def test_dynamic_sources_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_dynamic(text)


def test_mistakes_are_told(place: Path) -> None:
    base, core = make_base(), [("core", place / "core")]
    with pytest.raises(UsageError, match="did you mean context"):
        parse_dynamic("contxt:5")
    with pytest.raises(UsageError, match="--vocab DIR"):
        heads_for(base, [], [], HeadRequest(dynamic=("context",)))
    with pytest.raises(UsageError, match=r"(?s)from a ranker.*l \(low-rank\)"):
        named(place, HeadRequest(dynamic=("ranker",)), "l")
    with pytest.raises(UsageError, match="one source twice"):
        named(place, HeadRequest(dynamic=("context", "context:4")), "r")
    request = HeadRequest(dynamic=(f"ranker:{VOCAB + 1}",))
    ranker = named(place, request, "r")
    with pytest.raises(UsageError, match=rf"(?s)larger than the vocabulary.*at most {VOCAB}.*--dynamic"):
        heads_for(base, core, ranker, request)
    with pytest.raises(MismatchError, match="different tokenizers"):
        heads_for(base, core, [], None, "x" * 64)
    with pytest.raises(ArtifactError):
        heads_for(base, [("r", place / "r")], [])
    with pytest.raises(UsageError, match="--dynamic ranker with both"):
        check_one_way(place / "core", place / "r", None)
    with pytest.raises(UsageError, match="--dynamic context"):
        check_one_way(place / "core", place / "r", "context:3")
    with pytest.raises(UsageError, match="--vocab DIR"):
        check_one_way(None, place / "r", "ranker")
    check_one_way(place / "core", place / "r", "ranker")
    check_one_way(place / "core", None, "context")


def test_the_options_reach_the_request() -> None:
    use = HeadUseOptions(shortlist=3, budget="4", head_rows=Rows.shared)
    options = HeadOptions(head=["a"], use=use, dynamic=["context"])
    assert options.request() == HeadRequest(("a",), 3, "4", "shared", ("context",))
    assert HeadOptions(use=HeadUseOptions()).request() == HeadRequest()
    one = OneHeadOptions(head=Path("a"), use=HeadUseOptions(ranker_fp8=True))
    assert one.as_many().request() == HeadRequest(("a",), fp8=True)


@pytest.mark.parametrize("fp8", [True, None])
def test_a_ranker_in_8_bits(place, fp8) -> None:
    """A ranker alone and as the tail of a hybrid head; both say so."""
    request = HeadRequest([str(place / "r")], dynamic=("ranker",), fp8=fp8)
    loaded = named(place, request, "r")
    found = heads_for(make_base(), [("core", place / "core")], loaded, request)
    assert [("scorer in 8 bits" in one.text) for one in found] == [False, bool(fp8), bool(fp8)]
    with pytest.raises(UsageError, match="--ranker-fp8 means nothing here"):
        named(place, HeadRequest([str(place / "l")], fp8=True), "l")


@torch.inference_mode()
def test_every_head_stands_over_a_language_model(tmp_path: Path, place: Path) -> None:
    """A draft model, or the target of an early exit."""
    model = load_target(tiny_target(tmp_path / "t", vocab_size=VOCAB))
    base = base_of_model(model)
    assert torch.equal(base.weight, model.lm_head_weight)
    assert exact_head_of(base).size == VOCAB
    request = HeadRequest(dynamic=("context:25",))
    heads = heads_for(base, [("core", place / "core"), ("pafr", place / "pafr")], [], request)
    hidden = torch.randn(6, model.config.hidden_size)
    state = DraftState(1, torch.zeros(6, dtype=torch.int64), hidden, 2, make_context(2))
    full = torch.nn.functional.linear(hidden, model.lm_head_weight)
    for one in heads:
        logits, ids = one.head.scores(hidden, 3, state)
        expected = full.gather(-1, ids.expand(logits.shape))
        inside = logits.isfinite()
        torch.testing.assert_close(logits[inside], expected[inside], rtol=0, atol=1e-4)
        assert one.head.topk(hidden, 3, state)[1].shape == (6, 3)
    assert isinstance(heads[2].head, ContextHead)
    assert not any(isinstance(one.head, HybridHead) for one in heads)
