"""From ranks to figures: cycles by question, then sums by group, deviations over seeds, intervals over questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...decode.trees.shapes import TreeShape, chain, default_shape
from ...evaluate.benchmarks import MT_BENCH
from ...evaluate.results.intervals import Array, percentile_interval, ratio, resampled_sums
from ...evaluate.results.schema import Figure
from ...evaluate.results.summary import task_groups
from ..config import ReplayConfig
from ..replay.replay import cycle_offsets
from ..replay.types import Replayed
from ..replay.walk import walk
from ..stage_answers import StudyAnswer
from .results import CHAIN, EVERYTHING, RARE, Cell, GroupKind, QuestionGroup

HEADLINE = "spec-bench"  # the benchmark that published figures are of
RARE_SETS = "rare", "human-eval"
RARE_CATEGORY = "coding"
# Groups with intervals; those of single categories would be of ten questions.
MAIN_KINDS = "all", "set", "rare"
# Groups that speeds are predicted of.
SPEED_KINDS = "all", "rare"

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Sums:
    """What the cycles of every question add up to.

    Attributes:
        committed, cycles: (Q, M, S) float64 by question, method and seed.
    """

    committed: Array
    cycles: Array


def shapes(config: ReplayConfig) -> dict[str, TreeShape]:
    """The chain and the default trees, by the name that ``joined.Row.shape`` has for them.

    Raises:
        UsageError: a tree that has no room for its levels, or more nodes than its width and levels give.
    """
    found = {CHAIN: chain(config.levels)}
    for nodes in config.trees:
        levels = min(config.levels, nodes - 1)
        found[f"tree {nodes}"] = default_shape(levels, config.width, nodes)
    return found


def groups_of(asked: Sequence[StudyAnswer]) -> list[tuple[QuestionGroup, Mask]]:
    """Groups of questions with their members, the headline's first.

    The headline is all of Spec-Bench where it is asked, else every set but ``rare``; its tasks and categories follow
    the sets. The rare group is the set ``rare``, HumanEval, and the headline's category coding.
    """
    sets = np.array([one.set for one in asked], dtype=object)
    categories = np.array([one.category for one in asked], dtype=object)
    names = list(dict.fromkeys(sets.tolist()))
    headline = [HEADLINE] if HEADLINE in names else [name for name in names if name != RARE_SETS[0]] or names
    everything = np.isin(sets, headline)
    found = [_group(EVERYTHING, "all", headline, everything)]
    found += [_group(name, "set", [name], sets == name) for name in names if [name] != headline]
    coding = everything & (categories == RARE_CATEGORY)
    rare = np.isin(sets, RARE_SETS) | coding
    if rare.any() and not rare.all():
        among = [name for name in RARE_SETS if name in names]
        among += [f"{RARE_CATEGORY} of {', '.join(headline)}"] if coding.any() else []
        found.append(_group(RARE, "rare", among, rare))
    found += _categories(headline, everything, categories)
    return found


def _categories(
    headline: list[str], everything: Mask, categories: npt.NDArray
) -> list[tuple[QuestionGroup, Mask]]:
    """Tasks, and below the first of several turns its categories."""
    tasks = task_groups(categories[everything].tolist())
    found: list[tuple[QuestionGroup, Mask]] = []
    for task, members in tasks.items():
        found.append(_group(task, "task", headline, everything & np.isin(categories, members)))
        if members != (task,):
            found += [
                _group(name, "category", headline, everything & (categories == name))
                for name in members
                if name in MT_BENCH
            ]
    return found if len(found) > 1 else []


def _group(key: str, kind: GroupKind, sets: list[str], mask: Mask) -> tuple[QuestionGroup, Mask]:
    return QuestionGroup(key=key, kind=kind, sets=sets, questions=int(mask.sum())), mask


def question_sums(
    replayed: Sequence[Mapping[str, Replayed]],
    keys: Sequence[str],
    asked: Sequence[StudyAnswer],
    shape: TreeShape,
    limit: int,
) -> Sums:
    """Walk every method of every seed over all answers of one temperature.

    Args:
        replayed: of every seed, by method key.
        keys: M of the methods.
        asked: Q questions.
        limit: tokens of an answer at most; of answers that it ended only whole cycles count (``replay.walk``).
    """
    offsets = cycle_offsets([one.continuation for one in asked])
    limited = np.array([len(one.continuation.tokens) >= limit for one in asked], dtype=bool)
    size = len(asked), len(keys), len(replayed)
    committed, cycles = np.zeros(size), np.zeros(size)
    for seed, found in enumerate(replayed):
        for place, key in enumerate(keys):
            walked = walk(found[key].ranks, offsets, shape, limited=limited)
            committed[:, place, seed] = walked.committed
            cycles[:, place, seed] = walked.cycles
    return Sums(committed, cycles)


def conditional(
    replayed: Sequence[Replayed], offsets: Sequence[int], mask: Mask, levels: int
) -> list[float | None]:
    """Share of accepted draft tokens by draft step of the chain, of those whose predecessors were accepted, pooled over
    seeds; None where there are none.

    Args:
        mask: (Q,) answers that count.
    """
    lengths = np.diff(np.asarray(offsets))
    rows = np.repeat(mask, lengths)
    inside = np.concatenate([[0], np.cumsum(lengths[mask])]).tolist()
    reached, offered = np.zeros(levels), np.zeros(levels)
    for one in replayed:
        walked = walk(one.ranks[rows], inside, chain(levels))
        reached[: len(walked.reached)] += walked.reached
        offered[: len(walked.offered)] += walked.offered
    return [float(part / whole) if whole else None for part, whole in zip(reached, offered)]


def cells(sums: Sums, mask: Mask, full: int, *, intervals: bool) -> list[Cell]:
    """Figures of all methods over one group of questions.

    The bootstrap draws questions with everything that belongs to them: all seeds, and the full head's cycles. It is
    that of ``evaluate.intervals`` (``estimate`` of runs that are not pooled), made for all methods at once.

    Args:
        mask: (Q,) the group.
        full: place of the full head among the methods.
        intervals: whether to draw.
    """
    committed, cycles = sums.committed[mask], sums.cycles[mask]  # (q, M, S)
    whole = np.stack([committed.sum(0), cycles.sum(0)], -1)  # (M, S, 2)
    lengths = ratio(whole)
    shares = ratio(np.stack([lengths, np.broadcast_to(np.nan_to_num(lengths[full]), lengths.shape)], -1))
    drawn = (
        _drawn(committed, cycles, full) if intervals and np.count_nonzero(cycles.any((1, 2))) > 1 else None
    )
    found = []
    for place in range(lengths.shape[0]):
        found.append(
            Cell(
                accepted_by_seed=_plain(lengths[place]),
                accepted=_figure(lengths[place], None if drawn is None else drawn[0][:, place]),
                share_by_seed=_plain(shares[place]),
                share=_figure(shares[place], None if drawn is None else drawn[1][:, place]),
                tokens=int(whole[place, :, 0].sum()),
                cycles=int(whole[place, :, 1].sum()),
                predicted={},
            )
        )
    return found


def _drawn(committed: Array, cycles: Array, full: int) -> tuple[Array, Array]:
    """(RESAMPLES, M) accepted lengths and shares of the full head's, means over seeds, of questions drawn anew."""
    questions, methods, seeds = committed.shape
    columns = np.stack([committed, cycles], -1).reshape(questions, -1)
    lengths = ratio(resampled_sums(columns).reshape(-1, methods, seeds, 2))
    base = np.broadcast_to(np.nan_to_num(lengths[:, full : full + 1]), lengths.shape)
    return lengths.mean(-1), ratio(np.stack([lengths, base], -1)).mean(-1)


def _figure(by_seed: Array, drawn: Array | None) -> Figure:
    """Mean and sample deviation over seeds, and the interval."""
    known = by_seed[~np.isnan(by_seed)]
    low, high = (None, None) if drawn is None else percentile_interval(drawn)
    return Figure(
        value=float(known.mean()) if len(known) else None,
        sd=float(known.std(ddof=1)) if len(known) > 1 else None,
        low=low,
        high=high,
    )


def _plain(values: Array) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def mean_scored(replayed: Sequence[Replayed]) -> list[float | None]:
    """Mean tokens with an exact logit by draft step, over the seeds that have one."""
    table = np.array([one.scored for one in replayed], dtype=np.float64)  # (S, levels)
    there = ~np.isnan(table)
    found = ratio(np.stack([np.where(there, table, 0.0).sum(0), there.sum(0)], -1))
    return _plain(found)
