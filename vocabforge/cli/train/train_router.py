"""``vocabforge train-router``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.config import StrictModel
from ..app import FreshOption, JsonOption, PlanOption, print_json, stdout_console
from ..options.groups import option
from .plan_tables import print_plan


class RouterRequest(StrictModel):
    """The recipe, and the options that win over it."""

    config: Path | None = option(None, "Recipe (YAML); the options below win over it.", short="-c")
    target: Path | None = option(None, "Target model folder.", "DIR")
    drafter: Path | None = option(None, "Trained EAGLE drafter; it is not changed.", "DIR")
    clusters: Path | None = option(None, "Clusters made by `cluster-vocab`.", "DIR")
    input: tuple[Path, ...] = option((), "Text or conversations to learn from.", "PATH", many=True)
    output: Path | None = option(None, "Run folder; the router is in DIR/router.", "DIR")
    overrides: tuple[str, ...] = option(
        (), "Override configuration keys, e.g. optim.steps=500.", "KEY.SUB=VALUE", positional=True
    )

    def values(self) -> dict[str, Any]:
        """Keys of the configuration, before overrides."""
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

    values = apply_overrides(recipe.values(), recipe.overrides)
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
