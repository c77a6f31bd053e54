"""What draft heads must answer, plainly and in fp32: logits over the vocabulary and each row's shortlist."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...models.heads_router import top_clusters
from ...ops.fp8 import quantise_rows, restore_rows
from .types import Inputs

Law = tuple[Tensor, "Tensor | None"]


def law_of(kind: str, inputs: Inputs, topk: int) -> Law:
    """Logits (N, V) fp32 and bool (N, V) which of them are in the row's shortlist; None: all.

    Args:
        inputs: of a head's case.
        topk: answers asked for: a router opens enough clusters for them.
    """
    if kind == "low-rank":
        return _scores(inputs), None
    logits = inputs["hidden"].float() @ inputs["weight"].float().T
    return logits, None if kind == "full" else _LISTS[kind](inputs, topk)


def _scores(inputs: Inputs) -> Tensor:
    """(N, V) of the low-rank scorer; the projection is rounded to the weights' dtype, as the head's is."""
    scorer = inputs["module"]
    rows = scorer.head_weight.float()
    if inputs["fp8"]:
        rows = restore_rows(*quantise_rows(scorer.head_weight))
    found: Tensor = scorer.project(inputs["hidden"]).float() @ rows.T
    return found


def _blank(inputs: Inputs) -> Tensor:
    shape = len(inputs["hidden"]), len(inputs["weight"])
    return torch.zeros(shape, dtype=torch.bool, device=inputs["hidden"].device)


def _used(inputs: Inputs, topk: int) -> Tensor:
    listed = _blank(inputs)
    listed[:, inputs["used"]] = True
    return listed


def _ranked(inputs: Inputs, topk: int) -> Tensor:
    best = _scores(inputs).topk(max(inputs["head"].shortlist, topk), dim=1).indices
    return _blank(inputs).scatter_(1, best, True)


def _routed(inputs: Inputs, topk: int) -> Tensor:
    router, state = inputs["module"], inputs["state"]
    scores = router(inputs["base"].embedding[state.tokens], state.previous).float()  # (N, M)
    sizes = router.assignment.bincount(minlength=router.clusters)
    opened = top_clusters(scores, sizes, inputs["head"].budgets[-1], topk)
    together = opened.view(state.requests, -1, opened.shape[1]).any(1)  # (B, M)
    rows = together.repeat_interleave(len(opened) // state.requests, 0)
    return rows[:, router.assignment]


def _of_the_text(inputs: Inputs, topk: int) -> Tensor:
    state, listed = inputs["state"], _used(inputs, topk)
    rows = state.context.repeat_interleave(len(listed) // state.requests, 0)  # (N, C)
    return listed.scatter_(1, rows, True)


def _core_and_ranked(inputs: Inputs, topk: int) -> Tensor:
    core = _used(inputs, topk)
    scores = _scores(inputs).masked_fill(core, float("-inf"))
    tail = scores.topk(inputs["head"].tail_size, dim=1).indices
    return core.scatter_(1, tail, True)


_LISTS: dict[str, Callable[[Inputs, int], Tensor]] = {
    "static": _used,
    "ranker": _ranked,
    "router": _routed,
    "context": _of_the_text,
    "hybrid": _core_and_ranked,
}
