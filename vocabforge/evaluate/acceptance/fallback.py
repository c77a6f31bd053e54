"""A static draft vocabulary in place of a dynamic draft head, for servers that only read static maps.

On half of the prompts the dynamic head drafts: the vocabulary's first tokens are those of the target's answers, then
those that the head proposed. The other half measures how much accepted length the static head keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...core.console import ProgressBar
from ...core.errors import UsageError
from ...decode.build.heads import NamedHead, describe
from ...decode.proposers.interface import Draw, Plan
from ...decode.proposers.registry import Lap, Proposer, tree_proposer
from ...decode.tree import DraftTree, TreeSettings
from ...decode.trees.policies import tree_settings
from ...models.drafters.interface import Drafter
from ...models.heads.core import rows_of
from ...models.heads.interface import DraftHead, HeadBase, ScoresSome
from ...models.heads.registry import StaticHead, base_of
from ...models.heads.scorer import LowRankScorer
from ...models.target.interface import Target
from ...models.target.load import dtype_name
from ...vocab.subset.select import Ids
from ...vocab.subset.subset import VocabSubset
from .meter import AcceptanceMeter, length_ratio
from .prompts import LivePrompts

FEWEST = 4  # prompts
ROWS_STEP = 8  # a default size is a multiple of it


@dataclass(frozen=True)
class FallbackRequest:
    """What a static vocabulary is chosen for.

    Attributes:
        head: the dynamic head.
        size: R; None: as many rows as the dynamic head reads weights for one hidden row.
        filler: ids in rank order that follow the counted ones; without it the lowest ids do.
        forced: ids that are always inside.
        tokens: V of the tokenizer; rows of the head beyond it are padding.
        fingerprint: the tokenizer's.
        new: tokens that each prompt is continued by.
    """

    head: NamedHead
    size: int | None
    filler: Ids | None
    forced: tuple[int, ...]
    tokens: int
    fingerprint: str
    new: int


def choose_fallback(
    model: Target, drafter: Drafter, prompts: LivePrompts, request: FallbackRequest
) -> tuple[VocabSubset, dict[str, Any]]:
    """Choose a static vocabulary and measure it.

    Args:
        model: the target. drafter: with its own head, on the target's device. prompts: held-out ones.

    Returns:
        the vocabulary, and for manifest and card: ``size``, ``own_rows``, ``forced`` (ids), ``head`` (in words),
        ``prompts`` (``counted``, ``measured``), ``new_tokens``, ``dtype``, ``tree``, ``accepted_length`` of
        ``dynamic`` and ``static``, ``of_dynamic`` (their ratio, paired by prompt: ``value``, ``low``, ``high``).

    Raises:
        UsageError: too few prompts; a size that is no restriction, or too small for the forced ids.
    """
    halves = split_prompts(prompts)
    base = base_of(drafter)
    dynamic = request.head.over(base)
    size = _size(request, dynamic, base)
    tree = tree_settings(None, min(TreeSettings().topk, size), None, drafter.max_steps)

    def proposer(head: DraftHead) -> Proposer:
        return tree_proposer(model, drafter, head, tree)

    passes = 2 * len(halves[0].prompts) + 3 * len(halves[1].prompts)
    with ProgressBar("choose a static head", passes, "answers") as bar:
        counting, judging = (
            AcceptanceMeter(model, half, request.new, partial(bar.update, 1)) for half in halves
        )
        counted: Any = CountingProposer(proposer(dynamic), len(base.embedding))
        counting.measure(counted)
        ranking = ranked_by(counting.plain_counts(len(base.embedding)), counted.proposed, request.filler)
        allowed = np.zeros(len(base.embedding), dtype=np.bool_)
        allowed[base.target_ids.cpu().numpy()] = True
        allowed[request.tokens :] = False
        ranked = first_ids(ranking, size, request.forced, allowed)
        rows, _ = rows_of(base, np.sort(ranked).tolist())
        static = judging.measure(proposer(StaticHead(base.weight[rows], base.target_ids[rows])))
        moving = judging.measure(proposer(dynamic))
    subset = VocabSubset.from_ranked(
        ranked, vocab_size=request.tokens, fingerprint=request.fingerprint, forced=request.forced
    )
    kept = length_ratio(static, moving)
    return subset, {
        "size": size,
        "own_rows": len(base.weight),
        "forced": list(request.forced),
        "head": describe(request.head, dynamic),
        "prompts": dict(zip(("counted", "measured"), (len(half.prompts) for half in halves))),
        "new_tokens": request.new,
        "dtype": dtype_name(model.dtype),
        "tree": {"topk": tree.topk, "depth": tree.depth, "total_nodes": tree.total_nodes},
        "accepted_length": {"dynamic": moving.length.value, "static": static.length.value},
        "of_dynamic": {"value": kept.value, "low": kept.low, "high": kept.high},
    }


def split_prompts(prompts: LivePrompts) -> list[LivePrompts]:
    """Two halves of the distinct prompts, taken in turn: both have all categories of a file.

    Raises:
        UsageError: fewer than :data:`FEWEST` distinct prompts.
    """
    different = list(dict.fromkeys(map(tuple, prompts.prompts)))
    if len(different) < FEWEST:
        raise UsageError(
            "there are too few prompts to choose a static head by",
            got=f"{len(different)} different prompts that are short enough",
            expected=f"at least {FEWEST}: half to count tokens, half to measure",
            source="--prompts",
        )
    return [LivePrompts(different[place::2], prompts.stop_ids) for place in range(2)]


class CountingProposer:
    """A proposer that counts the nodes of its trees, by target id, in ``proposed`` (V,)."""

    def __init__(self, inner: Proposer, vocab_size: int) -> None:
        self._inner = inner
        self.proposed = np.zeros(vocab_size, dtype=np.int64)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        tree = self._inner.propose(roots, plan, draws, lap)
        drafted = tree.tokens[:, 1:] if tree.alive is None else tree.tokens[:, 1:][tree.alive[:, 1:]]
        np.add.at(self.proposed, drafted.flatten().cpu().numpy(), 1)
        return tree


def ranked_by(answers: Ids, proposed: Ids, filler: Ids | None) -> Ids:
    """All ids, best first: by count in the target's answers (V,), then by proposals (V,); uncounted ones last.

    Args:
        filler: the order of uncounted ids; those that it lacks, and all without it, by id.
    """
    order = np.lexsort((np.arange(len(answers)), -proposed, -answers))
    counted = order[(answers[order] > 0) | (proposed[order] > 0)]
    joined = np.concatenate([counted, *([] if filler is None else [filler]), np.arange(len(answers))])
    _, first = np.unique(joined, return_index=True)
    ranked: Ids = joined[np.sort(first)].astype(np.int64)
    return ranked


def first_ids(ranking: Ids, size: int, forced: Sequence[int], allowed: NDArray[np.bool_]) -> Ids:
    """The first ``size`` ids of a ranking of all ids, forced ones first, in rank order.

    Args:
        forced: ids that are always inside, all of them allowed.
        allowed: (V,) ids that the drafter's head scores and that are tokens.
    """
    is_forced = np.isin(ranking, np.asarray(forced, dtype=np.int64))
    return np.concatenate([ranking[is_forced], ranking[allowed[ranking] & ~is_forced]])[:size]


def weights_read(head: DraftHead, module: Any, hidden_size: int) -> float:
    """Weights that a dynamic head reads for one hidden row, in rows of H of an LM head.

    A scorer of rank d' over R tokens reads d'(H + R) weights, a router all of its parameters; a ranker and a router
    then read the rows of their shortlist.

    Args:
        module: its trained part.
    """
    if isinstance(module, LowRankScorer):
        own = module.rank * (hidden_size + head.size)
    else:
        own = sum(parameter.numel() for parameter in module.parameters())
    return own / hidden_size + (head.scored(0) if isinstance(head, ScoresSome) else 0)


def _size(request: FallbackRequest, dynamic: DraftHead, base: HeadBase) -> int:
    rows, width = base.weight.shape
    fewest = len(request.forced) + 1
    size = request.size
    if size is None:
        read = int(weights_read(dynamic, request.head.loaded.module, width))
        size = max(read // ROWS_STEP * ROWS_STEP or read, fewest)
    most = int((base.target_ids < request.tokens).sum()) - 1
    if not fewest <= size <= most:
        raise UsageError(
            "this is no size for a static fallback",
            got=f"{size:,} rows"
            + ("" if request.size else ", as many as the dynamic head reads weights for one hidden row"),
            expected=f"{fewest:,} to {most:,}: room beside {len(request.forced):,} forced ids, and fewer than the "
            f"drafter's own head of {rows:,}",
            source="--fallback-size",
            remedy="give another --fallback-size, or leave --head out: the own head then costs a server no more",
        )
    return size


def verdict(facts: Mapping[str, Any]) -> str:
    """What the static head costs, in one sentence, from :func:`choose_fallback`."""
    kept = facts["of_dynamic"]
    share = "an unknown share" if kept["value"] is None else f"{kept['value']:.2f}"
    if kept["low"] is not None:
        share += f" ({kept['low']:.2f} to {kept['high']:.2f})"
    return (
        f"The static head of {facts['size']:,} tokens keeps {share} of the dynamic head's accepted length, on "
        f"{facts['prompts']['measured']} held-out prompts that were not counted."
    )


def card_section(facts: Mapping[str, Any]) -> str:
    """The section of a model card, in Markdown."""
    tree = facts["tree"]
    return f"""\
## Draft vocabulary in place of a dynamic head

The dynamic head of this drafter ({facts["head"]}) cannot run in servers with static maps. A static draft vocabulary \
of {facts["size"]:,} tokens replaces it: those of the target's answers to {facts["prompts"]["counted"]} prompts, then \
those that the dynamic head proposed most; {len(facts["forced"])} end and control tokens are always inside.

{verdict(facts)} Greedy, {facts["dtype"]}, {facts["new_tokens"]} tokens a prompt, dynamic tree of depth \
{tree["depth"]}, width {tree["topk"]} and {tree["total_nodes"]} nodes.

The dynamic head itself is in `dynamic/`: `dynamic/drafter` with the drafter's own head, `dynamic/head`, and \
`dynamic/vocab`, the static draft vocabulary as an artefact. Compare them with:

```
vocabforge eval --target TARGET --drafter DIR/dynamic/drafter --head DIR/dynamic/head \\
  --vocab DIR/dynamic/vocab --benchmark BENCHMARK --output OUTPUT
```
"""
