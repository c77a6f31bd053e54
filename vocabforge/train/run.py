"""Training runs from settings to artefacts: ``train-drafter``."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..core.artifact import open_artifact
from ..core.console import say
from ..core.distributed import joined
from ..core.errors import ArtifactError
from ..core.files import check_run_folder
from ..core.folders import take_away
from ..core.lock import only_writer
from ..layouts.importing import import_drafter, is_native
from .checkpoint import discard
from .config import TrainConfig
from .heads.draft_heads import FOLDER, KINDS, head_name
from .loop import train
from .machine import device_of
from .plan import plan
from .setup import build_trainer

IMPORTED = "init"  # subfolder of the output: the initial drafter, converted from another layout
_ARTIFACTS = dict.fromkeys((IMPORTED, "drafter", "best"), "drafter") | {
    f"{FOLDER}/{head_name(key)}": "draft-head" for key in KINDS
}
# report.html: of older versions
_FILES = ("metrics.jsonl", "trackers.json", "report.png", "report.html", "report.json")


def run_training(settings: TrainConfig, *, fresh: bool = False) -> Path | None:
    """Train a drafter in this process; return its folder, or None in other ranks than 0.

    Args:
        fresh: discard an earlier run after the new run has been validated.
    """
    with contextlib.ExitStack() as held:
        group = held.enter_context(joined(device_of(settings).type))
        if group.rank == 0:
            check_run_folder(settings.output)
            held.enter_context(only_writer(settings.output))
        group.wait()
        settings = with_native(settings, settings.output, write=group.rank == 0)
        group.wait()
        trainer = build_trainer(settings, group)
        if fresh and group.rank == 0:
            _discard(settings)
        group.wait()
        path = train(trainer)
        del trainer  # its parameters keep the process group alive
    return path if group.rank == 0 else None


def plan_training(settings: TrainConfig) -> dict[str, Any]:
    """Return :func:`~vocabforge.train.plan.plan` for a drafter to start from in any layout."""
    with briefly_native(settings) as native:
        facts = plan(native)
    if native is not settings:
        facts["config"]["drafter"]["init"] = str(settings.drafter.init)
        facts["writes"].append(str(settings.output / IMPORTED))
    return facts


def with_native(settings: TrainConfig, folder: Path, *, write: bool) -> TrainConfig:
    """Return settings whose ``drafter.init`` is a native artefact; convert other layouts to ``folder/init``.

    Args:
        write: convert now; other processes use the result of the first one.
    """
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


def _discard(settings: TrainConfig) -> None:
    """Remove the files of an earlier run, but no other files."""
    output = settings.output
    discard(output / "checkpoints")
    for name, kind in _ARTIFACTS.items():
        if output / name != settings.drafter.init:
            with contextlib.suppress(ArtifactError):
                take_away(open_artifact(output / name, kind, verify=False).path)
    for name in _FILES:
        (output / name).unlink(missing_ok=True)
    for events in (output / "tensorboard").rglob("events.out.tfevents*"):
        events.unlink()
