"""From ranks to figures: cycles by question, then sums by group, deviations over seeds, intervals over questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ...decode.trees.shapes import TreeShape, chain, default_shape
from ...evaluate.results.intervals import Array, estimate, ratio, ratio_of_ratios
from ...evaluate.results.summary import task_groups
from ..config import ReplayConfig
from ..replay.replay import cycle_offsets
from ..replay.types import Replayed
from ..replay.walk import walk
from ..stages.answers import StudyAnswer
from .results import CHAIN, EVERYTHING, RARE, Cell, QuestionGroup

HEADLINE = "spec-bench"  # the benchmark that published figures are of
RARE_SETS = "rare", "human-eval"
RARE_CATEGORY = "coding"
Mask = npt.NDArray[np.bool_]


def shapes(config: ReplayConfig) -> dict[str, TreeShape]:
    """The chain and the default trees by name.

    Raises:
        UsageError: a tree that has no room for its levels, or more nodes than its width and levels give.
    """
    trees = {
        f"tree {nodes}": default_shape(min(config.levels, nodes - 1), config.width, nodes)
        for nodes in config.trees
    }
    return {CHAIN: chain(config.levels), **trees}


def groups_of(asked: Sequence[StudyAnswer]) -> list[tuple[QuestionGroup, Mask]]:
    """Groups of questions with their members, the headline's first.

    The headline is all of Spec-Bench if it is asked, else every set but ``rare``; its tasks follow the sets. The rare
    group is the set ``rare``, HumanEval, and the headline's category coding.
    """
    sets = np.array([one.set for one in asked], dtype=object)
    categories = np.array([one.category for one in asked], dtype=object)
    names = list(dict.fromkeys(sets.tolist()))
    headline = [HEADLINE] if HEADLINE in names else [name for name in names if name != RARE_SETS[0]] or names
    everything = np.isin(sets, headline)
    found: list[tuple[QuestionGroup, Mask]] = []

    def add(key: str, among: list[str], mask: Mask) -> None:
        found.append((QuestionGroup(key=key, sets=among, questions=int(mask.sum())), mask))

    add(EVERYTHING, headline, everything)
    for name in names:
        if [name] != headline:
            add(name, [name], sets == name)
    coding = everything & (categories == RARE_CATEGORY)
    rare = np.isin(sets, RARE_SETS) | coding
    if rare.any() and not rare.all():
        among = [name for name in RARE_SETS if name in names]
        among += [f"{RARE_CATEGORY} of {', '.join(headline)}"] if coding.any() else []
        add(RARE, among, rare)
    tasks = task_groups(categories[everything].tolist())
    if len(tasks) > 1:
        for task, members in tasks.items():
            add(task, headline, everything & np.isin(categories, members))
    return found


def question_sums(
    replayed: Sequence[Mapping[str, Replayed]],
    keys: Sequence[str],
    asked: Sequence[StudyAnswer],
    shape: TreeShape,
    limit: int,
) -> Array:
    """Walk every method of every seed over all answers of a temperature: (Q, M, S, 2) tokens committed, and cycles.

    Args:
        replayed: of every seed, by method key; ``keys`` are those of M methods.
        limit: tokens of an answer at most; of answers that it ended only whole cycles count (``replay.walk``).
    """
    offsets = cycle_offsets([one.continuation for one in asked])
    limited = np.array([len(one.continuation.tokens) >= limit for one in asked], dtype=bool)
    sums = np.zeros((len(asked), len(keys), len(replayed), 2))
    for seed, found in enumerate(replayed):
        for place, key in enumerate(keys):
            walked = walk(found[key].ranks, offsets, shape, limited=limited)
            sums[:, place, seed] = np.stack([walked.committed, walked.cycles], -1)
    return sums


def cells(sums: Array, mask: Mask, full: int) -> list[Cell]:
    """Figures of all methods over a group of questions, (Q,); ``full`` is the full head's place among them."""
    columns, found = sums[mask], []
    for place in range(columns.shape[1]):
        own = columns[:, place]  # (q, S, 2)
        both = np.concatenate([own, columns[:, full]], -1)
        accepted = estimate(own, ratio, pooled=False)
        found.append(Cell(accepted=accepted, share=estimate(both, ratio_of_ratios, pooled=False)))
    return found


def mean_scored(replayed: Sequence[Replayed]) -> dict[int, float]:
    """Mean tokens with an exact logit by draft step, over the seeds that have one."""
    table = np.array([one.scored for one in replayed], dtype=np.float64)  # (S, levels)
    return {
        step: float(np.nanmean(column)) for step, column in enumerate(table.T) if not np.isnan(column).all()
    }
