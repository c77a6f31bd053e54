"""``vocabforge train-drafter``."""

from __future__ import annotations

from pathlib import Path

from ...core.config import StrictModel, option
from ...core.console import say
from ..app import FreshOption, JsonOption, PlanOption, print_json
from .plan_tables import print_plan


class TrainRequest(StrictModel):
    """The recipe and its overrides."""

    config: Path = option(..., "Recipe: a YAML file, or a name of `vocabforge recipes`.", short="-c")
    overrides: tuple[str, ...] = option(
        (),
        "Override a key of the recipe, e.g. optim.lr=1e-4 or optim.epochs=2.",
        "KEY.SUB=VALUE",
        positional=True,
    )
    dry_run: str | None = option(
        None,
        "Do not train: export an untrained drafter, start this server with it, send one prompt and check that it "
        "drafts. `{port}` and an export format in braces, as `{sglang-eagle3}`, are replaced by the port and the "
        "drafter's folder.",
        "COMMAND",
    )


def train_drafter(
    recipe: TrainRequest,
    plan_only: PlanOption = False,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a drafter (EAGLE-3, EAGLE-1/2, Medusa, P-EAGLE, DFlash, DSpark, MTP) and its draft heads.

    EAGLE drafters are unrolled over several draft steps (training-time test); block drafters train whole
    blocks.

    Re-run the command to resume from the newest checkpoint. Outputs: OUTPUT/drafter (final), OUTPUT/best
    (best so far), OUTPUT/report.png, and OUTPUT/heldout_prompts.jsonl with held-out prompts for `vocabforge
    eval`.

    drafter.init=FOLDER continues from a trained drafter in any layout that `vocabforge export` writes.

    Run it directly, or on several GPUs with
    `accelerate launch --config_file $(vocabforge recipes path multi_gpu) -m vocabforge train-drafter ...`.

    Sections of a recipe: data (texts), capture (the target's hidden states), drafter (architecture), heads
    (draft heads), ttt (loss), optim, memory, run. `vocabforge recipes keys` explains every key.

    Example: `vocabforge train-drafter --config qwen3-0.6b target=Qwen/Qwen3-0.6B 'data.train=[chats.jsonl]'
        output=run`
    """
    from ...core.artifact import open_artifact
    from ...core.config import load_config
    from ...export.forms import served_forms
    from ...train.config import TrainConfig
    from ...train.monitoring.report import write_report
    from ...train.run import plan_training, run_training

    settings = load_config(TrainConfig, recipe.config, recipe.overrides)
    if plan_only:
        facts = plan_training(settings)
        facts["served_by"] = served_forms(facts["drafter"], settings.drafter.vocab, settings.target)
        print_plan("train-drafter", facts, as_json=as_json)
        return
    if recipe.dry_run is not None:
        from ...export.dry_run import dry_run

        facts = dry_run(settings, recipe.dry_run)
        if as_json:
            print_json(facts)
        return
    path = run_training(settings, fresh=fresh)
    if path is None:
        return
    report, _ = write_report(settings.output)
    if as_json:
        meta = open_artifact(path, "drafter", verify=False).meta
        print_json({"drafter": str(path), "report": str(report), **meta})
    else:
        say(f"The drafter is in {path}, its figures in {report}")
