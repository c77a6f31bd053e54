"""The ways of drafting that are searched: draft heads times draft trees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UsageError
from ..decode.method_spec import MethodSpec
from .types import TreeSetting

FULL = "full"


@dataclass(frozen=True)
class HeadChoice:
    """A draft head as a recipe asks for it.

    Attributes:
        name: behind which its trees are named.
        vocab, head, shortlist, budget, dynamic: as in :class:`~vocabforge.decode.method_spec.MethodSpec`.
    """

    name: str = FULL
    vocab: Path | None = None
    head: Path | None = None
    shortlist: int | None = None
    budget: str | None = None
    dynamic: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A draft head with a draft tree."""

    head: HeadChoice
    tree: TreeSetting

    @property
    def name(self) -> str:
        """Unique in a space, and fit for files: ``full+chain4``, ``r128+tree6x10x60`` (levels, width, nodes)."""
        tree = self.tree
        shape = (
            f"chain{tree.levels}" if tree.kind == "chain" else f"tree{tree.levels}x{tree.topk}x{tree.total}"
        )
        return f"{self.head.name}+{shape}"

    def recipe(self, drafter: Path) -> MethodSpec:
        """What ``eval --recipe`` runs."""
        head = self.head
        own = {
            "drafter": drafter,
            "vocab": head.vocab,
            "head": head.head,
            "shortlist": head.shortlist,
            "budget": head.budget,
            "dynamic": head.dynamic,
        }
        return self.tree.options.model_copy(update=own)


@dataclass(frozen=True)
class TreeGrid:
    """Sizes that trees are made of; combinations that are no tree are left out.

    Attributes:
        chains: draft tokens of chains.
        levels, topk, nodes: of dynamic trees; nodes count the root.
    """

    chains: tuple[int, ...] = (1, 2, 3, 4, 6)
    levels: tuple[int, ...] = (2, 4, 6)
    topk: tuple[int, ...] = (2, 4, 8)
    nodes: tuple[int, ...] = (8, 16, 32, 60)

    def __post_init__(self) -> None:
        for name in ("chains", "levels", "topk", "nodes"):
            sizes = getattr(self, name)
            if len(set(sizes)) != len(sizes) or any(size < 1 for size in sizes):
                raise UsageError(
                    "sizes of draft trees stand once each, from 1 up",
                    got=sizes,
                    expected="numbers from 1 up, each once",
                    source=name,
                )


def trees_of(grid: TreeGrid, most_levels: int | None = None) -> list[TreeSetting]:
    """Every tree of a grid, chains first.

    A dynamic tree of one child a node is a chain and is left out.

    Args:
        most_levels: levels that the drafter can fill; None where there is no bound.

    Raises:
        UsageError: nothing is left.
    """
    deep = most_levels or 1 << 30
    found = [TreeSetting.chain(size - 1) for size in sorted(grid.chains) if size <= deep]
    for levels in sorted(grid.levels):
        for topk in sorted(grid.topk):
            if levels <= deep and topk > 1:
                most = topk + (levels - 1) * topk**2 + 1
                fitting = [nodes for nodes in sorted(grid.nodes) if levels < nodes <= most]
                found += [TreeSetting(topk=topk, depth=levels - 1, total=nodes) for nodes in fitting]
    if not found:
        raise UsageError(
            "no draft tree can be made of these sizes",
            got=f"chains {grid.chains}, levels {grid.levels}, topk {grid.topk}, nodes {grid.nodes}",
            expected="levels below nodes, and nodes that levels and topk can fill"
            + (f", at most {most_levels} levels" if most_levels else ""),
        )
    return found


def candidates(heads: Mapping[HeadChoice, int], trees: Iterable[TreeSetting]) -> list[Candidate]:
    """Heads times trees that are no wider than the head.

    Args:
        heads: tokens that each scores.

    Raises:
        UsageError: two heads share a name, or there is no tree that fits.
    """
    names = [head.name for head in heads]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            "two draft heads have one name", got=", ".join(twice), remedy="name them: --vocab LABEL=DIR"
        )
    shapes = list(trees)
    found = [Candidate(head, tree) for head, size in heads.items() for tree in shapes if tree.topk <= size]
    if not found:
        raise UsageError(
            "every draft tree is wider than every draft head",
            got=f"topk of {min(tree.topk for tree in shapes)} and more",
            expected=f"at most {max(heads.values())}",
            remedy="give a smaller --topk",
        )
    return found


def spread(found: Sequence[Candidate]) -> list[Candidate]:
    """The same in an order whose every beginning covers the whole space evenly.

    Van der Corput's sequence in base 2 over the places, so that what a budget cuts off is no corner of the space.
    """
    bits = max(len(found) - 1, 1).bit_length()
    order = sorted(range(len(found)), key=lambda place: int(f"{place:0{bits}b}"[::-1], 2))
    return [found[place] for place in order]
