"""``vocabforge train-drafter``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Optional

import typer

from .app import JsonOption, print_json


def train_drafter(
    overrides: Annotated[
        Optional[list[str]],  # noqa: UP045 (typer reads it at run time)
        typer.Argument(metavar="KEY.SUB=VALUE", help="Override configuration keys, e.g. optim.lr=1e-4."),
    ] = None,
    config: Annotated[Path, typer.Option("--config", "-c", help="Recipe (YAML); see recipes/.")] = ...,  # type: ignore[assignment]
    plan_only: Annotated[
        bool,
        typer.Option("--plan", help="Print the resolved configuration and what would be done, then stop."),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard a run in the output folder and start over.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train an EAGLE-3 drafter with the training-time-test (TTT) loss.

    The same command again resumes an interrupted run from its newest checkpoint. The finished drafter is
    OUTPUT/drafter; OUTPUT/heldout_prompts.jsonl holds prompts for `vocabforge eval` that were not trained on.

    Launch it plainly, or under `accelerate launch -m vocabforge train-drafter ...`.
    """
    from ..core.config import load_config
    from ..core.progress import say
    from ..train.config import TrainConfig
    from ..train.setup import build_trainer, plan

    settings = load_config(TrainConfig, config, overrides or [])
    if plan_only:
        print_json(plan(settings))
        return
    if fresh:
        for name in ("checkpoints", "drafter"):
            shutil.rmtree(settings.output / name, ignore_errors=True)
        (settings.output / "metrics.jsonl").unlink(missing_ok=True)
    path = build_trainer(settings).run()
    if as_json:
        from ..core.artifact import open_artifact

        print_json({"drafter": str(path), **open_artifact(path, "drafter", verify=False).meta})
    else:
        say(f"The drafter is in {path}")
