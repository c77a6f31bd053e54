"""The stages of a study, in order, each a command of its own; what is finished is found again by its content."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..core.console import say
from ..core.errors import DataError, UsageError
from ..core.files import atomic_write_json, read_json
from ..core.lock import only_writer
from ..core.registry import load_attribute
from ..corpus.regenerate.rows import content_digest
from ..evaluate.run.environment import describe_environment
from ..models.device import choose_device
from ..train.machine import keep_freed_memory
from .config import StudyConfig
from .layout import StudyLayout

ALL = "all"


class Stage(NamedTuple):
    """One stage.

    Attributes:
        run: "module:function" of ``(config, layout)``, or of ``(config, layout, seed)``.
        about: what it makes, in a few words.
        needs: stages whose results it reads.
        reads: sections of the configuration, or keys of them, that decide what it makes, beside those of the stages
            that it needs.
        by_seed: it runs once for every seed.
    """

    run: str
    about: str
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    by_seed: bool = False


# name -> stage, in order; a new stage is a file and a row.
STAGES: dict[str, Stage] = {
    "data": Stage(
        "vocabforge.study.stage_data:run", "conversations, held-out texts by source, questions", (), ("data",)
    ),
    "target": Stage("vocabforge.study.stage_target:run", "the target model", ("data",), ("target",)),
    "answers": Stage(
        "vocabforge.study.stage_answers:run", "what the target itself writes", ("target",), ("answers",)
    ),
    "vocab": Stage(
        "vocabforge.study.stage_vocab:run",
        "draft vocabularies and clusters",
        ("answers",),
        ("methods", "drafters.reduced_size"),
    ),
    "drafters": Stage(
        "vocabforge.study.stage_drafters:run",
        "drafters, rankers, routers of every seed",
        ("vocab",),
        ("drafters",),
        by_seed=True,
    ),
    "replay": Stage(
        "vocabforge.study.stage_replay:run",
        "acceptance of all methods on all questions",
        ("drafters",),
        ("replay",),
        by_seed=True,
    ),
    "check": Stage(
        "vocabforge.study.stage_check:run", "the decoder itself on a sample", ("replay",), ("check",)
    ),
    "times": Stage("vocabforge.study.times.stage:run", "how long draft heads take", ("replay",), ("times",)),
    "report": Stage("vocabforge.study.report.stage:run", "tables, plots, page", ("check", "times")),
}


def perform(config: StudyConfig, names: Sequence[str], seeds: Sequence[int] | None = None) -> None:
    """Run stages in the order of the table.

    Args:
        names: of :data:`STAGES`, or ``all``.
        seeds: of the configuration, for stages that run by seed; None: all of them.

    Raises:
        UsageError: no such stage or seed, or another process works in the folder, or on these seeds.
        DataError: a stage before it is missing.
    """
    wanted = list(STAGES) if ALL in names else list(names)
    check_names(wanted)
    chosen = config.seeds if seeds is None else tuple(seeds)
    if not set(chosen) <= set(config.seeds):
        raise UsageError("the study has no such seed", got=list(chosen), expected=list(config.seeds))
    if seeds is not None and not any(STAGES[name].by_seed for name in wanted):
        by_seed = [name for name, stage in STAGES.items() if stage.by_seed]
        raise UsageError(
            "none of these stages runs by seed",
            got=", ".join(wanted),
            expected=" or ".join(by_seed),
            remedy="leave --seed out",
        )
    device = choose_device(config.device)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if device.type == "cpu":
        keep_freed_memory()  # logits of a block are tens of megabytes, made anew for every block
    layout = StudyLayout(config.output)
    layout.root.mkdir(parents=True, exist_ok=True)
    with _held(layout, wanted, None if seeds is None else chosen):
        record = StageRecord(layout.root / "stages.json", config)
        for name, stage in STAGES.items():
            if name in wanted:
                _check_before(layout, name, record, chosen if stage.by_seed else config.seeds)
                with only_writer(layout.root / "config.json", wait=True):
                    atomic_write_json(layout.root / "config.json", config.model_dump(mode="json"))
                _perform(config, layout, name, chosen, record)


@contextlib.contextmanager
def _held(layout: StudyLayout, wanted: Sequence[str], seeds: Sequence[int] | None) -> Iterator[None]:
    """The study's folder for this process; for stages of some seeds only these, so that others can be made beside.

    Raises:
        UsageError: another process works there.
    """
    apart = seeds is not None and all(STAGES[name].by_seed for name in wanted)
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_writer(layout.root, shared=apart))
        for seed in seeds or () if apart else ():
            stack.enter_context(only_writer(layout.seed(seed)))
        yield


def check_names(names: Sequence[str]) -> None:
    """Refuse what is no stage.

    Raises:
        UsageError: see above.
    """
    if not names:
        raise UsageError("no stage is named", expected=", ".join([*STAGES, ALL]))
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        raise UsageError(
            "the study has no such stage", got=", ".join(unknown), expected=", ".join([*STAGES, ALL])
        )


def digest_of(config: StudyConfig, name: str) -> str:
    """Hex hash of the settings that decide what a stage makes; where and on what it runs is not among them."""
    body = config.model_dump(mode="json")
    body["data"].pop("root")
    chosen = {}
    for path in sorted({path for one in (name, *_before(name)) for path in STAGES[one].reads}):
        section, _, key = path.partition(".")
        chosen[path] = body[section][key] if key else body[section]
    return content_digest(chosen)


def _before(name: str) -> Iterator[str]:
    """Every stage that a stage rests on."""
    for before in STAGES[name].needs:
        yield before
        yield from _before(before)


class StageRecord:
    """How long every stage took, on what, with which settings and for which seeds it is finished: OUTPUT/stages.json.

    A stage that finds everything finished adds a little to its seconds, not another row.
    """

    def __init__(self, path: Path, config: StudyConfig) -> None:
        self._path, self._config = path, config
        self._rows = self._read()
        device = str(choose_device(config.device))
        self._environment = describe_environment(device=device, dtype="")

    def missing(self, name: str, seeds: Sequence[int]) -> str | None:
        """What of a stage is not finished with these settings, in words; None: nothing.

        Args:
            seeds: that matter of a stage that runs by seed.
        """
        row = self._rows.get(name, {})
        if row.get("settings") != digest_of(self._config, name):
            return f"{name} (finished with other settings)" if row.get("finished") else name
        if not STAGES[name].by_seed:
            return None if row.get("finished") else name
        left = [seed for seed in seeds if seed not in row.get("seeds", [])]
        return f"{name} of seed {', '.join(map(str, left))}" if left else None

    def begin(self, name: str, seeds: Sequence[int]) -> None:
        settings = digest_of(self._config, name)
        with self._row(name) as row:
            kept = row.get("seeds", []) if row.get("settings") == settings else []
            row.update(finished=False, settings=settings, environment=self._environment)
            if STAGES[name].by_seed:
                row["seeds"] = [seed for seed in kept if seed not in seeds]

    def seed_done(self, name: str, seed: int) -> None:
        """One seed of a stage that runs by seed."""
        with self._row(name) as row:
            row["seeds"] = sorted({*row["seeds"], seed})

    def end(self, name: str, seconds: float, *, whole: bool) -> None:
        """Add seconds; those of an interrupted stage count too.

        Args:
            whole: it was not interrupted.
        """
        with self._row(name) as row:
            done = not STAGES[name].by_seed or set(self._config.seeds) <= set(row["seeds"])
            row.update(seconds=round(row["seconds"] + seconds, 1), finished=whole and done)

    @contextlib.contextmanager
    def _row(self, name: str) -> Iterator[dict[str, Any]]:
        """A stage's row to be changed; other seeds may be made beside, so that the file is read anew."""
        with only_writer(self._path, wait=True):
            self._rows = self._read()
            yield self._rows.setdefault(name, {"seconds": 0.0})
            atomic_write_json(self._path, self._rows)

    def _read(self) -> dict[str, Any]:
        return read_json(self._path, "record of stages") if self._path.is_file() else {}


