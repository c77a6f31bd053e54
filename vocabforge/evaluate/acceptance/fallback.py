"""A static draft vocabulary in place of a dynamic draft head, for servers that only read static maps.

Half of the prompts are counted: the vocabulary's first tokens are those of the target's answers. The other half
measures how much accepted length the static head keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UsageError
from ...core.progress import ProgressBar
from ...decode.build.heads import NamedHead, describe
from ...decode.proposers.registry import tree_proposer
from ...decode.tree import TreeSettings
from ...decode.trees.policies import tree_settings
from ...models.drafters.interface import Drafter
from ...models.heads.core import rows_of
from ...models.heads.interface import HeadBase
from ...models.heads.registry import StaticHead, base_of
from ...models.target.interface import Target
from ...models.target.load import dtype_name
from ...vocab.subset.select import Ids
from ...vocab.subset.subset import VocabSubset
from .meter import AcceptanceMeter, length_ratio
from .prompts import LivePrompts

FEWEST = 4  # prompts


@dataclass(frozen=True)
class FallbackRequest:
    """What a static vocabulary is chosen for.

    Attributes:
        size: R; None: a quarter of the rows of the drafter's own head, as FR-Spec's 32k of 128k.
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
    """Choose a static vocabulary on held-out prompts and measure it; the drafter has its own head.

    Returns:
        the vocabulary, and facts for manifest and card (docs/formats.md, "Static fallback").

    Raises:
        UsageError: too few prompts; a size that is no restriction, or too small for the forced ids.
    """
    halves = split_prompts(prompts)
    base = base_of(drafter)
    dynamic = request.head.over(base)
    size = _size(request, base)
    tree = tree_settings(None, min(TreeSettings().topk, size), None, drafter.max_steps)
    rows = len(base.embedding)
    allowed = np.zeros(rows, dtype=np.bool_)
    allowed[base.target_ids.cpu().numpy()] = True
    allowed[request.tokens :] = False
    passes = len(halves[0].prompts) + 3 * len(halves[1].prompts)
    with ProgressBar("choose a static head", passes, "answers") as bar:
        counting, judging = (
            AcceptanceMeter(model, half, request.new, partial(bar.update, 1)) for half in halves
        )
        counts = counting.plain_counts(rows)
        ranked = choose_ids(counts, request.filler, request.forced, allowed, size)
        kept_rows, _ = rows_of(base, np.sort(ranked).tolist())
        head = StaticHead(base.weight[kept_rows], base.target_ids[kept_rows], transform=base.transform)
        static, moving = (
            judging.measure(tree_proposer(model, drafter, one, tree)) for one in (head, dynamic)
        )
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


def choose_ids(
    counts: Ids, filler: Ids | None, forced: Sequence[int], allowed: NDArray[np.bool_], size: int
) -> Ids:
    """The first ``size`` allowed ids, best first: forced ones, by count (V,), the filler's, then the others by id."""
    order = np.argsort(-counts, kind="stable")
    rest = [] if filler is None else [filler]
    joined = np.concatenate(
        [np.asarray(forced, np.int64), order[counts[order] > 0], *rest, np.arange(len(counts))]
    )
    _, first = np.unique(joined, return_index=True)
    ranked: Ids = joined[np.sort(first)].astype(np.int64)
    return ranked[allowed[ranked]][:size]


def _size(request: FallbackRequest, base: HeadBase) -> int:
    fewest, rows = len(request.forced) + 1, len(base.weight)
    size = max(rows // 4, fewest) if request.size is None else request.size
    most = int((base.target_ids < request.tokens).sum()) - 1
    if not fewest <= size <= most:
        raise UsageError(
            "this is no size for a static fallback",
            got=f"{size:,} rows",
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
of {facts["size"]:,} tokens replaces it: first those of the target's answers to {facts["prompts"]["counted"]} prompts; \
{len(facts["forced"])} end and control tokens are always inside.

{verdict(facts)} Greedy, {facts["dtype"]}, {facts["new_tokens"]} tokens a prompt, dynamic tree of depth \
{tree["depth"]}, width {tree["topk"]} and {tree["total_nodes"]} nodes.

The dynamic head itself is in `dynamic/`: `dynamic/drafter` with the drafter's own head, `dynamic/head`, and \
`dynamic/vocab`, the static draft vocabulary as an artefact. Compare them with:

```
vocabforge eval --target TARGET --drafter DIR/dynamic/drafter --head DIR/dynamic/head \\
  --vocab DIR/dynamic/vocab --benchmark BENCHMARK --output OUTPUT
```
"""
