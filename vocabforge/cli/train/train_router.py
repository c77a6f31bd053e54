"""``vocabforge train-router``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..app import FreshOption, JsonOption, PlanOption, print_json, stdout_console
from .plan_tables import print_plan


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """The recipe, and the options that win over it."""

    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Recipe (YAML); the options below win over it.")
    ] = None
    target: Annotated[Path | None, typer.Option("--target", metavar="DIR", help="Target model folder.")] = (
        None
    )
    drafter: Annotated[
        Path | None,
        typer.Option("--drafter", metavar="DIR", help="Trained EAGLE drafter; it is not changed."),
    ] = None
    clusters: Annotated[
        Path | None, typer.Option("--clusters", metavar="DIR", help="Clusters made by `cluster-vocab`.")
    ] = None
    data: Annotated[
        list[Path] | None,
        typer.Option("--input", metavar="PATH", help="Text or conversations to learn from. May be repeated."),
    ] = None
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Run folder; the router is in DIR/router.")
    ] = None

    def values(self) -> dict[str, Any]:
        """Keys of the configuration, before overrides.

        Raises:
            ConfigError: the recipe cannot be read.
        """
        from ...core.config import read_yaml

        values: dict[str, Any] = read_yaml(self.config) if self.config is not None else {}
        given = {name: getattr(self, name) for name in ("target", "drafter", "clusters", "output")}
        values |= {key: str(value) for key, value in given.items() if value is not None}
        if self.data:
            values["data"] = {**(values.get("data") or {}), "train": [str(path) for path in self.data]}
        return values


def train_router(
    recipe: RecipeOptions,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY.SUB=VALUE", help="Override configuration keys, e.g. optim.steps=500."),
    ] = None,
    plan_only: PlanOption = False,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a router over vocabulary clusters on a trained drafter's states (DynaSpec).

    The states of every draft step are made from the data as training goes; target and drafter stay frozen. The
    same command again resumes an interrupted run. `vocabforge tune` or `eval --budget` compares budgets of clusters.

    Example: `vocabforge train-router --target model/ --drafter run/drafter --clusters clusters/
    --input chats.jsonl --output router-run/`
    """
    from ...core.config import apply_overrides, parse_config
    from ...core.console import say
    from ...core.files import check_run_folder, read_json
    from ...core.lock import only_writer
    from ...export.registry import load_drafter
    from ...train.checkpoint import discard_run
    from ...train.heads.router import REPORT, ROUTER
    from ...train.heads.router_config import RouterTrainConfig
    from ...train.heads.router_setup import build_router_trainer, plan

    values = apply_overrides(recipe.values(), overrides or [])
    settings = parse_config(RouterTrainConfig, values, source=recipe.config or "the command line")
    if plan_only:
        print_plan("train-router", plan(settings), as_json=as_json)
        return
    check_run_folder(settings.output)
    with only_writer(settings.output):
        trainer = build_router_trainer(settings, load_drafter)
        if fresh:  # the new run is sure to start
            discard_run(settings.output, {ROUTER: "draft-head"}, ("metrics.jsonl", REPORT))
        path = trainer.run()
        report = read_json(settings.output / "report.json")
    if as_json:
        print_json({"router": str(path), "report": report})
        return

    from ...train.heads.report import report_table

    stdout_console(highlight=True).print(report_table(report))
    say(f"The router is in {path}")
