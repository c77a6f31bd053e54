"""N-gram drafting against a search of the whole text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decode.drafting import TokenPath, tree_paths
from vocabforge.core.errors import UsageError
from vocabforge.decode.interface import Commit, Plan
from vocabforge.decode.proposers.ngram import NgramIndex, NgramProposer, build
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree
from vocabforge.models.kv_cache import KVCache


def places(text: list[int], shortest: int, longest: int) -> list[int]:
    """Where suffixes of the text ended before: the longest first, the latest place first, each place once."""
    found: list[int] = []
    for n in range(longest, shortest - 1, -1):
        for place in range(len(text) - 2, n - 2, -1):
            if text[place - n + 1 : place + 1] == text[-n:] and place not in found:
                found.append(place)
    return found


def following(text: list[int], place: int, length: int) -> list[int]:
    """The continuation, drafted token by token: a draft behind the text's end is read as if it were text."""
    grown = list(text)
    for step in range(length):
        grown.append(grown[place + 1 + step])
    return grown[len(text) :]


def made(
    rows: int = 1, *, shortest: int = 1, longest: int = 3, length: int = 4, branches: int = 1
) -> NgramProposer:
    plan = Plan(length, length * branches + 1)
    proposer = NgramProposer(shortest, longest, plan, branches)
    proposer.allocate(rows, 64, KVCache(1, rows, 1, 8, 1, torch.float32, torch.device("cpu")))
    return proposer


def commit(*tokens: list[int]) -> Commit:
    counts = torch.tensor([len(one) for one in tokens])
    width = max(map(len, tokens))
    padded = torch.tensor([one + [77] * (width - len(one)) for one in tokens])
    return Commit(padded, None, counts, None, tokens)


def propose(proposer: NgramProposer, roots: list[int], plan: Plan | None = None) -> DraftTree:
    return proposer.propose(torch.tensor(roots), plan or proposer.plan, None, lambda part: None)


def paths(tree: DraftTree, row: int) -> list[TokenPath]:
    """Tokens below the root on the way to every living node."""
    alive = torch.ones_like(tree.tokens[row]) if tree.alive is None else tree.alive[row]
    found = [path for path, there in zip(tree_paths(tree, row), alive.tolist()) if there]
    assert tree.depths[row][alive.bool()].tolist() == [*map(len, found)]
    return found[1:]


TEXTS = st.lists(st.integers(0, 3), min_size=2, max_size=40)


@settings(max_examples=50, deadline=None)
@given(TEXTS, st.integers(1, 3), st.integers(0, 3), st.data())
def test_the_index_finds_what_a_search_finds(text, shortest, more, data):
    index = NgramIndex(shortest, shortest + more)
    done = 0
    while done < len(text):  # in pieces, looking in between
        step = data.draw(st.integers(1, len(text) - done))
        index.add(text[done : done + step])
        done += step
        assert list(index.matches()) == places(text[:done], shortest, shortest + more)
    for place in index.matches():
        assert index.continuation(place, 6) == following(text, place, 6)


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 3), st.data())
def test_chains_of_every_row(texts: list[list[int]], length: int, shortest: int, data: st.DataObject) -> None:
    proposer = made(len(texts), shortest=shortest, longest=shortest + 1, length=length)
    for row, text in enumerate(texts):
        proposer.begin(row, list(text))
    more = [data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4)) for _ in texts]
    proposer.commit(commit(*more))
    whole = [text + extra for text, extra in zip(texts, more)]
    plan = data.draw(st.sampled_from(proposer.plans()))
    tree = propose(proposer, [text[-1] for text in whole], plan)
    expected = []
    for text in whole:
        found = places(text, shortest, shortest + 1)
        draft = following(text, found[0], plan.levels) if found else []
        expected.append([tuple(draft[: n + 1]) for n in range(len(draft))])
    assert [paths(tree, row) for row in range(len(texts))] == expected
    assert tree.tokens.shape == (len(texts), plan.levels + 1 if any(expected) else 1)
    assert tree.tokens[:, 0].tolist() == [text[-1] for text in whole]
    assert tree.chain
    assert torch.equal(tree.ancestors, torch.ones_like(tree.ancestors).tril())


@settings(max_examples=50, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=2), st.integers(2, 4), st.data())
def test_trees_hold_the_first_different_continuations(texts, branches, data):
    proposer = made(len(texts), length=3, branches=branches)
    for row, text in enumerate(texts):
        proposer.begin(row, list(text))
    plan = Plan(3, data.draw(st.integers(5, 3 * branches + 1)))
    tree = propose(proposer, [text[-1] for text in texts], plan)
    for row, text in enumerate(texts):
        expected: list[TokenPath] = []
        kept: list[list[int]] = []
        for place in places(text, 1, 3)[: 4 * branches]:
            draft = following(text, place, 3)
            if draft not in kept and len(kept) < branches:
                kept.append(draft)
                expected += [one for n in (1, 2, 3) if (one := tuple(draft[:n])) not in expected]
        assert paths(tree, row) == expected[: plan.nodes - 1]
    if tree.tokens.shape[1] > 1:
        assert tree.tokens.shape[1] == plan.nodes
    assert not tree.chain or tree.tokens.shape[1] == 1


def test_rows_begin_anew_and_idle_rows_draft_nothing() -> None:
    proposer = made(2, length=1)
    proposer.begin(0, [1, 2, 1])
    proposer.begin(1, [3, 4, 3])
    proposer.commit(commit([2], []))  # the second row is idle
    tree = propose(proposer, [2, 0])
    assert [paths(tree, row) for row in (0, 1)] == [[(1,)], []]
    proposer.begin(1, [2, 9, 2])  # what stood in the row before is gone
    tree = propose(proposer, [2, 2])
    assert [paths(tree, row) for row in (0, 1)] == [[(1,)], [(9,)]]
    proposer.begin(1, [8, 3])
    assert paths(propose(proposer, [2, 3]), 1) == []


def build_with(**options: Any) -> NgramProposer:
    return build(ProposerParts(target=None, options=MethodSpec(**options)))  # type: ignore[arg-type]


def test_options() -> None:
    assert (build_with().shortest, build_with().longest) == (2, 4)
    assert build_with().plan == Plan(10, 11)
    chosen = build_with(ngram=(1, 2), depth=3, tree="chain")
    assert (chosen.shortest, chosen.longest, chosen.plan, chosen.branches) == (1, 2, Plan(4, 5), 1)
    assert chosen.plans() == [Plan(1, 2), Plan(2, 3), Plan(3, 4), Plan(4, 5)]
    tree = build_with(tree="dynamic", depth=3, topk=3, total_nodes=10)
    assert (tree.plan, tree.branches) == (Plan(4, 10), 3)
    assert tree.plans() == [Plan(1, 2), Plan(2, 5), Plan(3, 7), Plan(4, 10)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"draft_sampling": True}, "--draft-sampling"),
        ({"tree_file": "tree.json"}, "--tree-file"),
        ({"tree": "static"}, "--tree static"),
        ({"topk": 2}, "--topk"),
        ({"total_nodes": 9, "tree": "chain"}, "--total-nodes"),
        ({"ngram": (0, 2)}, "(0, 2)"),
        ({"ngram": (3, 2)}, "(3, 2)"),
        ({"tree": "dynamic", "depth": 3, "total_nodes": 4}, "4 nodes"),
        ({"tree": "dynamic", "depth": 0, "topk": 2, "total_nodes": 4}, "4 nodes"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_with(**options)
    assert named in str(caught.value)
