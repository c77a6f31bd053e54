"""The searched methods: draft heads times draft trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.artifact import open_artifact
from ..core.errors import UsageError
from ..decode.build.heads import parse_dynamic
from ..decode.spec import MethodSpec
from .settings import MethodSpace

FULL = "full"


@dataclass(frozen=True)
class HeadChoice:
    """A draft head: its name, and the fields of a method that select it."""

    name: str = FULL
    spec: MethodSpec = field(default_factory=MethodSpec)


@dataclass(frozen=True)
class TreeSetting:
    """A draft tree; with one child per node a chain.

    Attributes:
        topk: children per node.
        depth: rounds after the root's expansion; the tree has depth + 1 levels.
        total: number of verified nodes, including the root.
    """

    topk: int
    depth: int
    total: int

    @classmethod
    def chain(cls, depth: int) -> TreeSetting:
        """Return a chain of depth + 1 draft tokens."""
        return cls(topk=1, depth=depth, total=depth + 2)

    @property
    def levels(self) -> int:
        """Number of levels below the root."""
        return self.depth + 1

    @property
    def options(self) -> MethodSpec:
        """Return the fields of a method that select this tree."""
        if self.topk == 1:
            return MethodSpec(tree="chain", depth=self.depth)
        return MethodSpec(tree="dynamic", depth=self.depth, topk=self.topk, total_nodes=self.total)

    @property
    def label(self) -> str:
        """Label that is valid in file names: ``chain4``, ``tree6x10x60`` (levels, width, nodes)."""
        return f"chain{self.levels}" if self.topk == 1 else f"tree{self.levels}x{self.topk}x{self.total}"


@dataclass(frozen=True)
class TuneCandidate:
    """A draft head with a draft tree."""

    head: HeadChoice
    tree: TreeSetting

    @property
    def name(self) -> str:
        """Name that is unique in a space and valid in file names: ``full+chain4``, ``r128+tree6x10x60``."""
        return f"{self.head.name}+{self.tree.label}"

    def recipe(self, drafter: Path) -> MethodSpec:
        """Return the method for ``eval --recipe``, with this size in every cycle, as measured."""
        own = {**self.tree.options.given(), "drafter": drafter, "control": "fixed"}
        return self.head.spec.model_copy(update=own)


def head_choices(space: MethodSpace, own: str = FULL) -> list[HeadChoice]:
    """Return every draft head of a search, the drafter's own (``own``) first.

    Raises:
        ArtifactError: a folder has no draft head.
        UsageError: an option does not apply to any of the heads.
    """
    kinds = {path: str(open_artifact(path, verify=False).meta.get("head")) for _, path in space.heads}
    rankers = [one for one in space.dynamic if one.startswith("ranker")]
    for name, given, kind in (
        ("--shortlist", space.shortlists, "ranker"),
        ("--budget", space.budgets, "router"),
        ("--dynamic ranker", rankers, "ranker"),
    ):
        if given and kind not in kinds.values():
            remedy = "the time for measuring is --seconds" if name == "--budget" else None
            raise UsageError(
                f"{name} has no effect here", got=list(given), expected=f"--head with a {kind}", remedy=remedy
            )
    if space.dynamic and not space.vocabs:
        raise UsageError("--dynamic adds tokens to a draft vocabulary", expected="--vocab DIR")
    found = [HeadChoice(own), *(HeadChoice(label, MethodSpec(vocab=path)) for label, path in space.vocabs)]
    for label, path in space.heads:
        if kinds[path] == "ranker" and space.shortlists:
            sizes = {f"{label}-k{k}": MethodSpec(head=path, shortlist=k) for k in space.shortlists}
        elif kinds[path] == "router" and space.budgets:
            words = [(text, text.replace(":", "-")) for text in space.budgets]
            sizes = {f"{label}-b{word}": MethodSpec(head=path, budget=text) for text, word in words}
        else:
            sizes = {label: MethodSpec(head=path)}
        found += [HeadChoice(name, spec) for name, spec in sizes.items()]
    for text in space.dynamic:
        what, tail = parse_dynamic(text), text.replace(":", "")
        for label, vocab in space.vocabs:
            if what.source == "context":
                found.append(HeadChoice(f"{label}+{tail}", MethodSpec(vocab=vocab, dynamic=text)))
                continue
            for name, path in space.heads:
                if kinds[path] == "ranker":
                    spec = MethodSpec(vocab=vocab, head=path, dynamic=text)
                    found.append(HeadChoice(f"{label}+{name}{what.size or ''}", spec))
    return found


def trees_of(space: MethodSpace, most_levels: int | None = None) -> list[TreeSetting]:
    """Return every tree of a space, chains first; trees with one child per node are chains and omitted.

    Args:
        most_levels: maximum number of levels that the drafter supports; None if unbounded.

    Raises:
        UsageError: no tree is left.
    """
    deep = most_levels or 1 << 30
    found = [TreeSetting.chain(depth) for depth in sorted(space.chains) if depth < deep]
    for levels in sorted(depth + 1 for depth in space.depths):
        for topk in sorted(space.topk):
            if levels <= deep and topk > 1:
                most = topk + (levels - 1) * topk**2 + 1
                fitting = [nodes for nodes in sorted(space.nodes) if levels < nodes <= most]
                found += [TreeSetting(topk=topk, depth=levels - 1, total=nodes) for nodes in fitting]
    if not found:
        raise UsageError(
            "no draft tree can be made of these sizes",
            got=f"depths {(*space.chains, *space.depths)}, topk {space.topk}, nodes {space.nodes}",
            expected="depths at least 2 below the nodes, and nodes that depth and topk can fill"
            + (f", at most {most_levels} levels" if most_levels else ""),
        )
    return found


def candidates(heads: Mapping[HeadChoice, int], trees: Sequence[TreeSetting]) -> list[TuneCandidate]:
    """Return all pairs of a head and a tree that is at most as wide as the head.

    Args:
        heads: head -> number of tokens that it scores.

    Raises:
        UsageError: two heads have the same name, or no tree fits.
    """
    names = [head.name for head in heads]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            "two draft heads have one name", got=", ".join(twice), remedy="name them: --vocab LABEL=DIR"
        )
    found = [TuneCandidate(head, tree) for head, size in heads.items() for tree in trees if tree.topk <= size]
    if not found:
        raise UsageError(
            "every draft tree is wider than every draft head",
            got=f"topk of {min(tree.topk for tree in trees)} and more",
            expected=f"at most {max(heads.values())}",
            remedy="give a smaller --topk",
        )
    return found
