"""A static draft vocabulary in place of a dynamic head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.run_support import make_place
from tests.worlds import tiny_drafter
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from vocabforge.decode.build.heads import NamedHead
from vocabforge.decode.proposers.registry import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.evaluate.acceptance.fallback import (
    FallbackRequest,
    card_section,
    choose_fallback,
    choose_ids,
    split_prompts,
    verdict,
)
from vocabforge.evaluate.acceptance.meter import AcceptanceMeter
from vocabforge.evaluate.acceptance.prompts import LivePrompts
from vocabforge.export.revocab import prune_head
from vocabforge.models.heads.io import HeadOwner, load_head, save_head
from vocabforge.models.heads.registry import HeadOptions, base_of, build_head, exact_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.models.lean.model import LeanModel, load_target
from vocabforge.models.target.hf import HFTarget
from vocabforge.vocab.subset.subset import VocabSubset

OWNER = HeadOwner("d" * 64, "t" * 64, "k" * 64)
SIZE, NEW, VOCAB = 24, 10, 261
TREE = TreeSettings(4, 2, 12)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("fallback"))
    torch.manual_seed(5)
    scorer = LowRankScorer(32, VOCAB, 4)
    save_head(place / "ranker", "ranker", scorer, OWNER, {"shortlist": 12})
    return place


@pytest.fixture(scope="module")
def model(place: Path) -> LeanModel:
    return load_target(place / "target")


@pytest.fixture(scope="module")
def drafter(place: Path) -> Any:
    return tiny_drafter(HFTarget.load(place / "target"))


@pytest.fixture(scope="module")
def tokenizer(place: Path) -> TextTokenizer:
    return load_tokenizer(place / "target")


@pytest.fixture(scope="module")
def prompts(tokenizer: TextTokenizer) -> LivePrompts:
    texts = ["the cat", "a mat and", "one dog ran", "to the red", "house while", "rain fell over"]
    return LivePrompts([tokenizer.encode(text) for text in texts], tokenizer.eos_ids)


def request_of(place: Path, tokenizer: TextTokenizer, **changes: Any) -> FallbackRequest:
    head = NamedHead("head", place / "ranker", load_head(place / "ranker"), HeadOptions(shortlist=12))
    known = FallbackRequest(head, SIZE, None, (7, 250), tokenizer.vocab_size, tokenizer.fingerprint, NEW)
    return replace(known, **changes)


@pytest.fixture(scope="module")
def found(
    place: Path, model: LeanModel, drafter: Any, tokenizer: TextTokenizer, prompts: LivePrompts
) -> tuple[VocabSubset, dict[str, Any]]:
    request = request_of(place, tokenizer, filler=np.arange(200, 160, -1))
    return choose_fallback(model, drafter, prompts, request)


def test_ids_are_forced_ones_then_answers_then_the_filler_as_far_as_the_head_has_them() -> None:
    counts, allowed = np.array([0, 2, 0, 0, 3, 0]), np.ones(6, dtype=np.bool_)
    assert choose_ids(counts, None, (), allowed, 6).tolist() == [4, 1, 0, 2, 3, 5]
    assert choose_ids(counts, np.array([5, 4, 2]), (3,), allowed, 5).tolist() == [3, 4, 1, 5, 2]
    allowed[4] = False
    assert choose_ids(counts, None, (5,), allowed, 3).tolist() == [5, 1, 0]


def test_the_halves_share_no_prompt_and_take_turns() -> None:
    prompts = LivePrompts([[n] for n in (1, 2, 3, 1, 4, 5, 6, 2)], (0,))
    halves = [list(half.prompts) for half in split_prompts(prompts)]
    assert halves == [[(1,), (3,), (5,)], [(2,), (4,), (6,)]]
    with pytest.raises(UsageError, match="too few prompts") as error:
        split_prompts(LivePrompts([[n % 3] for n in range(20)], (0,)))
    assert "3 different prompts" in str(error.value)


def test_the_answers_tokens_come_first(
    found: tuple[VocabSubset, dict[str, Any]], model: LeanModel, prompts: LivePrompts
) -> None:
    subset, facts = found
    ranked = subset.ranked.tolist()
    assert len(set(ranked)) == facts["size"] == SIZE
    assert sorted(ranked[:2]) == [7, 250]
    assert subset.forced == (7, 250)
    meter = AcceptanceMeter(model, split_prompts(prompts)[0], NEW)
    answers = {token for one in meter.plain() for token in one.token_ids} - {7, 250}
    assert set(ranked[2 : 2 + len(answers)]) == answers


def test_figures_are_those_of_the_pruned_drafter(
    found: tuple[VocabSubset, dict[str, Any]],
    model: LeanModel,
    drafter: Any,
    prompts: LivePrompts,
    place: Path,
) -> None:
    subset, facts = found
    meter = AcceptanceMeter(model, split_prompts(prompts)[1], NEW)
    pruned = prune_head(drafter, subset, source="s")
    tree = TreeSettings(**facts["tree"])
    static = meter.measure(tree_proposer(model, pruned, exact_head(pruned), tree))
    scorer = load_head(place / "ranker").module
    head = build_head("ranker", base_of(drafter), scorer, HeadOptions(shortlist=12))
    dynamic = meter.measure(tree_proposer(model, drafter, head, tree))
    assert facts["accepted_length"] == {"dynamic": dynamic.length.value, "static": static.length.value}
    kept = facts["of_dynamic"]
    assert kept["value"] == pytest.approx((static.length.value or 0) / (dynamic.length.value or 1)) != 1.0
    assert kept["low"] <= kept["value"] <= kept["high"]
    assert f"{kept['value']:.2f} (" in verdict(facts)
    assert verdict(facts) in card_section(facts)


@pytest.mark.parametrize("size", [2, VOCAB, 999])
def test_sizes_that_restrict_nothing_or_hold_nothing_are_refused(
    place: Path, model: LeanModel, drafter: Any, tokenizer: TextTokenizer, prompts: LivePrompts, size: int
) -> None:
    with pytest.raises(UsageError, match="no size for a static fallback") as error:
        choose_fallback(model, drafter, prompts, request_of(place, tokenizer, size=size))
    assert f"3 to {tokenizer.vocab_size - 1}" in str(error.value)
