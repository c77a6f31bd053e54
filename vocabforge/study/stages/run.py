"""The stages of a study, in order, each a command of its own; what is finished is found again by its content."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...core.artifact import open_artifact
from ...core.console import say
from ...core.errors import ArtifactError, DataError, UsageError
from ...core.files import atomic_write_json, check_run_folder, read_json
from ...core.lock import only_writer
from ...core.progress import ProgressBar
from ...core.registry import load_attribute
from ...corpus.regenerate.rows import content_digest
from ...evaluate.run.environment import describe_environment
from ...models.device import choose_device
from ...train.machine import keep_freed_memory
from ..config import StudyConfig, StudyLayout

ALL = "all"
_FORMAT = 2  # counts up when stages write other files


class Stage(NamedTuple):
    """One stage; ``run`` is "module:function" of ``(config, layout)``, or of ``(config, layout, seed)``."""

    run: str
    about: str
    needs: tuple[str, ...] = ()  # stages whose results it reads
    reads: tuple[str, ...] = ()  # settings that decide what it makes, beside those of ``needs``
    by_seed: bool = False


# name -> stage, in order; a new stage is a file and a row.
STAGES: dict[str, Stage] = {
    "data": Stage(
        "vocabforge.study.stages.data:run",
        "conversations, held-out texts by source, questions",
        reads=("data",),
    ),
    "target": Stage("vocabforge.study.stages.target:run", "the target model", ("data",), ("target",)),
    "answers": Stage(
        "vocabforge.study.stages.answers:run", "what the target itself writes", ("target",), ("answers",)
    ),
    "vocab": Stage(
        "vocabforge.study.stages.vocab:run",
        "draft vocabularies and clusters",
        ("answers",),
        ("methods", "drafters.reduced_size"),
    ),
    "drafters": Stage(
        "vocabforge.study.stages.drafters:run",
        "drafters, rankers, routers of every seed",
        ("vocab",),
        ("drafters", "seeds"),
        by_seed=True,
    ),
    "replay": Stage(
        "vocabforge.study.replay.stage:run",
        "acceptance of all methods on all questions",
        ("drafters",),
        ("replay",),
        by_seed=True,
    ),
    "check": Stage(
        "vocabforge.study.stages.check:run", "the decoder itself on a sample", ("replay",), ("check",)
    ),
    "report": Stage("vocabforge.study.report.stage:run", "tables and a plot", ("check",)),
}


def perform(config: StudyConfig, names: Sequence[str]) -> None:
    """Run stages, ``all`` or some of :data:`STAGES`, in the order of the table.

    Raises:
        UsageError: no such stage, or another process works in the folder.
        DataError: a stage before it is missing.
    """
    check_names(names)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    if choose_device(config.device).type == "cpu":
        keep_freed_memory()  # logits of a block are tens of megabytes, made anew for every block
    layout = StudyLayout(config.output)
    check_run_folder(layout.root)
    layout.root.mkdir(parents=True, exist_ok=True)
    with only_writer(layout.root):
        for name in STAGES:
            if name in names or ALL in names:
                _check_before(config, layout, name)
                atomic_write_json(layout.root / "config.json", config.model_dump(mode="json"))
                _perform(config, layout, name)


def check_names(names: Sequence[str]) -> None:
    """Refuse what is no stage."""
    if not names:
        raise UsageError("no stage is named", expected=", ".join([*STAGES, ALL]))
    unknown = [name for name in names if name not in (*STAGES, ALL)]
    if unknown:
        raise UsageError(
            "the study has no such stage", got=", ".join(unknown), expected=", ".join([*STAGES, ALL])
        )


def digest_of(config: StudyConfig, name: str) -> str:
    """Hex hash of the settings that decide what a stage makes; where and on what it runs is not among them."""
    body = config.model_dump(mode="json")
    body["data"].pop("root")
    chosen: dict[str, Any] = {"format": _FORMAT}
    for path in sorted({path for one in (name, *_before(name)) for path in STAGES[one].reads}):
        section, _, key = path.partition(".")
        chosen[path] = body[section][key] if key else body[section]
    return content_digest(chosen)


def seed_digest(config: StudyConfig, seed: int) -> str:
    """:func:`digest_of` the replay, whatever other seeds there are."""
    return digest_of(config.model_copy(update={"seeds": (seed,)}), "replay")


def has_replay(config: StudyConfig, layout: StudyLayout, seed: int) -> bool:
    """Whether a seed was replayed with these settings."""
    try:
        meta = open_artifact(layout.replayed(seed), verify=False).meta
    except ArtifactError:
        return False
    return bool(meta.get("settings") == seed_digest(config, seed))


def is_finished(config: StudyConfig, layout: StudyLayout, name: str) -> bool:
    """Whether a stage has ended with these settings."""
    row = _rows(layout).get(name, {})
    return bool(row.get("finished") and row.get("settings") == digest_of(config, name))


def is_replayed(config: StudyConfig, layout: StudyLayout, seed: int) -> bool:
    """Whether a seed was replayed with these settings, and its folder removed since: the report needs no more.

    The stage ``check`` decodes with the drafters of its seeds: before it is finished they are made again.
    """
    if layout.seed(seed).exists():
        return False
    if seed in config.seeds[: config.check.seeds] and not is_finished(config, layout, "check"):
        return False
    return has_replay(config, layout, seed)


def _before(name: str) -> Iterator[str]:
    for before in STAGES[name].needs:
        yield before
        yield from _before(before)


def _rows(layout: StudyLayout) -> dict[str, Any]:
    """OUTPUT/stages.json: of every stage the seconds, the machine, the settings' digest, and whether it is finished."""
    path = layout.root / "stages.json"
    return read_json(path, "record of stages") if path.is_file() else {}


def _check_before(config: StudyConfig, layout: StudyLayout, name: str) -> None:
    rows = _rows(layout)
    for before in STAGES[name].needs:
        row = rows.get(before, {})
        if is_finished(config, layout, before):
            continue
        raise DataError(
            f"the stage {name} needs what another one makes",
            got=f"finished with other settings: {before}"
            if row.get("finished")
            else f"not finished: {before}",
            source=layout.root,
            remedy=f"run `vocabforge study {before}` with the same configuration first, or `vocabforge study all`: "
            "what is made already is found again",
        )


def _perform(config: StudyConfig, layout: StudyLayout, name: str) -> None:
    stage, rows = STAGES[name], _rows(layout)
    run: Callable[..., None] = load_attribute(stage.run)
    say(f"Stage {name}: {stage.about}")
    row = rows.setdefault(name, {"seconds": 0.0})
    row["environment"] = describe_environment(device=str(choose_device(config.device)), dtype="")
    row.update(settings=digest_of(config, name), finished=False)
    began = time.monotonic()
    try:
        with ProgressBar(f"stage {name}"):
            for seed in config.seeds if stage.by_seed else ():
                if is_replayed(config, layout, seed):
                    say(f"Stage {name}, seed {seed}: replayed before, its drafters are gone")
                    continue
                say(f"Stage {name}, seed {seed}")
                run(config, layout, seed)
            if not stage.by_seed:
                run(config, layout)
        row["finished"] = True
    finally:
        seconds = time.monotonic() - began
        row["seconds"] = round(row["seconds"] + seconds, 1)
        atomic_write_json(layout.root / "stages.json", rows)
    say(f"Stage {name}: done in {seconds:.0f} s")
