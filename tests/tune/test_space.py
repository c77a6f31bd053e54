"""The space of a search: every tree that there is and no other, names that tell candidates apart."""

from __future__ import annotations

import itertools

import pytest

from vocabforge.core.errors import UsageError
from vocabforge.decode.tree import TreeSettings
from vocabforge.tune.settings import MethodSpace
from vocabforge.tune.space import HeadChoice, TreeSetting, candidates, trees_of

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
    wanted = {(1, n, n + 1) for n in (depth + 1 for depth in SPACE.chains) if n <= deep} | {
        (topk, levels, nodes)
        for levels, topk, nodes in itertools.product((1, 2, 5), SPACE.topk, SPACE.nodes)
        if levels <= deep and possible(levels, topk, nodes)
    }
    found = [(tree.topk, tree.levels, tree.total) for tree in trees_of(SPACE, most)]
    assert set(found) == wanted
    assert len(found) == len(wanted)


def test_a_grid_without_a_tree_is_refused() -> None:
    with pytest.raises(UsageError, match="no draft tree"):
        trees_of(MethodSpace(tree="dynamic", depth="3", topk="2", total_nodes="3"))
    with pytest.raises(UsageError, match="given twice"):
        MethodSpace(topk="2,2")
    with pytest.raises(UsageError, match="does not search"):
        MethodSpace(tree="static")


def test_trees_are_no_wider_than_their_head() -> None:
    heads = {HeadChoice("full"): 261, HeadChoice("narrow"): 3}
    found = candidates(heads, trees_of(SPACE))
    widest = {
        name: max(one.tree.topk for one in found if one.head.name == name) for name in ("full", "narrow")
    }
    assert widest == {"full": 4, "narrow": 2}
    with pytest.raises(UsageError, match="wider"):
        candidates({HeadChoice("one"): 1}, [TreeSetting(topk=2, depth=1, total=5)])
