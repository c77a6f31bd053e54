"""Comparison of draft heads with the full head for each draft step of the TTT unroll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.console import DataTable
from ...core.progress import ProgressBar
from ...models.drafters.interface import Drafter
from ...models.heads.registry import DraftHead, DraftState, RouterHead, exact_head
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget
from ..capture.online import CapturedBatch
from ..metrics import expected_accepted_length
from .states import DraftingRows, average_precision, drafting_rows, router_labels

FULL = "full"
TOP = 10
_WORKSPACE_BYTES = 256 * 2**20
_FIELDS = (
    "rows",
    "argmax",
    "shortlist",
    "correct",
    "acceptance",
    "precision",
    "chained_rows",
    "chained_hits",
)


@torch.no_grad()
def head_report(
    drafter: Drafter,
    target: HFTarget | TargetHead,
    heads: Mapping[str, DraftHead],
    batches: Iterable[CapturedBatch],
    steps: int,
    *,
    count: int | None = None,
    top_n: int = TOP,
) -> dict[str, Any]:
    """Compare draft heads with the drafter's own head on the counted rows of held-out batches.

    Every row has its own shortlist. In a draft tree the rows of a step may share a union, which is never
    smaller.

    Args:
        heads: heads by name, over the drafter's own head rows.
        steps: draft steps K.
        count: number of batches, if known.
        top_n: number of tokens that define a router's labels.

    Returns:
        ``{"vocab_size", "steps", "full": name, "heads": {name: {"overall": figures, "steps": [figures]}}}``.
        Figures: ``rows``; ``argmax_recall`` (argmax equals the full head's); ``shortlist`` (mean number of
        tokens with a probability) and ``shortlist_share`` of V; ``accuracy`` (argmax equals the target's);
        ``conditional`` (accuracy given that all earlier steps hit); ``acceptance`` (mean sum_v min(p, q),
        Leviathan et al. 2023) and ``acceptance_lost`` relative to the full head; ``average_precision`` of a
        router's ranking, otherwise None. Overall figures have ``chain_accepted_length`` and ``chain_lost``
        instead of ``conditional``.
    """
    everyone = {FULL: exact_head(drafter), **heads}
    sums = {name: torch.zeros(steps, len(_FIELDS), dtype=torch.float64) for name in everyone}
    with ProgressBar("measure the draft heads", count, "batches") as bar:
        for batch in batches:
            alive = {name: torch.ones_like(batch.loss_mask) for name in everyone}
            unrolled = list(drafting_rows(drafter, batch, steps))
            for rows, hits in zip(unrolled, _hits(everyone, target, batch, unrolled, top_n, sums)):
                for name, hit in hits.items():
                    counted = alive[name] & rows.counted
                    alive[name] = alive[name] & hit
                    row = sums[name][rows.state.step]
                    row[_FIELDS.index("chained_rows")] += int(counted.sum())
                    row[_FIELDS.index("chained_hits")] += int((alive[name] & counted).sum())
            bar.update(1)
    return _summary(everyone, sums, target.vocab_size, steps)


def _hits(
    heads: Mapping[str, DraftHead],
    target: HFTarget | TargetHead,
    batch: CapturedBatch,
    unrolled: Sequence[DraftingRows],
    top_n: int,
    sums: dict[str, Tensor],
) -> list[dict[str, Tensor]]:
    """Add all draft steps of a batch to ``sums``; return bool (B, T) hits by head for each step.

    The target's distribution at a position teaches one row of every step, so it is computed once.
    """
    hits = [{name: torch.zeros_like(rows.counted) for name in heads} for rows in unrolled]
    length = batch.hidden.shape[1]
    # (M,) ascending: flat position of each row's teacher.
    places = [rows.where[0] * length + rows.where[1] + rows.state.step + 1 for rows in unrolled]
    used = torch.cat(places).unique()
    at_once = max(1, _WORKSPACE_BYTES // (24 * target.vocab_size))  # half a dozen (m, V) fp32 tensors
    for some in used.split(at_once) if len(used) else ():
        teacher = target.logits(batch.hidden.flatten(0, 1)[some]).float().softmax(-1)
        teacher_best = teacher.argmax(-1)
        for rows, place, hit in zip(unrolled, places, hits):
            ends = some[[0, -1]] + place.new_tensor([0, 1])
            part = slice(*torch.searchsorted(place, ends).tolist())
            if part.start == part.stop:
                continue
            at = torch.searchsorted(some, place[part])
            taught, taught_best = teacher[at], teacher_best[at]
            full = _dense(heads[FULL], rows, part, target.vocab_size)
            full_best = full.argmax(-1)
            where = tuple(index[part] for index in rows.where)
            for name, head in heads.items():
                draft = full if name == FULL else _dense(head, rows, part, target.vocab_size)
                best = draft.argmax(-1)
                hit[name][where] = correct = best == taught_best
                values = (
                    len(draft),
                    (best == full_best).sum(),
                    draft.isfinite().sum(),
                    correct.sum(),
                    torch.minimum(taught, draft.exp()).sum(-1).sum(),
                    _precision(head, rows.state.part(part), full, top_n),
                )
                sums[name][rows.state.step, : len(values)] += torch.tensor(
                    list(map(float, values)), dtype=torch.float64
                )
    return hits


def _dense(head: DraftHead, rows: DraftingRows, part: slice, vocab_size: int) -> Tensor:
    """Return log-probabilities (m, V), -inf for tokens that the head cannot propose."""
    known = head.log_probs(rows.hidden[part], rows.state.part(part))
    if known.shape[-1] == vocab_size:
        return known
    dense = known.new_full((len(known), vocab_size), float("-inf"))
    return dense.index_copy_(-1, head.target_ids, known)


def _precision(head: DraftHead, state: DraftState, full: Tensor, top_n: int) -> Tensor | float:
    """Sum a router's average precision over rows; ``full`` (m, V) are the full head's log-probabilities."""
    if not isinstance(head, RouterHead):
        return 0.0
    labels = router_labels(full[:, head.target_ids], head.cluster, head.router.clusters, top_n)
    return average_precision(head.cluster_scores(state), labels).sum()


def _summary(
    heads: Mapping[str, DraftHead], sums: Mapping[str, Tensor], vocab_size: int, steps: int
) -> dict[str, Any]:
    report: dict[str, Any] = {"vocab_size": vocab_size, "steps": steps, "full": FULL, "heads": {}}
    for name, head in heads.items():
        routed = isinstance(head, RouterHead)
        by_step = [_means(row, vocab_size, routed) for row in sums[name]]
        overall = _means(sums[name].sum(0), vocab_size, routed)
        overall["chain_accepted_length"] = expected_accepted_length([s["conditional"] for s in by_step])
        del overall["conditional"]
        report["heads"][name] = {"overall": overall, "steps": by_step}
    full = report["heads"][FULL]
    for entry in report["heads"].values():
        pairs = zip((entry["overall"], *entry["steps"]), (full["overall"], *full["steps"]), strict=True)
        for figures, best in pairs:
            figures["acceptance_lost"] = best["acceptance"] - figures["acceptance"]
        lost = full["overall"]["chain_accepted_length"] - entry["overall"]["chain_accepted_length"]
        entry["overall"]["chain_lost"] = lost
    return report


def _means(row: Tensor, vocab_size: int, routed: bool) -> dict[str, Any]:
    values = dict(zip(_FIELDS, row.tolist(), strict=True))
    rows = max(values["rows"], 1.0)
    return {
        "rows": int(values["rows"]),
        "argmax_recall": values["argmax"] / rows,
        "shortlist": values["shortlist"] / rows,
        "shortlist_share": values["shortlist"] / rows / vocab_size,
        "accuracy": values["correct"] / rows,
        "conditional": values["chained_hits"] / max(values["chained_rows"], 1.0),
        "acceptance": values["acceptance"] / rows,
        "average_precision": values["precision"] / rows if routed else None,
    }


def report_table(report: Mapping[str, Any]) -> DataTable:
    """Return a table with one row per head: recall, shortlist, acceptance and chain over all draft steps."""
    rows = []
    for name, entry in report["heads"].items():
        one = entry["overall"]
        precision = one["average_precision"]
        rows.append(
            [
                name,
                f"{one['argmax_recall']:.1%}",
                f"{one['shortlist']:,.0f}",
                f"{one['shortlist_share']:.0%}",
                None if precision is None else f"{precision:.3f}",
                f"{one['accuracy']:.1%}",
                *(f"{one[key]:.3f}" for key in ("acceptance", "acceptance_lost")),
                *(f"{one[key]:.2f}" for key in ("chain_accepted_length", "chain_lost")),
            ]
        )
    columns = ["head<", "argmax recall", "short- list", "of V", "AP", "accuracy"]
    columns += ["accept- ance", "lost", "chain", "chain lost"]
    return DataTable(f"Draft heads against the full head, {report['steps']} draft steps", columns, rows)
