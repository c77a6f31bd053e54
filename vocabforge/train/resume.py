"""Resuming of runs: checkpoints and the record of the settings."""

from __future__ import annotations

from typing import Any

import torch

from ..core.artifact import open_artifact
from ..core.console import say
from ..core.errors import ArtifactError
from ..core.files import atomic_write, atomic_write_json
from ..models.drafters.io import KIND
from ..models.heads.io import KIND as HEAD_KIND
from . import checkpoint as checkpoints
from .checkpoint import trained
from .heads.draft_heads import FOLDER, configured, head_name
from .machine import uses_bf16
from .trainer import Trainer

HELDOUT_PROMPTS = "heldout_prompts.jsonl"


def keep(trainer: Trainer, step: int) -> None:
    """Write a checkpoint. Collective."""
    strategy, group = trainer.strategy, trainer.group
    weights, optimizer = strategy.weights(), strategy.optimizer_state()
    if group.rank == 0:
        facts = {**trainer.facts, **_division(trainer)}
        state = checkpoints.RunState(weights, optimizer, facts)
        folder = trainer.config.output / "checkpoints"
        checkpoints.save_checkpoint(folder, step, state, trainer.identity, trainer.config.run.keep)
    group.wait()


def resume(trainer: Trainer) -> int:
    """Load the newest checkpoint, if any; return the step to continue from. Collective.

    Raises:
        UsageError: the checkpoint was made with other settings or inputs.
        ArtifactError: all checkpoints are damaged.
    """
    config, group = trainer.config, trainer.group
    folder = config.output / "checkpoints"
    if group.rank == 0:
        checkpoints.remove_remains(folder)
    group.wait()
    latest = checkpoints.load_latest(folder, trainer.identity)
    if latest is None:
        return 0
    step, state = latest
    trainer.strategy.load(state.weights, state.optimizer)
    trainer.facts = {key: value for key, value in state.facts.items() if key in ("best", "threads")}
    group.wait()  # others may still be reading
    if group.rank == 0:
        checkpoints.remove_old(folder, step, config.run.keep)
        say(f"Resuming at step {step} of {config.optim.steps} ({folder})")
        now = _division(trainer)
        before = {**now, **{name: state.facts[name] for name in now if name in state.facts}}
        if before != now:
            then, here = (f"{each['processes']} process(es), {each['strategy']}" for each in (before, now))
            say(
                f"The run began as {then}, and continues as {here}: the batches are the same, the last bits may "
                "differ."
            )
    return step


def _division(trainer: Trainer) -> dict[str, Any]:
    """Return how the work is shared between processes, which affects the last bits."""
    return {"processes": trainer.group.size, "strategy": trainer.strategy.name}


def is_finished(trainer: Trainer) -> bool:
    """Return whether the output folder contains the intact finished drafter and heads of this run."""
    config = trainer.config
    try:
        drafter = open_artifact(config.output / "drafter", KIND)
        heads = [
            open_artifact(config.output / FOLDER / head_name(key), HEAD_KIND)
            for key in configured(config.heads)
        ]
    except ArtifactError:
        return False
    of_run = drafter.meta.get("steps") == config.optim.steps and drafter.meta.get("run") == trainer.run_digest
    return of_run and all(head.manifest["parents"].get("drafter") == drafter.content_hash for head in heads)


def write_record(trainer: Trainer) -> None:
    """Write the resolved settings and held-out prompts; call it once the folder is known to be this run's."""
    if trainer.group.rank == 0:
        output = trainer.config.output
        atomic_write(output / HELDOUT_PROMPTS, trainer.data.prompts.read_bytes())
        atomic_write_json(output / "config.json", trainer.config.model_dump(mode="json"))


def start_facts(trainer: Trainer) -> dict[str, Any]:
    """Return facts about machine and data for the report."""
    return {
        "device": str(trainer.device),
        "precision": "bf16 passes" if uses_bf16(trainer.config, trainer.device) else "fp32",
        "processes": trainer.group.size,
        **({"threads": torch.get_num_threads()} if trainer.device.type == "cpu" else {}),
        "strategy": trainer.strategy.name,
        "training rows": f"{len(trainer.data.train):,}",
        "trained parameters": f"{sum(p.numel() for p in trained(trainer.step_module).values()):,}",
    }
