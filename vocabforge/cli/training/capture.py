"""``vocabforge capture``."""

from __future__ import annotations

import sys

import typer

from ...core.config import ResultOptions
from ...core.errors import UsageError
from ...train.capture.config import CaptureRequest
from ..app import PlanOption, print_json
from .plan_tables import print_plan


def capture(cache: CaptureRequest, ending: ResultOptions, plan_only: PlanOption = False) -> None:
    """Write the target's hidden states for a recipe's data to disk, for training without the target.

    Pass the same recipe to train-drafter with capture.cache=DIR. In fp32, training is then bit-identical to
    training with the target in the process. Disk use is estimated first, and you are asked to confirm. Re-run
    the command to resume an interrupted run. Several processes share the work with --part or under a
    launcher.

    Example: `vocabforge capture --config qwen3-8b target=TARGET 'data.train=[chats.jsonl]' output=run/ --output
    states/ --store-dtype bfloat16`
    """
    from ...core.config import load_config
    from ...train.capture.run import plan_cache, run_capture
    from ...train.config import TrainConfig

    settings = load_config(TrainConfig, cache.config, cache.overrides)
    folder = cache.output or settings.capture.cache
    if folder is None:
        raise UsageError("no output folder was given", remedy="give --output DIR, or capture.cache=DIR")
    if plan_only:
        print_plan("capture", plan_cache(settings, folder, cache), as_json=ending.as_json)
        return
    result = run_capture(settings, folder, cache, _confirm, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(result)


def _confirm(needed: str) -> None:
    """Ask whether ``needed`` may be written; raise UsageError if it may not."""
    if not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation of the disk use",
            got=f"{needed} to write, and stdin is not a terminal",
            expected="--yes",
            remedy="pass --yes",
        )
    if not typer.confirm("Write them?", err=True):
        raise UsageError(
            "not confirmed: nothing was captured", got="no", expected="yes", remedy="answer y, or pass --yes"
        )
