"""The stages of a study, in order, each a command of its own; what is finished is found again by its content."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
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
    """One stage; ``run`` is "module:function" of ``(config, layout)``, or of ``(config, layout, seed)``."""

    run: str
    about: str
    needs: tuple[str, ...] = ()  # stages whose results it reads
    reads: tuple[
        str, ...
    ] = ()  # settings that decide what it makes, beside those of the stages that it needs
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
    check_names(names)
    wanted = {name: stage for name, stage in STAGES.items() if name in names or ALL in names}
    chosen = config.seeds if seeds is None else tuple(seeds)
    if not set(chosen) <= set(config.seeds):
        raise UsageError("the study has no such seed", got=list(chosen), expected=list(config.seeds))
    if seeds is not None and not any(stage.by_seed for stage in wanted.values()):
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
    # Seeds can be made side by side, each by its own process.
    apart = seeds is not None and all(stage.by_seed for stage in wanted.values())
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_writer(layout.root, shared=apart))
        for seed in chosen if apart else ():
            stack.enter_context(only_writer(layout.seed(seed)))
        for name, stage in wanted.items():
            _check_before(config, layout, name, chosen if stage.by_seed else config.seeds)
            atomic_write_json(layout.root / "config.json", config.model_dump(mode="json"))
            _perform(config, layout, name, chosen)


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


def _rows(layout: StudyLayout) -> dict[str, Any]:
    """OUTPUT/stages.json: of every stage the seconds, the machine, the settings' digest, and what is finished."""
    path = layout.root / "stages.json"
    return read_json(path, "record of stages") if path.is_file() else {}


@contextlib.contextmanager
def _row(layout: StudyLayout, name: str) -> Iterator[dict[str, Any]]:
    """A stage's row of the record, to be changed; other seeds may be made beside."""
    path = layout.root / "stages.json"
    with only_writer(path, wait=True):
        rows = _rows(layout)
        yield rows.setdefault(name, {"seconds": 0.0, "seeds": []})
        atomic_write_json(path, rows)


def _missing(config: StudyConfig, rows: dict[str, Any], name: str, seeds: Sequence[int]) -> str | None:
    """What of a stage is not finished with these settings, in words; None: nothing."""
    row = rows.get(name, {})
    if row.get("settings") != digest_of(config, name):
        return f"{name} (finished with other settings)" if row.get("finished") else name
    if not STAGES[name].by_seed:
        return None if row.get("finished") else name
    left = [seed for seed in seeds if seed not in row["seeds"]]
    return f"{name} of seed {', '.join(map(str, left))}" if left else None


def _check_before(config: StudyConfig, layout: StudyLayout, name: str, seeds: Sequence[int]) -> None:
    rows = _rows(layout)
    words = {before: _missing(config, rows, before, seeds) for before in STAGES[name].needs}
    missing = [before for before, found in words.items() if found is not None]
    if missing:
        raise DataError(
            f"the stage {name} needs what another one makes",
            got=f"not finished: {', '.join(words[before] or '' for before in missing)}",
            source=layout.root,
            remedy=f"run `vocabforge study {missing[0]}` with the same configuration first, or `vocabforge study all`: "
            "what is made already is found again",
        )


def _perform(config: StudyConfig, layout: StudyLayout, name: str, seeds: Sequence[int]) -> None:
    stage, settings = STAGES[name], digest_of(config, name)
    run: Callable[..., None] = load_attribute(stage.run)
    environment = describe_environment(device=str(choose_device(config.device)), dtype="")
    say(f"Stage {name}: {stage.about}")
    with _row(layout, name) as row:
        done = row["seeds"] if row.get("settings") == settings else []
        row.update(settings=settings, environment=environment, finished=False)
        row["seeds"] = [seed for seed in done if seed not in seeds]
    begun, whole = time.monotonic(), False
    try:
        for seed in seeds if stage.by_seed else ():
            say(f"Stage {name}, seed {seed}")
            run(config, layout, seed)
            with _row(layout, name) as row:
                row["seeds"] = sorted({*row["seeds"], seed})
        if not stage.by_seed:
            run(config, layout)
        whole = True
    finally:
        seconds = time.monotonic() - begun
        with _row(layout, name) as row:
            finished = whole and (not stage.by_seed or set(config.seeds) <= set(row["seeds"]))
            row.update(seconds=round(row["seconds"] + seconds, 1), finished=finished)
    say(f"Stage {name}: done in {seconds:.0f} s")
