"""``vocabforge train-router``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.config import StrictModel, option
from ...core.console import say
from ..app import FreshOption, JsonOption, PlanOption, print_json, stdout_console
from .plan_tables import print_plan


class RouterRequest(StrictModel):
    """The recipe, and options that override it."""

    config: Path | None = option(
        None,
        "Recipe: a YAML file or a name of `vocabforge recipes`. The options below override it.",
        short="-c",
    )
    target: Path | None = option(None, "Target: a folder, a GGUF file, or a name of the Hub.", "DIR")
    drafter: Path | None = option(None, "Trained EAGLE or block drafter. It is not modified.", "DIR")
    clusters: Path | None = option(None, "Clusters made by `cluster-vocab`.", "DIR")
    input: tuple[Path, ...] = option((), "Training texts or conversations.", "PATH", many=True)
    output: Path | None = option(None, "Run folder; the router is in DIR/router.", "DIR")
    overrides: tuple[str, ...] = option(
        (), "Override configuration keys, e.g. optim.steps=500.", "KEY.SUB=VALUE", positional=True
    )

    def values(self) -> dict[str, Any]:
        """Return configuration keys, before overrides."""
        from ...core.config import read_yaml

        values: dict[str, Any] = read_yaml(self.config) if self.config is not None else {}
        given = {name: getattr(self, name) for name in ("target", "drafter", "clusters", "output")}
        values |= {key: str(value) for key, value in given.items() if value is not None}
        if self.input:
            values["data"] = {**(values.get("data") or {}), "train": [str(path) for path in self.input]}
        return values


def train_router(
    recipe: RouterRequest,
    plan_only: PlanOption = False,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a router over vocabulary clusters on a trained drafter's states (DynaSpec).

    Target and drafter are frozen; their states are computed during training. Re-run the command to resume an
    interrupted run. `vocabforge tune` or `eval --budget` compares budgets of clusters;
    `heads.router` in a recipe of `train-drafter` trains a router with the drafter.

    Run it directly, or on several GPUs with
    `accelerate launch --config_file $(vocabforge recipes path multi_gpu) -m vocabforge train-router ...`.

    Example: `vocabforge train-router --target model/ --drafter run/drafter --clusters clusters/
    --input chats.jsonl --output router-run/`
    """
    from ...core.config import apply_overrides, parse_config
    from ...core.files import read_json
    from ...train.config import RouterTrainConfig
    from ...train.heads.router_setup import plan
    from ...train.run import run_router_training

    values = apply_overrides(recipe.values(), recipe.overrides)
    settings = parse_config(RouterTrainConfig, values, source=recipe.config or "the command line")
    if plan_only:
        print_plan("train-router", plan(settings), as_json=as_json)
        return
    path = run_router_training(settings, fresh=fresh)
    if path is None:
        return
    report = read_json(settings.output / "report.json")
    if as_json:
        print_json({"router": str(path), "report": report})
        return

    from ...train.heads.report import report_table

    stdout_console(highlight=True).print(report_table(report))
    say(f"The router is in {path}")
