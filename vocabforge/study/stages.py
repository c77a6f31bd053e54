"""The stages of a study, in order, each a command of its own; what is finished is found again by its content."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import DataError, UsageError
from ..core.extension import load_attribute
from ..core.files import atomic_write_json, read_json
from ..core.lock import only_writer
from ..core.progress import say
from ..evaluate.environment import describe_environment
from ..models.device import choose_device
from ..train.machine import keep_freed_memory
from .config import StudyConfig
from .layout import Layout

ALL = "all"


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        run: "module:function" of ``(config, layout)``, or of ``(config, layout, seed)``.
        about: what it makes, in a few words.
        needs: stages whose results it reads.
        by_seed: it runs once for every seed.
    """

    run: str
    about: str
    needs: tuple[str, ...] = ()
    by_seed: bool = False


# name -> stage, in order; a new stage is a file and a row.
STAGES: dict[str, Stage] = {
    "data": Stage("vocabforge.study.data:run", "conversations, held-out texts by source, questions"),
    "target": Stage("vocabforge.study.target:run", "the target model", ("data",)),
    "answers": Stage("vocabforge.study.answers:run", "what the target itself writes", ("target",)),
    "vocab": Stage("vocabforge.study.vocab:run", "draft vocabularies and clusters", ("answers",)),
    "drafters": Stage(
        "vocabforge.study.drafters:run", "drafters, rankers, routers of every seed", ("vocab",), by_seed=True
    ),
    "replay": Stage(
        "vocabforge.study.replaying:run",
        "acceptance of all methods on all questions",
        ("drafters",),
        by_seed=True,
    ),
    "check": Stage("vocabforge.study.check:run", "the decoder itself on a sample", ("replay",)),
    "times": Stage("vocabforge.study.times:run", "how long draft heads take", ("replay",)),
    "report": Stage("vocabforge.study.report:run", "tables, plots, claims", ("check", "times")),
}


def perform(config: StudyConfig, names: Sequence[str], seeds: Sequence[int] | None = None) -> None:
    """Run stages in the order of the table.

    Args:
        names: of :data:`STAGES`, or ``all``.
        seeds: of the configuration, for stages that run by seed; None: all of them.

    Raises:
        UsageError: no such stage or seed, or another process works in the folder.
        DataError: a stage before it is missing.
    """
    wanted = list(STAGES) if ALL in names else list(names)
    check_names(wanted)
    chosen = config.seeds if seeds is None else tuple(seeds)
    if not set(chosen) <= set(config.seeds):
        raise UsageError("the study has no such seed", got=list(chosen), expected=list(config.seeds))
    device = choose_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if device.type == "cpu":
        keep_freed_memory()  # logits of a block are tens of megabytes, made anew for every block
    layout = Layout(config.output)
    layout.root.mkdir(parents=True, exist_ok=True)
    with only_writer(layout.root):
        atomic_write_json(layout.root / "config.json", config.model_dump(mode="json"))
        record = StageRecord(layout.root / "stages.json", str(device))
        for name, stage in STAGES.items():
            if name in wanted:
                _check_before(layout, stage, name, record)
                _perform(config, layout, name, chosen, record)


def check_names(names: Sequence[str]) -> None:
    """Refuse what is no stage.

    Raises:
        UsageError: see above.
    """
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise UsageError(
            "the study has no such stage", got=", ".join(unknown), expected=", ".join([*STAGES, ALL])
        )


class StageRecord:
    """How long every stage took, and on what: OUTPUT/stages.json.

    A stage that finds everything finished adds a little to its seconds, not another row.
    """

    def __init__(self, path: Path, device: str) -> None:
        self._path = path
        self._rows: dict[str, Any] = read_json(path, "record of stages") if path.is_file() else {}
        self._environment = describe_environment(device=device, dtype="")

    def finished(self, name: str) -> bool:
        return bool(self._rows.get(name, {}).get("finished"))

    def begin(self, name: str) -> None:
        row = self._rows.setdefault(name, {"seconds": 0.0})
        row.update(finished=False, environment=self._environment)
        self._write()

    def end(self, name: str, seconds: float, *, finished: bool) -> None:
        """Add seconds; those of an interrupted stage count too."""
        row = self._rows[name]
        row.update(seconds=round(row["seconds"] + seconds, 1), finished=finished)
        self._write()

    def _write(self) -> None:
        atomic_write_json(self._path, self._rows)


def _check_before(layout: Layout, stage: Stage, name: str, record: StageRecord) -> None:
    missing = [before for before in stage.needs if not record.finished(before)]
    if missing:
        raise DataError(
            f"the stage {name} needs what another one makes",
            got=f"{', '.join(missing)}: not finished",
            source=layout.root,
            remedy=f"run `vocabforge study {missing[0]}` with the same configuration first, or `vocabforge study all`",
        )


def _perform(
    config: StudyConfig, layout: Layout, name: str, seeds: Sequence[int], record: StageRecord
) -> None:
    stage = STAGES[name]
    run: Callable[..., None] = load_attribute(stage.run)
    say(f"Stage {name}: {stage.about}")
    begun, finished = time.monotonic(), False
    record.begin(name)
    try:
        if stage.by_seed:
            for seed in seeds:
                say(f"Stage {name}, seed {seed}")
                run(config, layout, seed)
        else:
            run(config, layout)
        finished = not stage.by_seed or set(seeds) == set(config.seeds)
    finally:
        seconds = time.monotonic() - begun
        record.end(name, seconds, finished=finished)
    say(f"Stage {name}: done in " + (f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"))
