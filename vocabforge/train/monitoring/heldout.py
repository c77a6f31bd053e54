"""Evaluation during training: held-out figures, live decoding, and the finished artefacts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.artifact import check_output
from ...core.console import say
from ...core.errors import DataError
from ...core.journal import MetricsLog
from ...models.drafters.interface import Drafter, is_autoregressive
from ...models.drafters.io import save_drafter, stored_dtype
from ...models.drafters.registry import new_drafter
from ..heads.draft_heads import draft_heads, save_heads
from ..heads.report import TOP, head_report
from ..loss.rows import HELDOUT
from ..metrics import TTTTotals
from ..trainer import Trainer, is_finite

# Live decoding's share of the time between evaluations, and the seconds it may always take.
_LIVE_SHARE, _LIVE_AT_LEAST_S = 0.1, 10.0


@torch.no_grad()
def heldout_figures(trainer: Trainer) -> dict[str, Any]:
    """Compute figures over the first ``eval_rows`` held-out rows; see ``TTTTotals.summary``."""
    config, group, steps = trainer.config, trainer.group, trainer.steps
    totals = TTTTotals.zeros(steps)
    trainer.step_module.eval()
    count = min(len(trainer.data.heldout), config.run.eval_rows)
    division = trainer.division
    micro = division.micro
    for first in range(0, count, division.size * micro):
        at = first + division.rank * micro
        rows = list(range(at, min(at + micro, count)))
        # Every process must take part in every pass: without rows it evaluates row 0 and discards the result.
        batch = trainer.capture("heldout", rows or [0])
        if not is_finite(batch):  # NaN would invalidate all figures
            raise DataError(
                "the target's states of held-out rows are not finite",
                got=f"NaN or infinity in rows {rows}",
                source="packed rows of the held-out data",
                remedy="inspect these rows; in float16 try capture.dtype=bfloat16 or float32",
            )
        anchors = trainer.anchors(HELDOUT, batch, rows or [0])
        counts = trainer.rows_by_step(batch, steps, anchors)
        with trainer.autocast():
            _, figures, _ = trainer.strategy.forward(batch, steps, counts, None, anchors)
        if rows:
            totals.add(figures)
    trainer.step_module.train()
    return TTTTotals(torch.from_numpy(group.sum(totals.sums.numpy()))).summary()


def look(trainer: Trainer, step: int, log: MetricsLog, since_s: float) -> dict[str, Any]:
    """Log held-out figures of every TTT step and of live decoding; save the best drafter.

    ``best/`` is selected by the accepted length of live decoding, or by the simulated one without it.
    Live decoding takes a tenth of the ``since_s`` seconds since the last evaluation, except at the last step.
    """
    summary = heldout_figures(trainer)
    log.write(kind="heldout", step=step, time=time.time(), **summary)
    weights = trainer.strategy.weights()
    if trainer.group.rank == 0:
        live: dict[str, Any] = {}
        if trainer.live is not None:
            last = step == trainer.config.optim.steps
            budget = None if last else max(_LIVE_AT_LEAST_S, since_s * _LIVE_SHARE)
            live = dict(trainer.live(*plain_copy(trainer, weights), step, budget))
        judged = live.pop("judged_length", 0.0)
        if live:
            log.write(kind="live", step=step, **live)
        name = "accepted_length" if live else "chain_accepted_length"
        value = float(judged if live else summary[name])
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
    """Write a drafter artefact with these weights; return the drafter and its heads."""
    check_output(path, overwrite=True)
    drafter, heads = plain_copy(trainer, weights)
    facts = {**trainer.meta, "run": trainer.run_digest, **meta}
    # A frozen drafter is written as it was stored, so that the heads belong to it and to the copy alike.
    given = trainer.config.drafter
    dtype = stored_dtype(given.init) if given.init is not None and given.freeze else None
    resolved = trainer.config.model_dump(mode="json")
    save_drafter(path, drafter, facts, config=resolved, overwrite=True, dtype=dtype)
    return drafter, heads


def plain_copy(trainer: Trainer, weights: Mapping[str, Tensor]) -> tuple[Drafter, dict[str, nn.Module]]:
    """Return drafter and heads as ordinary modules over the target's tensors.

    Args:
        weights: full tensors (``drafter.*``, ``heads.*``); missing ones are copied from the modules.
    """
    source = trainer.step_module.drafter
    ids = source.target_ids if source.has_own_head or source.restricted else None
    scorers, heads = trainer.step_module.heads, {}
    with torch.random.fork_rng(devices=[]):  # initial weights are random, but overwritten below
        drafter = new_drafter(
            source.kind, source.config, source.embedding, source.target_head, ids, source.target_transform
        )
        for name, head in scorers.items():
            heads[name] = head.blank().to(source.embedding.device)
    drafter.to(source.embedding.device)
    modules = {"drafter": drafter, **{f"heads.{name}": head for name, head in heads.items()}}
    originals = {"drafter": source, **{f"heads.{name}": head for name, head in scorers.items()}}
    with torch.no_grad():
        for prefix, module in modules.items():
            before = originals[prefix].state_dict()
            for name, tensor in module.state_dict().items():
                tensor.copy_(weights.get(f"{prefix}.{name}", before[name]))
    drafter.eval()
    return drafter, heads


def eval_line(
    step: int,
    steps: int,
    heldout: Mapping[str, Any],
    live: Mapping[str, Any] | None = None,
    *,
    best: bool = False,
) -> str:
    """Format one line: accuracy by draft step, causes of misses, simulated and decoded accepted lengths.

    Args:
        heldout: result of :meth:`TTTTotals.summary`.
        live: figures of live decoding, if any.
        best: mark the line as the best evaluation so far.
    """
    accuracy = " ".join(f"{100 * value:.0f}" for value in heldout["accuracy"])
    missed = f"wrong {heldout['drafter_wrong'][0]:.0%}"
    if any(heldout["out_of_vocabulary"]):
        missed += f", outside {heldout['out_of_vocabulary'][0]:.0%}"
    parts = [
        f"{'*' if best else ' '} {step:>{len(str(steps))}}/{steps}",
        f"accuracy {accuracy}% ({missed})",
        f"simulated {heldout['chain_accepted_length']:.2f}, {heldout['sampled_accepted_length']:.2f} at T=1",
    ]
    if live:
        decoded = f"decoded {live['accepted_length']:.2f}"
        if live.get("chain_accepted_length") is not None:
            decoded += f", chain {live['chain_accepted_length']:.2f}"
        parts.append(decoded)
        for name, head in (live.get("heads") or {}).items():
            if head.get("share_of_full") is not None:
                parts.append(f"{name.replace('_', '-')} {head['share_of_full']:.1%} of it")
        if live["identical"] != live["prompts"]:
            parts.append(f"IDENTICAL ONLY {live['identical']} OF {live['prompts']}")
    return " | ".join(parts)


def finish(trainer: Trainer, log: MetricsLog) -> Path:
    """Write the finished drafter, its heads and their figures; return the drafter's folder. Collective."""
    config, group = trainer.config, trainer.group
    path, steps = config.output / "drafter", config.optim.steps
    seen = trainer.summary
    summary = seen[1] if seen is not None and seen[0] == steps else heldout_figures(trainer)
    weights = trainer.strategy.weights()
    count = min(len(trainer.data.heldout), config.run.eval_rows)
    batches = (trainer.capture("heldout", [row]) for row in range(count))
    if group.rank == 0:
        meta = {"steps": steps, "heldout": summary, **trainer.facts}
        drafter, heads = save_plain(trainer, path, weights, meta)
        if heads:
            say("Comparing the draft heads with the full head on held-out rows")
            made = draft_heads(drafter, heads, config.heads)
            top_n = TOP if config.heads.router is None else config.heads.router.top_n
            figures = head_report(
                drafter, trainer.target, made, batches, trainer.steps, count=count, top_n=top_n
            )
            log.write(kind="heads", step=steps, heads=figures)
            save_heads(
                config.output,
                heads,
                config.heads,
                drafter=path,
                meta={**trainer.meta, "report": figures},
                resolved=config.model_dump(mode="json"),
                decaying=is_autoregressive(drafter),
            )
    elif getattr(trainer.target, "tensor_parallel", False) and len(trainer.step_module.heads):
        for _ in batches:  # every process must take part in the target's passes
            pass
    group.wait()
    return path
