"""Choice of a model-based proposer's tree: from a user's options to a policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...core.errors import UsageError
from ..interface import DraftPolicy
from ..tree import TreeSettings
from .dynamic import DynamicPolicy
from .fixed import ShapePolicy
from .shapes import TreeShape, chain, default_shape, read_shape

if TYPE_CHECKING:
    from ..spec import MethodSpec

DEFAULT_CHAIN = 5  # draft tokens of a chain


def choose_policy(options: MethodSpec, default_tree: str, most_levels: int | None) -> DraftPolicy:
    """Return the policy for the options; ``most_levels`` is the depth that the drafter can fill.

    Raises:
        UsageError: the options contradict each other.
    """
    tree = options.tree or ("static" if options.tree_file else default_tree)
    if options.tree_file is not None and tree != "static":
        raise UsageError(
            "only a static tree is read from a file",
            got=f"--tree {tree} with --tree-file",
            expected="--tree static",
            remedy="leave --tree or --tree-file out",
        )
    if tree == "dynamic":
        if options.draft_sampling:
            raise UsageError(
                "a dynamic tree cannot be drawn at random: choosing its best nodes would change the distribution",
                got="--draft-sampling with a dynamic tree",
                expected="--tree chain or --tree static",
            )
        return DynamicPolicy(tree_settings(options.depth, options.topk, options.total_nodes, most_levels))
    return ShapePolicy(_shape(options, tree, most_levels), options.draft_sampling)


def _shape(options: MethodSpec, tree: str, most_levels: int | None) -> TreeShape:
    if tree == "chain":
        refuse_given(
            options, ("topk", "total_nodes"), "a chain has one child per node", remedy="give --depth"
        )
        levels = DEFAULT_CHAIN if options.depth is None else options.depth + 1
        return chain(min(levels, most_levels or levels) if options.depth is None else levels)
    if options.tree_file is not None:
        refuse_given(
            options,
            ("depth", "topk", "total_nodes"),
            "the file of a static tree defines its whole shape",
            expected="--tree-file without sizes",
            source=options.tree_file,
            remedy="leave them out",
        )
        return read_shape(options.tree_file, most_levels)
    settings = tree_settings(options.depth, options.topk, options.total_nodes, most_levels)
    return default_shape(settings.levels, settings.topk, settings.total_nodes)


def refuse_given(options: MethodSpec, names: Iterable[str], message: str, **more: Any) -> None:
    """Reject those of the named options that were given, because they have no effect here."""
    given = options.given()
    if useless := [name for name in names if name in given]:
        raise UsageError(message, got=", ".join(options.texts(useless)), **more)


def tree_settings(
    depth: int | None, topk: int | None, total_nodes: int | None, max_levels: int | None = None
) -> TreeSettings:
    """Return tree settings, with defaults for what is not given.

    The default depth stays within ``max_levels`` and the given nodes, the default number of nodes within what
    depth and width allow.
    """
    default = TreeSettings()
    topk = default.topk if topk is None else topk
    if depth is None:
        levels = [default.levels, max_levels or default.levels, (total_nodes or default.total_nodes) - 1]
        depth = max(min(levels), 1) - 1
    if total_nodes is None:  # a narrow tree may have fewer nodes
        total_nodes = min(default.total_nodes, topk + depth * topk**2 + 1)
    return TreeSettings(topk, depth, total_nodes)
