"""What is measured: few runs that meet every size of a search space, the ones that matter most first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..types import HeadSetting, TreeSetting
from .parts import CycleRun

WHOLE = 9  # real cycles: every other one is for fitting the rest, the others for checking
_ALIKE = 1.25  # prefixes nearer to each other than this are one


@dataclass(frozen=True)
class MeasurePlan:
    """What is run.

    Attributes:
        needed: runs whose parts are timed first, so that every kind of tree and every head has a time.
        timed: the others.
        plain: plain decoding.
        references: whole cycles that the rest is fitted to; ``checks``: that predictions are compared with.
        prefills: lengths of prompts.
    """

    needed: tuple[CycleRun, ...]
    timed: tuple[CycleRun, ...]
    plain: tuple[CycleRun, ...]
    references: tuple[CycleRun, ...]
    checks: tuple[CycleRun, ...]
    prefills: tuple[int, ...]


def covering(trees: Iterable[TreeSetting]) -> list[TreeSetting]:
    """Some of the trees that have every width, number of levels and number of nodes of all of them.

    The smallest and the largest of each width and kind come first.
    """
    ordered = sorted(set(trees), key=lambda tree: (tree.kind, tree.topk, tree.levels, tree.total))
    kinds: dict[tuple[str, int], list[TreeSetting]] = {}
    for tree in ordered:
        kinds.setdefault((tree.kind, tree.topk), []).append(tree)
    chosen = [one for alike in kinds.values() for one in (alike[0], alike[-1])]
    found: list[TreeSetting] = []
    met: set[tuple[str, str, int]] = set()
    for tree in (*chosen, *ordered):
        keys = {(tree.kind, "levels", tree.levels), (tree.kind, "nodes", tree.total)}
        if tree not in found and (tree in chosen or keys - met):
            found.append(tree)
            met |= keys
    return found


def prefixes(lengths: Sequence[int], new: int, limit: int) -> list[int]:
    """One or two numbers of positions that caches hold while prompts of these lengths are continued by ``new``."""
    low, high = np.quantile(np.array(lengths) + new / 2, [0.1, 0.9])
    most = max(8, limit - new)
    found = sorted({max(8, min(int(low), most)), max(8, min(int(high), most))})
    return found if found[-1] > found[0] * _ALIKE else found[-1:]


def plan_of(
    heads: Sequence[HeadSetting],
    trees: Sequence[TreeSetting],
    batches: Sequence[int],
    lengths: Sequence[int],
    new: int,
    limit: int,
) -> MeasurePlan:
    """What to measure for a search space.

    Args:
        heads: the drafter's own first.
        lengths: of the prompts, in tokens; ``new`` more follow.
        limit: most positions of the target.
    """
    cover, places, sizes = covering(trees), prefixes(lengths, new, limit), sorted(set(batches))
    deepest = {(tree.kind, tree.topk): tree for tree in sorted(cover, key=lambda tree: tree.levels)}
    # One tree of each kind that goes through all steps of its growth.
    by_kind = {tree.kind: tree for tree in sorted(cover, key=lambda tree: (tree.levels, tree.topk))}
    needed = [CycleRun(0, tree, sizes[0], places[-1]) for tree in by_kind.values()]
    others = [
        CycleRun(head, tree, sizes[0], places[-1])
        for head in range(1, len(heads))
        for tree in sorted(deepest.values(), key=lambda tree: -tree.levels)
        if _fits(heads[head], tree)
    ]
    first = {run.head: run for run in reversed(others)}
    needed += [first[head] for head in sorted(first)]
    # Every tree at every prefix: if one prefix lacked some sizes, the line between prefixes would be of others.
    timed = [CycleRun(0, tree, sizes[0], prefix) for prefix in reversed(places) for tree in cover] + others
    timed += [replace(run, batch=batch) for batch in sizes[1:] for run in timed]
    whole = _spread_over(heads, trees, sizes, places[-1])
    quantiles = np.quantile(lengths, [0, 0.25, 0.5, 0.75, 1])
    return MeasurePlan(
        needed=tuple(needed),
        timed=tuple(run for run in dict.fromkeys(timed) if run not in needed),
        plain=tuple(CycleRun(-1, None, batch, prefix) for batch in sizes for prefix in places),
        references=tuple(whole[::2]),
        checks=tuple(whole[1::2]),
        prefills=tuple(sorted({max(2, min(int(length), limit - 8)) for length in quantiles})),
    )


def _fits(head: HeadSetting, tree: TreeSetting) -> bool:
    return tree.topk <= min(head.scored)


def _spread_over(
    heads: Sequence[HeadSetting], trees: Iterable[TreeSetting], batches: Sequence[int], prefix: int
) -> list[CycleRun]:
    """Runs all over a space: trees from the smallest to the largest, heads and batches in turn."""
    ordered = sorted(set(trees), key=lambda tree: (tree.total, tree.levels, tree.topk))
    count = min(WHOLE, len(ordered) * len(heads) * len(batches))
    found: list[CycleRun] = []
    for number in range(count):
        tree = ordered[round(number * (len(ordered) - 1) / max(count - 1, 1))]
        head = number // 2 % len(heads)
        head = head if _fits(heads[head], tree) else 0
        found.append(CycleRun(head, tree, batches[number % len(batches)], prefix))
    return list(dict.fromkeys(found))
