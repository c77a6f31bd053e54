"""The best static draft vocabulary in place of a dynamic draft head, by measured accepted length.

Servers know static maps only. Three parts of the prompts decide three things, so that no figure is chosen by its own
luck: on the first it is counted which tokens the dynamic head uses, on the second the rankings that follow are
measured as static heads of R rows, on the third the best of them is measured again, beside the dynamic head and the
drafter's own one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..core.errors import UsageError
from ..core.progress import ProgressBar
from ..decode.build_heads import NamedHead, describe
from ..decode.policies import tree_settings
from ..decode.proposers import Proposer, tree_proposer
from ..decode.tree import TreeSettings
from ..models.drafter import Drafter
from ..models.heads import DraftHead, HeadBase, StaticHead, base_of, exact_head_of
from ..models.heads_core import rows_of
from ..models.lean import LeanModel
from ..models.target_load import dtype_name
from ..vocab.select import Ids
from ..vocab.subset import VocabSubset
from .acceptance import AcceptanceMeter, Accepted, length_ratio
from .fallback_counts import (
    UseCounts,
    WatchedHead,
    WatchedProposer,
    default_size,
    distinct,
    subset_ranking,
    weights_read,
)
from .live_prompts import LivePrompts
from .results import Figure

PARTS = 3
FEWEST = 2 * PARTS  # prompts
BY_WEIGHTS = "as many rows as the dynamic head reads weights for one hidden row"
BY_HAND = "asked for"


@dataclass(frozen=True)
class FallbackRequest:
    """What is chosen for.

    Attributes:
        head: the dynamic head.
        size: R; None takes :data:`BY_WEIGHTS`.
        vocabs: label and ids in rank order of further candidates, alone and behind the target's own tokens; of
            longer ones the first R are taken, shorter ones are filled with the tokens that are accepted most.
        forced: ids that are inside whatever is counted.
        tokens: V of the tokenizer; rows of the head beyond it are padding.
        fingerprint: the tokenizer's.
        new: tokens that each prompt is continued by.
    """

    head: NamedHead
    size: int | None
    vocabs: Sequence[tuple[str, Ids]]
    forced: tuple[int, ...]
    tokens: int
    fingerprint: str
    new: int


@dataclass(frozen=True)
class Candidate:
    """A static head that was measured on the second part."""

    name: str
    ranked: Ids
    accepted: Accepted


@dataclass(frozen=True)
class Fallback:
    """What was chosen and what it costs.

    Attributes:
        subset: the chosen draft vocabulary.
        name: of the ranking that it comes from. rule: why it has its size.
        candidates: all that were measured on the second part.
        own, dynamic, static: the drafter's own head, the dynamic head and the chosen one on the third part.
        own_rows: tokens that the drafter's own head scores.
        of_dynamic, of_own: the chosen head's accepted length over theirs, paired by prompt.
        head: the dynamic head in a phrase.
        parts: prompts of the three parts. dtype: that it was measured in.
    """

    subset: VocabSubset
    name: str
    rule: str
    candidates: tuple[Candidate, ...]
    own: Accepted
    dynamic: Accepted
    static: Accepted
    own_rows: int
    of_dynamic: Figure
    of_own: Figure
    head: str
    parts: tuple[int, ...]
    new: int
    tree: TreeSettings
    dtype: str


def choose_fallback(
    model: LeanModel, drafter: Drafter, prompts: LivePrompts, asked: FallbackRequest
) -> Fallback:
    """Measure the candidates and choose.

    Args:
        model: the target. drafter: with its own head, on the target's device. prompts: held-out ones.

    Raises:
        UsageError: too few prompts; a size that is no restriction, or too small for the forced ids.
    """
    parts = split_prompts(prompts)
    base = base_of(drafter)
    dynamic = asked.head.over(base)
    size, rule = _size(asked, dynamic, base)
    tree = tree_settings(None, min(TreeSettings().topk, size), None, drafter.max_steps)

    def proposer(head: DraftHead) -> Proposer:
        return tree_proposer(model, drafter, head, tree)

    with ProgressBar("count what the dynamic head uses", 2 * len(parts[0].prompts), "answers") as bar:
        meter = AcceptanceMeter(model, parts[0], asked.new, partial(bar.update, 1))
        counts = _counts(meter, proposer, dynamic, base)
    rankings = _candidates(counts, asked, size, base)
    # Each ranking, or each of the three heads, and plain decoding.
    passes = (1 + len(rankings)) * len(parts[1].prompts) + 4 * len(parts[2].prompts)
    with ProgressBar("measure static heads", passes, "answers") as bar:
        choose, judge = (
            AcceptanceMeter(model, part, asked.new, partial(bar.update, 1)) for part in parts[1:]
        )
        candidates = tuple(
            Candidate(name, ranked, choose.measure(proposer(_static(base, ranked))))
            for name, ranked in rankings.items()
        )
        best = max(candidates, key=lambda one: one.accepted.length.value or 0.0)  # the first of equals
        own, moving, static = (
            judge.measure(proposer(head))
            for head in (exact_head_of(base), dynamic, _static(base, best.ranked))
        )
    subset = VocabSubset.from_ranked(
        best.ranked, vocab_size=asked.tokens, fingerprint=asked.fingerprint, forced=asked.forced
    )
    return Fallback(
        subset=subset,
        name=best.name,
        rule=rule,
        candidates=candidates,
        own=own,
        dynamic=moving,
        static=static,
        own_rows=len(base.weight),
        of_dynamic=length_ratio(static, moving),
        of_own=length_ratio(static, own),
        head=describe(asked.head, dynamic),
        parts=tuple(len(part.prompts) for part in parts),
        new=asked.new,
        tree=tree,
        dtype=dtype_name(model.dtype),
    )


def split_prompts(prompts: LivePrompts) -> list[LivePrompts]:
    """Three parts of the distinct prompts, taken in turn: a file's categories are in all of them.

    Raises:
        UsageError: fewer than :data:`FEWEST` distinct prompts.
    """
    different = list(dict.fromkeys(map(tuple, prompts.prompts)))
    if len(different) < FEWEST:
        raise UsageError(
            "there are too few prompts to choose a static head by",
            got=f"{len(different)} different prompts that are short enough",
            expected=f"at least {FEWEST}, {FEWEST // PARTS} for each of {PARTS} parts",
            source="--prompts",
        )
    return [LivePrompts(different[place::PARTS], prompts.stop_ids) for place in range(PARTS)]


def _size(asked: FallbackRequest, dynamic: DraftHead, base: HeadBase) -> tuple[int, str]:
    rows, width = base.weight.shape
    fewest = len(asked.forced) + 1
    if asked.size is None:
        read = weights_read(dynamic, asked.head.loaded.module, width)
        size, rule = max(default_size(read), fewest), BY_WEIGHTS
    else:
        size, rule = asked.size, BY_HAND
    most = int((base.target_ids < asked.tokens).sum()) - 1
    if not fewest <= size <= most:
        raise UsageError(
            "this is no size for a static fallback",
            got=f"{size:,} rows ({rule})",
            expected=f"{fewest:,} to {most:,}: room beside {len(asked.forced):,} forced ids, and fewer than the "
            f"drafter's own head of {rows:,}",
            source="--fallback-size",
            remedy="give another --fallback-size, or leave --head out: the own head then costs a server no more",
        )
    return size, rule


def _counts(
    meter: AcceptanceMeter, proposer: Callable[[DraftHead], Proposer], dynamic: DraftHead, base: HeadBase
) -> UseCounts:
    vocab_size = len(base.embedding)
    head = WatchedHead(dynamic, base)
    watched = WatchedProposer(proposer(head), vocab_size)
    meter.measure(watched)
    return UseCounts(
        watched.accepted, watched.proposed, meter.plain_counts(vocab_size), head.mass(vocab_size)
    )


def _candidates(counts: UseCounts, asked: FallbackRequest, size: int, base: HeadBase) -> dict[str, Ids]:
    allowed = np.zeros(len(base.embedding), dtype=np.bool_)
    allowed[base.target_ids.cpu().numpy()] = True
    allowed[asked.tokens :] = False
    rankings = counts.rankings()
    said = rankings["target"][: np.count_nonzero(counts.target)]  # few of a large vocabulary
    for name, ranked in asked.vocabs:
        rankings[name] = _joined(ranked, rankings["accepted"])
        rankings[f"target, then {name}"] = _joined(said, rankings[name])
    return distinct(
        {name: subset_ranking(ranking, size, asked.forced, allowed) for name, ranking in rankings.items()}
    )


def _joined(first: Ids, others: Ids) -> Ids:
    return np.concatenate([first, others[~np.isin(others, first)]])


def _static(base: HeadBase, ranked: Ids) -> StaticHead:
    rows, _ = rows_of(base, np.sort(ranked).tolist())
    return StaticHead(base.weight[rows], base.target_ids[rows])