def _check_before(layout: StudyLayout, name: str, record: StageRecord, seeds: Sequence[int]) -> None:
    needs = STAGES[name].needs
    missing = [(before, words) for before in needs if (words := record.missing(before, seeds)) is not None]
    if missing:
        raise DataError(
            f"the stage {name} needs what another one makes",
            got=f"not finished: {', '.join(words for _, words in missing)}",
            source=layout.root,
            remedy=f"run `vocabforge study {missing[0][0]}` with the same configuration first, or `vocabforge study "
            "all`: what is made already is found again",
        )


def _perform(
    config: StudyConfig, layout: StudyLayout, name: str, seeds: Sequence[int], record: StageRecord
) -> None:
    stage = STAGES[name]
    run: Callable[..., None] = load_attribute(stage.run)
    say(f"Stage {name}: {stage.about}")
    begun, whole = time.monotonic(), False
    record.begin(name, seeds)
    try:
        if stage.by_seed:
            for seed in seeds:
                say(f"Stage {name}, seed {seed}")
                run(config, layout, seed)
                record.seed_done(name, seed)
        else:
            run(config, layout)
        whole = True
    finally:
        seconds = time.monotonic() - begun
        record.end(name, seconds, whole=whole)
    say(f"Stage {name}: done in " + (f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"))
