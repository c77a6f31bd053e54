"""How a run ends: the finished drafter and its heads, or the rows that spoiled a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from ..capture.online import CapturedBatch
from ..core.errors import DataError
from ..core.metrics_log import MetricsLog
from ..core.progress import say
from ..models.drafter import Drafter
from .draft_heads import draft_heads, save_heads
from .head_report import head_report
from .heldout import heldout_figures, save_plain
from .trainer import Trainer


def name_bad_rows(trainer: Trainer, step: int, rows: Sequence[int], what: str) -> NoReturn:
    """Stop a run whose loss or gradient is not finite, naming the packed rows that did it.

    Args:
        what: ``loss`` or ``gradient``.

    Raises:
        DataError: always, on every process.
    """
    mine = [row for part in trainer.division.own(rows) for row in part]
    bad = [row for row in mine if not _is_finite(trainer, row)]
    named = sorted({row for part in trainer.group.gather(bad) for row in part})
    raise DataError(
        f"the training {what} is not finite",
        got=f"at step {step + 1}; the target's states are "
        + (f"not finite in rows {named}" if named else "finite in each of its rows"),
        source=f"packed rows {list(rows)}",
        remedy="lower optim.lr or inspect these rows; the last checkpoint is intact",
    )


@torch.no_grad()
def _is_finite(trainer: Trainer, row: int) -> bool:
    """Whether the target's states of a row are finite, and what the drafter reads of them."""
    batch = trainer.capture("train", [row])
    return bool(torch.isfinite(batch.features).all() and torch.isfinite(batch.hidden).all())


@torch.no_grad()
def head_figures(trainer: Trainer, drafter: Drafter, heads: Mapping[str, nn.Module]) -> dict[str, Any]:
    """The report of every trained draft head over held-out rows; see :func:`.head_report.head_report`."""
    made = draft_heads(drafter, heads, trainer.config.heads)
    return head_report(drafter, trainer.target, made, _heldout(trainer), trainer.steps)


def finish(trainer: Trainer, log: MetricsLog) -> Path:
    """Write the finished drafter and its heads, with their figures. Collective.

    Returns:
        the drafter's folder.
    """
    config, group = trainer.config, trainer.group
    path, steps = config.output / "drafter", config.optim.steps
    seen = trainer.summary
    summary = seen[1] if seen is not None and seen[0] == steps else heldout_figures(trainer)
    weights = trainer.strategy.weights()
    if group.rank == 0:
        meta = {"steps": steps, "heldout": summary, **trainer.facts}
        drafter, heads = save_plain(trainer, path, weights, meta)
        if heads:
            say("Comparing the draft heads with the full head on held-out rows")
            figures = head_figures(trainer, drafter, heads)
            log.write(kind="heads", step=steps, heads=figures)
            save_heads(
                config.output,
                heads,
                config.heads,
                drafter=path,
                meta={**trainer.meta, "report": figures},
                resolved=config.model_dump(mode="json"),
            )
    elif getattr(trainer.target, "tensor_parallel", False) and len(trainer.step_module.heads):
        capture_heldout(trainer)  # every process must take part in the target's passes
    group.wait()
    return path


def capture_heldout(trainer: Trainer) -> None:
    """Take part in the passes that :func:`head_figures` asks the target for."""
    for _ in _heldout(trainer):
        pass


def _heldout(trainer: Trainer) -> Iterator[CapturedBatch]:
    count = min(len(trainer.data.heldout), trainer.config.run.eval_rows)
    return (trainer.capture("heldout", [row]) for row in range(count))
