"""Looking at a drafter while it trains: held-out figures, the real decoder, and copies to look at."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.online import CapturedBatch
from ..core.artifact import check_output
from ..core.errors import DataError
from ..core.metrics_log import MetricsLog
from ..core.progress import say
from ..models.drafter import Drafter
from ..models.drafter_io import save_drafter
from ..models.drafters import new_drafter
from .eval_line import eval_line
from .metrics import TTTTotals
from .trainer import Trainer
from .ttt import rows_by_step


@torch.no_grad()
def heldout_figures(trainer: Trainer) -> dict[str, Any]:
    """Figures over the first ``eval_rows`` held-out rows, shared by all processes; see ``TTTTotals.summary``."""
    config, group, steps = trainer.config, trainer.group, trainer.steps
    totals = TTTTotals.zeros(steps)
    trainer.step_module.eval()
    count = min(len(trainer.data.heldout), config.run.eval_rows)
    micro = trainer.division.micro
    for first in range(0, count, group.size * micro):
        at = first + group.rank * micro
        rows = list(range(at, min(at + micro, count)))
        # Every process must take part in every pass: one without rows looks at the first again, uncounted.
        batch = trainer.capture("heldout", rows or [0])
        _check_finite(batch, rows)
        counts = rows_by_step(batch.loss_mask, batch.document, steps)
        with trainer.autocast():
            _, figures, _ = trainer.strategy.forward(batch, steps, counts)
        if rows:
            totals.add(figures)
    trainer.step_module.train()
    if group.size > 1:
        summed = group.sum(totals.to_vector().cpu().numpy())
        totals = TTTTotals.from_vector(torch.from_numpy(summed))
    return totals.summary()


def _check_finite(batch: CapturedBatch, rows: list[int]) -> None:
    """Refuse states that would make nonsense of every figure.

    Raises:
        DataError: NaN or infinity, with the rows.
    """
    if not bool(torch.isfinite(batch.hidden).all() and torch.isfinite(batch.features).all()):
        raise DataError(
            "the target's states of held-out rows are not finite",
            got=f"NaN or infinity in rows {rows}",
            source="packed rows of the held-out data",
            remedy="inspect these rows; in float16 try capture.dtype=bfloat16 or float32",
        )


def look(trainer: Trainer, step: int, log: MetricsLog) -> dict[str, Any]:
    """Held-out figures of every TTT step and the real decoder's, into the log; keeps the best drafter.

    ``best/`` is judged by the real decoder's accepted length, or, where nothing is decoded, by the simulated one.
    """
    summary = heldout_figures(trainer)
    log.write(kind="heldout", step=step, time=time.time(), **summary)
    weights = trainer.strategy.weights()
    if trainer.group.rank == 0:
        live: dict[str, Any] = {}
        if trainer.live is not None:
            live = dict(trainer.live(*plain_copy(trainer, weights)))
        if live:
            log.write(kind="live", step=step, **live)
        name = "accepted_length" if live else "chain_accepted_length"
        value = float((live or summary)[name])
        known = trainer.facts.get("best", {})
        if known and known["name"] != name:
            say(f"best/ is now judged by {name.replace('_', ' ')}, not by {known['name'].replace('_', ' ')}.")
            known = {}
        best = value > known.get("value", 0.0)
        say(eval_line(step, trainer.config.optim.steps, summary, live, best=best))
        if best:
            trainer.facts["best"] = {"step": step, "value": value, "name": name}
            save_plain(trainer, trainer.config.output / "best", weights, {"steps": step, "heldout": summary})
    trainer.group.wait()
    return summary


def save_plain(
    trainer: Trainer, path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> tuple[Drafter, dict[str, nn.Module]]:
    """Write a drafter artefact with these weights; returns the drafter and its heads."""
    check_output(path, overwrite=True)
    drafter, heads = plain_copy(trainer, weights)
    facts = {**trainer.meta, "run": trainer.run_digest, **meta}
    save_drafter(path, drafter, facts, config=trainer.config.model_dump(mode="json"), overwrite=True)
    return drafter, heads


def plain_copy(trainer: Trainer, weights: Mapping[str, Tensor]) -> tuple[Drafter, dict[str, nn.Module]]:
    """Drafter and heads as ordinary modules with these weights, over the target's own tensors.

    Args:
        weights: full tensors by name in the step (``drafter.*``, ``heads.*``); what is missing (a frozen
            drafter's) is taken from the modules themselves.
    """
    source = trainer.step_module.drafter
    ids = source.target_ids if source.has_own_head else None
    with torch.random.fork_rng(devices=[]):  # their initial weights are drawn, and thrown away
        drafter = new_drafter(source.kind, source.config, source.embedding, source.target_head, ids)
        heads = {name: _like(head) for name, head in trainer.step_module.heads.items()}
    drafter.to(source.embedding.device)
    modules = {"drafter": drafter, **{f"heads.{name}": head for name, head in heads.items()}}
    originals = {"drafter": source, **{f"heads.{name}": h for name, h in trainer.step_module.heads.items()}}
    with torch.no_grad():
        for prefix, module in modules.items():
            before = dict(originals[prefix].named_parameters())
            for name, parameter in module.named_parameters():  # type: ignore[attr-defined]
                parameter.copy_(weights.get(f"{prefix}.{name}", before[name]))
    drafter.eval()
    return drafter, heads


def _like(head: Any) -> nn.Module:
    """An uninitialised scorer of the same sizes on the same device."""
    vocab, rank = head.head_weight.shape
    return type(head)(head.down.in_features, vocab, rank).to(head.head_weight.device)
