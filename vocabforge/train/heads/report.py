"""Comparison of draft heads with the full head for each draft step of the TTT unroll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from ..ttt import shift_left
from .states import DraftingRows, average_precision, best_columns, drafting_rows, labels_of

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
        Leviathan et al. 2023) and ``acceptance_lost`` relative to the full head; for a router, otherwise None,
        ``average_precision`` of its ranking. Overall figures have ``chain_accepted_length`` and ``chain_lost``
        instead of ``conditional``.
    """
    everyone = {FULL: exact_head(drafter), **heads}
    sums = {name: torch.zeros(steps, len(_FIELDS), dtype=torch.float64) for name in everyone}
    with ProgressBar("measure the draft heads", count, "batches") as bar:
        for batch in batches:
            alive = {name: torch.ones_like(batch.loss_mask) for name in everyone}
            for rows in drafting_rows(drafter, batch, steps):
                for name, hit in _hits(everyone, target, batch, rows, top_n, sums).items():
                    counted = alive[name] & rows.counted
                    alive[name] = alive[name] & hit
                    chained = torch.stack([counted.sum(), (alive[name] & counted).sum()])
                    sums[name][rows.state.step, -2:] += chained.cpu()
            bar.update(1)
    return _summary(everyone, sums, target.vocab_size, steps)


def _hits(
    heads: Mapping[str, DraftHead],
    target: HFTarget | TargetHead,
    batch: CapturedBatch,
    rows: DraftingRows,
    top_n: int,
    sums: dict[str, Tensor],
) -> dict[str, Tensor]:
    """Add the rows of a draft step to ``sums``; return bool (B, T) hits by head."""
    hits = {name: torch.zeros_like(rows.counted) for name in heads}
    teacher = shift_left(batch.hidden, rows.state.step + 1)[rows.where]  # (M, H)
    at_once = max(1, _WORKSPACE_BYTES // (24 * target.vocab_size))  # half a dozen (m, V) fp32 tensors
    for start in range(0, len(teacher), at_once):
        part = slice(start, start + at_once)
        taught = target.logits(teacher[part]).float().softmax(-1)
        full = _dense(heads[FULL], rows, part, target.vocab_size)
        for name, head in heads.items():
            draft = full if name == FULL else _dense(head, rows, part, target.vocab_size)
            best = draft.argmax(-1)
            correct = best == taught.argmax(-1)
            hits[name][tuple(index[part] for index in rows.where)] = correct
            values: tuple[float | Tensor, ...] = (
                len(draft),
                (best == full.argmax(-1)).sum(),
                draft.isfinite().sum(),
                correct.sum(),
                torch.minimum(taught, draft.exp()).sum(-1).sum(),
                _precision(head, rows.state.part(part), full, top_n),
            )
            sums[name][rows.state.step, :-2] += torch.tensor(list(map(float, values)), dtype=torch.float64)
    return hits


def _dense(head: DraftHead, rows: DraftingRows, part: slice, vocab_size: int) -> Tensor:
    """Return log-probabilities (m, V), -inf for tokens that the head cannot propose."""
    known = head.log_probs(rows.hidden[part], rows.state.part(part))
    if known.shape[-1] == vocab_size:
        return known
    dense = known.new_full((len(known), vocab_size), float("-inf"))
    return dense.index_copy_(-1, head.target_ids, known)


def _precision(head: DraftHead, state: DraftState, full: Tensor, top_n: int) -> float:
    """Sum a router's average precision over rows.

    Args:
        full: (m, V) log-probabilities of the full head.
    """
    if not isinstance(head, RouterHead):
        return 0.0
    best = best_columns(full[:, head.target_ids][:, : len(head.cluster)], top_n)
    labels = labels_of(best, head.cluster, head.router.clusters)
    return float(average_precision(head.cluster_scores(state), labels).sum())


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
        overall = entry["overall"]
        precision = overall["average_precision"]
        rows.append(
            [
                name,
                f"{overall['argmax_recall']:.1%}",
                f"{overall['shortlist']:,.0f}",
                f"{overall['shortlist_share']:.0%}",
                None if precision is None else f"{precision:.3f}",
                f"{overall['accuracy']:.1%}",
                *(f"{overall[key]:.3f}" for key in ("acceptance", "acceptance_lost")),
                *(f"{overall[key]:.2f}" for key in ("chain_accepted_length", "chain_lost")),
            ]
        )
    columns = ["head<", "argmax recall", "short- list", "of V", "AP", "accuracy"]
    columns += ["accept- ance", "lost", "chain", "chain lost"]
    return DataTable(f"Draft heads against the full head, {report['steps']} draft steps", columns, rows)
