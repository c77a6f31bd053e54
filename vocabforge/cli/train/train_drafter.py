"""``vocabforge train-drafter``."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.config import StrictModel
from ..app import FreshOption, JsonOption, PlanOption, print_json
from ..options.groups import option
from .plan_tables import print_plan

if TYPE_CHECKING:
    from ...train.config import TrainConfig

IMPORTED = "init"  # subfolder of the output: the initial drafter, converted from another layout


def with_native(settings: TrainConfig, folder: Path, *, write: bool) -> TrainConfig:
    """Return settings whose ``drafter.init`` is a native artefact; convert other layouts to ``folder/init``.

    ``train`` does not import ``export``, so the conversion is done here.

    Args:
        write: convert now; other processes use the result of the first one.
    """
    from ...core.console import say
    from ...export.importing import import_drafter, is_native

    init = settings.drafter.init
    if init is None or is_native(init):
        return settings
    place = folder / IMPORTED
    if write and import_drafter(init, settings.target, place):
        say(f"Converted the drafter {init} to a native one")
    return settings.model_copy(update={"drafter": settings.drafter.model_copy(update={"init": place})})


@contextlib.contextmanager
def briefly_native(settings: TrainConfig) -> Iterator[TrainConfig]:
    """Yield :func:`with_native` of a temporary folder, to read the drafter's sizes."""
    with tempfile.TemporaryDirectory() as folder:
        yield with_native(settings, Path(folder), write=True)


_ARTIFACTS = {
    IMPORTED: "drafter",
    "drafter": "drafter",
    "best": "drafter",
    "heads/ranker": "draft-head",
    "heads/small-ranker": "draft-head",
    "heads/low-rank": "draft-head",
    "heads/router": "draft-head",
}
_FILES = ("metrics.jsonl", "trackers.json", "report.html", "report.json")


class TrainRequest(StrictModel):
    """The recipe and its overrides."""

    config: Path = option(..., "Recipe: a YAML file, or a name of `vocabforge recipes`.", short="-c")
    overrides: tuple[str, ...] = option(
        (),
        "Override a key of the recipe, e.g. optim.lr=1e-4 or optim.epochs=2.",
        "KEY.SUB=VALUE",
        positional=True,
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
    (best so far), OUTPUT/report.html, and OUTPUT/heldout_prompts.jsonl with held-out prompts for `vocabforge
    eval`.

    drafter.init=FOLDER continues from a trained drafter in any layout that `vocabforge export` writes.

    Run it directly, or on several GPUs with
    `accelerate launch --config_file $(vocabforge recipes path multi_gpu) -m vocabforge train-drafter ...`.

    Sections of a recipe: data (texts), capture (the target's hidden states), drafter (architecture), heads
    (draft heads), joint (Medusa-2), ttt (loss), optim, memory, run. `vocabforge recipes keys` explains every
    key.

    Example: `vocabforge train-drafter --config qwen3-0.6b target=Qwen/Qwen3-0.6B 'data.train=[chats.jsonl]'
        output=run`
    """
    from ...core.artifact import open_artifact
    from ...core.config import load_config
    from ...core.console import say
    from ...evaluate.reports.training import write_report
    from ...train.config import TrainConfig

    settings = load_config(TrainConfig, recipe.config, recipe.overrides)
    if plan_only:
        print_plan("train-drafter", _planned(settings), as_json=as_json)
        return
    path = run_training(settings, fresh=fresh)
    if path is None:
        return
    report = write_report(settings.output)
    if as_json:
        meta = open_artifact(path, "drafter", verify=False).meta
        print_json({"drafter": str(path), "report": str(report), **meta})
    else:
        say(f"The drafter is in {path}, its figures in {report}")


def run_training(settings: TrainConfig, *, fresh: bool) -> Path | None:
    """Run the training in this process; return the drafter's path, or None in other ranks than 0.

    Args:
        fresh: discard an earlier run after the new run has been validated.
    """
    from ...core.lock import joined_run
    from ...train.loop import train
    from ...train.machine import device_of
    from ...train.setup import build_trainer

    with joined_run(settings.output, device_of(settings).type) as group:
        settings = with_native(settings, settings.output, write=group.rank == 0)
        group.wait()
        trainer = build_trainer(settings, group, _make_live)
        if fresh and group.rank == 0:
            _discard(settings)
        group.wait()
        path = train(trainer)
        del trainer  # its parameters keep the process group alive; see ``joined``
    return path if group.rank == 0 else None


def _planned(settings: TrainConfig) -> dict[str, Any]:
    from ...train.plan import plan

    with briefly_native(settings) as native:
        found = plan(native)
    if native is not settings:
        found["config"]["drafter"]["init"] = str(settings.drafter.init)
        found["writes"].append(str(settings.output / IMPORTED))
    return found


def _discard(settings: TrainConfig) -> None:
    """Remove the files of an earlier run, but no other files, after the new run has been validated."""
    from ...train.checkpoint import discard_run
    from ...train.config import JOINT_TARGET

    output = settings.output
    joint = {} if settings.joint is None else {JOINT_TARGET: "target"}
    discard_run(output, _ARTIFACTS | joint, _FILES, keep=settings.drafter.init)
    for events in (output / "tensorboard").rglob("events.out.tfevents*"):
        events.unlink()


def _make_live(target: Any, prompts: Path, config: TrainConfig, tokenizer: Any) -> Any:
    """Return the real decoder on held-out prompts; ``train`` does not import ``evaluate``."""
    from ...evaluate.acceptance.live import live_acceptance
    from ...train.heads.draft_heads import configured, shortlist_of

    return live_acceptance(
        target,
        prompts,
        tokenizer,
        config.run.live,
        chain_steps=config.ttt.steps,
        shortlists={
            key: size
            for key, head in configured(config.heads).items()
            if (size := shortlist_of(key, head)) is not None
        },
        folder=config.target,
    )
