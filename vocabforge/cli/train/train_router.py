"""``vocabforge train-router``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.config import StrictModel
from ..app import FreshOption, JsonOption, PlanOption, print_json, stdout_console
from ..options.groups import option
from .plan_tables import print_plan

if TYPE_CHECKING:
    from ...train.heads.router_config import RouterTrainConfig


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
    from ...core.console import say
    from ...core.files import read_json
    from ...train.heads.router_config import RouterTrainConfig
    from ...train.heads.router_setup import plan

    values = apply_overrides(recipe.values(), recipe.overrides)
    settings = parse_config(RouterTrainConfig, values, source=recipe.config or "the command line")
    if plan_only:
        print_plan("train-router", plan(settings), as_json=as_json)
        return
    path = _trained(settings, fresh=fresh)
    if path is None:
        return
    report = read_json(settings.output / "report.json")
    if as_json:
        print_json({"router": str(path), "report": report})
        return

    from ...train.heads.report import report_table

    stdout_console(highlight=True).print(report_table(report))
    say(f"The router is in {path}")


def _trained(settings: RouterTrainConfig, *, fresh: bool) -> Path | None:
    """Run the training in this process; return the router's folder, or None in other ranks than 0.

    Args:
        fresh: discard an earlier run after the new run has been validated.
    """
    from ...core.lock import joined_run
    from ...export.registry import load_drafter
    from ...train.checkpoint import discard_run
    from ...train.heads.router import REPORT, ROUTER
    from ...train.heads.router_setup import build_router_trainer
    from ...train.machine import device_of

    with joined_run(settings.output, device_of(settings).type) as group:
        trainer = build_router_trainer(settings, load_drafter, group)
        if fresh and group.rank == 0:
            discard_run(settings.output, {ROUTER: "draft-head"}, ("metrics.jsonl", REPORT))
        group.wait()
        path = trainer.run()
        del trainer  # its parameters keep the process group alive; see ``joined``
    return path if group.rank == 0 else None
