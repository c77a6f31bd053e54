"""A static draft vocabulary in place of a dynamic head."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import tiny_drafter
from tests.train.run_support import make_place
from vocabforge.core.errors import UsageError
from vocabforge.corpus.tokenizer import TextTokenizer, load_tokenizer
from vocabforge.decode.build_heads import NamedHead
from vocabforge.decode.proposers import tree_proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.evaluate.acceptance import AcceptanceMeter
from vocabforge.evaluate.fallback import Fallback, FallbackRequest, choose_fallback, split_prompts
from vocabforge.evaluate.fallback_counts import (
    UseCounts,
    WatchedHead,
    WatchedProposer,
    default_size,
    distinct,
    subset_ranking,
    weights_read,
)
from vocabforge.evaluate.fallback_report import card_section, facts_of, tables, verdict
from vocabforge.evaluate.live_prompts import LivePrompts
from vocabforge.export.revocab import prune_head
from vocabforge.models.head_io import HeadOwner, load_head, save_head
from vocabforge.models.heads import HeadOptions, base_of, build_head, exact_head
from vocabforge.models.lean import LeanModel, load_target
from vocabforge.models.low_rank import LowRankScorer
from vocabforge.models.router import Router
from vocabforge.models.target import HFTarget

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
    known = FallbackRequest(head, SIZE, (), (7, 250), tokenizer.vocab_size, tokenizer.fingerprint, NEW)
    return replace(known, **changes)


@pytest.fixture(scope="module")
def found(
    place: Path, model: LeanModel, drafter: Any, tokenizer: TextTokenizer, prompts: LivePrompts
) -> Fallback:
    vocabs = [("vocabulary mine", np.arange(200, 160, -1)), ("vocabulary short", np.array([9, 3, 5]))]
    return choose_fallback(model, drafter, prompts, request_of(place, tokenizer, vocabs=vocabs))


def test_rankings_are_by_count_then_probability_then_id() -> None:
    mass = np.array([0.1, 0.4, 0.1, 0.3, 0.1])
    counts = UseCounts(*(np.array(row) for row in ([0, 0, 2, 0, 5], [1] * 5, [0, 0, 0, 9, 0])), mass)
    found = {name: ranking.tolist() for name, ranking in counts.rankings().items()}
    assert found == {
        "accepted": [4, 2, 1, 3, 0],
        "proposed": [1, 3, 0, 2, 4],
        "target": [3, 1, 0, 2, 4],
        "probability": [1, 3, 0, 2, 4],
    }


def test_forced_ids_come_first_and_what_the_head_lacks_is_left_out() -> None:
    allowed = np.ones(6, dtype=np.bool_)
    allowed[2] = False
    ranking = np.array([2, 0, 5, 3, 1, 4])
    assert subset_ranking(ranking, 4, (4, 5), allowed).tolist() == [5, 4, 0, 3]
    assert subset_ranking(ranking[:3], 4, (4,), allowed).tolist() == [4, 0, 5], "a short list stays short"


def test_one_set_of_ids_is_measured_once() -> None:
    given = {"a": np.array([1, 2]), "b": np.array([2, 1]), "c": np.array([1, 3])}
    assert {name: ids.tolist() for name, ids in distinct(given).items()} == {"a = b": [1, 2], "c": [1, 3]}


@pytest.mark.parametrize(("read", "size"), [(80.9, 80), (87.0, 80), (7.9, 7), (0.3, 1)])
def test_default_sizes_read_no_more(read: float, size: int) -> None:
    assert default_size(read) == size


def test_weights_are_counted_in_rows_of_the_head(drafter: Any) -> None:
    base, width = base_of(drafter), 32
    scorer = LowRankScorer(width, VOCAB, 4)
    ranker = build_head("ranker", base, scorer, HeadOptions(shortlist=12))
    assert weights_read(ranker, scorer, width) == 4 * (width + VOCAB) / width + 12
    low = build_head("low-rank", base, scorer)
    assert weights_read(low, scorer, width) == 4 * (width + VOCAB) / width
    router = Router(width, torch.arange(VOCAB) % 8, 8, 16, 1)
    head = build_head("router", base, router, HeadOptions(budgets=(2,)))
    own = sum(parameter.numel() for parameter in router.parameters())
    assert weights_read(head, router, width) == pytest.approx(own / width + round(2 * VOCAB / 8))


def test_counting_changes_nothing_and_counts_what_was_drafted(
    model: LeanModel, drafter: Any, prompts: LivePrompts
) -> None:
    meter = AcceptanceMeter(model, prompts, NEW)
    base = base_of(drafter)
    plainly = meter.measure(tree_proposer(model, drafter, exact_head(drafter), TREE))
    head = WatchedHead(exact_head(drafter), base)
    watched = WatchedProposer(tree_proposer(model, drafter, head, TREE), VOCAB)
    again = meter.measure(watched)
    assert [one.token_ids for one in again.made] == [one.token_ids for one in plainly.made]
    assert again.committed == plainly.committed
    assert watched.proposed.sum() == sum(one.drafted for one in again.made) > 0
    assert watched.accepted.sum() == sum(again.committed) - sum(again.cycles) > 0
    assert (watched.accepted <= watched.proposed).all()
    steps = sum(one.drafted_levels[at] for one in again.made for at in range(len(one.drafted_levels)))
    assert head.mass(VOCAB).sum() == pytest.approx(steps, rel=1e-5), "one a draft step"


def test_the_parts_share_no_prompt_and_take_turns() -> None:
    prompts = LivePrompts([[n] for n in (1, 2, 3, 1, 4, 5, 6, 2)], (0,))
    parts = [list(part.prompts) for part in split_prompts(prompts)]
    assert parts == [[(1,), (4,)], [(2,), (5,)], [(3,), (6,)]]
    with pytest.raises(UsageError, match="too few prompts") as error:
        split_prompts(LivePrompts([[n % 5] for n in range(20)], (0,)))
    assert "5 different prompts" in str(error.value)


def test_the_best_candidate_of_its_part_is_chosen(found: Fallback) -> None:
    lengths = {one.name: one.accepted.length.value for one in found.candidates}
    names = [part for name in lengths for part in name.split(" = ")]
    assert sorted(names) == sorted(
        [
            *("accepted", "proposed", "target", "probability"),
            *("vocabulary mine", "vocabulary short"),
            *("target, then vocabulary mine", "target, then vocabulary short"),
        ]
    )
    assert lengths[found.name] == max(value for value in lengths.values() if value is not None)
    chosen = next(one for one in found.candidates if one.name == found.name)
    assert found.subset.ranked.tolist() == chosen.ranked.tolist()
    for one in found.candidates:
        assert {7, 250} <= set(one.ranked.tolist())
        assert len(set(one.ranked.tolist())) == SIZE
    ranked = {name: one.ranked.tolist() for one in found.candidates for name in one.name.split(" = ")}
    assert ranked["vocabulary mine"][2:] == list(range(200, 178, -1))
    assert ranked["vocabulary short"][2:5] == [9, 3, 5], "three ids of its own, filled up"
    assert set(ranked["vocabulary short"][5:]) <= set(ranked["accepted"])
    behind = ranked["target, then vocabulary mine"][2:]
    mine = [token for token in behind if token in range(161, 201) and token not in ranked["target"]]
    assert behind[-len(mine) :] == mine == sorted(mine, reverse=True) != []
    assert behind[: -len(mine)] == ranked["target"][2:][: len(behind) - len(mine)]
    assert found.subset.forced == (7, 250)


def test_figures_are_those_of_the_pruned_drafter(
    found: Fallback, model: LeanModel, drafter: Any, prompts: LivePrompts, place: Path
) -> None:
    part = split_prompts(prompts)[2]
    meter = AcceptanceMeter(model, part, NEW)
    pruned = prune_head(drafter, found.subset, source="s")
    static = meter.measure(tree_proposer(model, pruned, exact_head(pruned), found.tree))
    assert (static.committed, static.cycles) == (found.static.committed, found.static.cycles)
    own = meter.measure(tree_proposer(model, drafter, exact_head(drafter), found.tree))
    assert (own.committed, own.cycles) == (found.own.committed, found.own.cycles)
    scorer = load_head(place / "ranker").module
    head = build_head("ranker", base_of(drafter), scorer, HeadOptions(shortlist=12))
    dynamic = meter.measure(tree_proposer(model, drafter, head, found.tree))
    assert (dynamic.committed, dynamic.cycles) == (found.dynamic.committed, found.dynamic.cycles)
    for theirs, share in ((found.own, found.of_own), (found.dynamic, found.of_dynamic)):
        assert found.static.length.value is not None
        assert theirs.length.value is not None
        assert share.value == pytest.approx(found.static.length.value / theirs.length.value) != 1.0
        assert share.low is not None
        assert share.high is not None
        assert share.low <= share.value <= share.high
    assert all(part.identical == part.prompts for part in (found.static, found.own, found.dynamic))


def test_the_default_size_is_that_of_the_weights_read(
    place: Path, model: LeanModel, drafter: Any, tokenizer: TextTokenizer, prompts: LivePrompts
) -> None:
    found = choose_fallback(model, drafter, prompts, request_of(place, tokenizer, size=None, new=4))
    assert len(found.subset) == int(4 * (32 + VOCAB) / 32 + 12) // 8 * 8 == 48
    assert found.rule == "as many rows as the dynamic head reads weights for one hidden row"


@pytest.mark.parametrize("size", [2, VOCAB, 999])
def test_sizes_that_restrict_nothing_or_hold_nothing_are_refused(
    place: Path, model: LeanModel, drafter: Any, tokenizer: TextTokenizer, prompts: LivePrompts, size: int
) -> None:
    with pytest.raises(UsageError, match="no size for a static fallback") as error:
        choose_fallback(model, drafter, prompts, request_of(place, tokenizer, size=size))
    assert f"3 to {tokenizer.vocab_size - 1}" in str(error.value)


def test_what_it_costs_is_told_everywhere(found: Fallback) -> None:
    from rich.console import Console

    facts = facts_of(found)
    length = f"{found.static.length.value:.2f}"
    out = Console(width=100, record=True, file=io.StringIO())
    for table in tables(facts):
        out.print(table)
    shown = out.export_text()
    assert shown.count("(chosen)") == 1
    assert length in shown
    card = card_section(facts)
    assert f"| static fallback | {len(found.subset)} | {length} [" in card
    assert "| dynamic head | – |" in card
    assert f"{found.of_dynamic.value:.2f} [" in verdict(facts)
    assert verdict(facts) in card
