"""The space of a search: every tree that there is and no other, heads with their names and sizes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.tune.support import ROWS, make_place
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.heads.io import HeadOwner, save_head
from vocabforge.models.heads.scorer import LowRankScorer
from vocabforge.tune.run import TuneSession
from vocabforge.tune.settings import MethodSpace, TuneSettings
from vocabforge.tune.space import head_choices, methods_of, nodes_of, trees_of

SPACE = MethodSpace(depth="0,1,4", topk="1,2,4", total_nodes="2,6,8,40,60")


def possible(levels: int, topk: int, nodes: int) -> bool:
    """Whether the decoder itself takes this tree."""
    try:
        TreeSettings(topk, levels - 1, nodes)
    except UsageError:
        return False
    return topk > 1


@pytest.mark.parametrize("most", [None, 1, 2])
def test_the_grid_gives_every_tree_that_the_decoder_takes(most: int | None) -> None:
    deep = most or 99
    wanted = {(1, n, n + 1) for n in (1, 2, 5) if n <= deep} | {
        (topk, levels, nodes)
        for levels, topk, nodes in itertools.product((1, 2, 5), SPACE.topk, SPACE.total_nodes)
        if levels <= deep and possible(levels, topk, nodes)
    }
    trees = trees_of(SPACE, most).values()
    found = [(tree.topk or 1, (tree.depth or 0) + 1, nodes_of(tree)) for tree in trees]
    assert set(found) == wanted
    assert len(found) == len(wanted)
    assert all(tree.tree == "chain" for tree in trees_of(SPACE, most, chains_only=True).values())


def test_a_grid_without_a_tree_is_refused() -> None:
    with pytest.raises(UsageError, match="no draft tree"):
        trees_of(MethodSpace(tree="dynamic", depth="3", topk="2", total_nodes="3"))
    assert MethodSpace(topk="2,2").topk == (2,)
    with pytest.raises(ValueError, match="'chain' or 'dynamic'"):
        MethodSpace(tree="static")


def test_trees_are_no_wider_than_their_head() -> None:
    heads = {"full": MethodSpec(), "narrow": MethodSpec()}
    found = methods_of(Path("d"), heads, {"full": 261, "narrow": 3}, trees_of(SPACE))
    widest = {
        name: max(spec.topk or 1 for (head, _), spec in found.items() if head == name) for name in heads
    }
    assert widest == {"full": 4, "narrow": 2}
    wide = {"tree": MethodSpec(tree="dynamic", depth=1, topk=2, total_nodes=5)}
    with pytest.raises(UsageError, match="wider"):
        methods_of(Path("d"), heads, {"full": 1, "narrow": 1}, wide)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("space"))


def session_of(place: Path, space: MethodSpace) -> TuneSession:
    paths = {"target": place / "t", "drafter": place / "d", "prompts": str(place / "q.jsonl")}
    settings = TuneSettings(**paths, prompt_format="raw", device="cpu", max_new_tokens=8)
    return TuneSession(settings, space)


def test_every_head_has_a_name_and_its_settings(place: Path) -> None:
    space = MethodSpace(
        vocab=[f"v={place / 'v'}"], head=[f"r={place / 'r'}"], shortlist="16,64", dynamic=["context:24"]
    )
    heads = {head: spec for (head, _), spec in session_of(place, space).methods.items()}
    assert list(heads) == ["full", "v", "r-k16", "r-k64", "v+context24"]
    assert [heads[name].shortlist for name in heads] == [None, None, 16, 64, None]
    assert heads["v+context24"].dynamic == "context:24"


def test_heads_of_another_drafter_or_with_one_name_are_refused(place: Path, tmp_path: Path) -> None:
    owner = session_of(place, MethodSpace()).models.owner(place / "d")
    other = HeadOwner("0" * 64, owner.target, owner.tokenizer)
    save_head(tmp_path / "r", "ranker", LowRankScorer(32, ROWS, 8), other)
    with pytest.raises(MismatchError, match="another drafter"):
        session_of(place, MethodSpace(head=[str(tmp_path / "r")]))
    with pytest.raises(UsageError, match="one name"):
        head_choices(MethodSpace(vocab=[str(place / "v"), f"v={place / 'v'}"]))


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
