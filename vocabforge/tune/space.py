"""The searched methods: draft heads times draft trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..core.artifact import open_artifact
from ..core.errors import UsageError
from ..core.values import labelled
from ..decode.build.heads import parse_dynamic
from ..decode.spec import MethodSpec
from .settings import MethodSpace

FULL = "full"


def head_choices(space: MethodSpace, own: str = FULL) -> dict[str, MethodSpec]:
    """Return every draft head of a search by name, the drafter's own (``own``) first.

    Raises:
        ArtifactError: a folder has no draft head.
        UsageError: an option does not apply to any of the heads, or two heads have the same name.
    """
    vocabs, heads = list(map(labelled, space.vocab)), list(map(labelled, space.head))
    kinds = {path: str(open_artifact(path, verify=False).meta.get("head")) for _, path in heads}
    for name, given, kind in (
        ("--shortlist", space.shortlist, "ranker"),
        ("--budget", space.budget, "router"),
    ):
        if given and kind not in kinds.values():
            remedy = "the time for measuring is --seconds" if name == "--budget" else None
            raise UsageError(
                f"{name} has no effect here", got=list(given), expected=f"--head with a {kind}", remedy=remedy
            )
    if space.dynamic and not vocabs:
        raise UsageError("--dynamic adds tokens to a draft vocabulary", expected="--vocab DIR")
    choices = [(own, MethodSpec()), *((label, MethodSpec(vocab=path)) for label, path in vocabs)]
    for label, path in heads:
        if kinds[path] == "ranker" and space.shortlist:
            choices += [(f"{label}-k{k}", MethodSpec(head=path, shortlist=k)) for k in space.shortlist]
        elif kinds[path] == "router" and space.budget:
            choices += [
                (f"{label}-b{text.replace(':', '-')}", MethodSpec(head=path, budget=text))
                for text in space.budget
            ]
        else:
            choices.append((label, MethodSpec(head=path)))
    for text in space.dynamic:
        parse_dynamic(text)
        name = text.replace(":", "")
        choices += [(f"{label}+{name}", MethodSpec(vocab=vocab, dynamic=text)) for label, vocab in vocabs]
    names = [name for name, _ in choices]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            "two draft heads have one name", got=", ".join(twice), remedy="name them: --vocab LABEL=DIR"
        )
    return dict(choices)


def chain_of(depth: int) -> MethodSpec:
    """Return a chain of depth + 1 draft tokens."""
    return MethodSpec(tree="chain", depth=depth)


def nodes_of(tree: MethodSpec) -> int:
    """Return the number of verified nodes, including the root."""
    return tree.total_nodes or (tree.depth or 0) + 2


def trees_of(
    space: MethodSpace, most_levels: int | None = None, *, chains_only: bool = False
) -> dict[str, MethodSpec]:
    """Return every tree of a space by its label, chains first.

    Labels are valid in file names: ``chain4``, ``tree6x10x60`` (levels, width, nodes). Dynamic trees with one
    child per node are chains and are left out.

    Args:
        most_levels: maximum number of levels that the drafter supports; None if unbounded.
        chains_only: the target verifies chains only.

    Raises:
        UsageError: no tree is left.
    """
    deep = most_levels or 1 << 30
    trees = {}
    if "chain" in space.tree:
        depths = [depth for depth in sorted(space.depth or (0, 1, 2, 3, 5)) if depth < deep]
        trees = {f"chain{depth + 1}": chain_of(depth) for depth in depths}
    if "dynamic" in space.tree and not chains_only:
        for depth in sorted(space.depth or (1, 3, 5)):
            for topk in sorted(space.topk):
                most = topk + depth * topk**2 + 1
                for nodes in sorted(space.total_nodes):
                    if depth < deep and topk > 1 and depth + 1 < nodes <= most:
                        tree = MethodSpec(tree="dynamic", depth=depth, topk=topk, total_nodes=nodes)
                        trees[f"tree{depth + 1}x{topk}x{nodes}"] = tree
    if not trees:
        raise UsageError(
            "no draft tree can be made of these sizes",
            got=f"depths {space.depth}, topk {space.topk}, nodes {space.total_nodes}",
            expected="depths at least 2 below the nodes, and nodes that depth and topk can fill"
            + (f", at most {most_levels} levels" if most_levels else ""),
        )
    return trees


def methods_of(
    drafter: Path,
    heads: Mapping[str, MethodSpec],
    sizes: Mapping[str, int],
    trees: Mapping[str, MethodSpec],
) -> dict[tuple[str, str], MethodSpec]:
    """Return (name of the head, label of the tree) -> method, for trees at most as wide as the head.

    Methods draft the full size in every cycle, as measured.

    Args:
        sizes: number of tokens that each head scores.

    Raises:
        UsageError: no tree fits.
    """
    fixed = {"drafter": drafter, "control": "fixed"}
    methods = {
        (name, label): head.model_copy(update={**tree.given(), **fixed})
        for name, head in heads.items()
        for label, tree in trees.items()
        if (tree.topk or 1) <= sizes[name]
    }
    if not methods:
        raise UsageError(
            "every draft tree is wider than every draft head",
            got=f"topk of {min(tree.topk or 1 for tree in trees.values())} and more",
            expected=f"at most {max(sizes.values())}",
            remedy="give a smaller --topk",
        )
    return methods
