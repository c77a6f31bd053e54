"""The stage ``replay``: ranks that every draft vocabulary of a seed gives the target's own answers."""

from __future__ import annotations

import math
import shutil
import zlib
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ..core.artifact import open_artifact, write_artifact
from ..core.console import say
from ..core.errors import ArtifactError
from ..core.files import sha256_file
from ..corpus.regenerate.rows import content_digest
from .config import StudyConfig
from .layout import StudyLayout
from .methods import StudyHeads, content_of_method, methods
from .replay.replay import Drafting, replay
from .replay.types import Replayed
from .stage_answers import KIND as ANSWERS
from .stage_answers import AnsweringTarget, Which, load_answers
from .steps import is_finished, run_step

KIND = "study-replay"
_LEVEL = 6  # of zlib: ranks of tokens that are mostly missed take a tenth of their bytes


def run(config: StudyConfig, layout: StudyLayout, seed: int) -> None:
    """Write the artefact ``study-replay`` of a seed: all methods, greedy and drawn answers.

    What is finished for the same target, answers, drafters, heads and settings is taken over; the ranks of one kind of
    answers are stored beside it until both are done, so that a killed run resumes.

    Raises:
        ArtifactError: what another stage makes is missing or damaged.
        MismatchError: a part was made for another one.
        UsageError: a draft head that cannot be replayed.
    """
    own, place, ways = config.replay, layout.seed(seed), methods(config, layout)
    target = AnsweringTarget(layout.target, config.device, 1)
    answers = open_artifact(layout.answers, ANSWERS, verify=False).manifest["files"]
    content = [{"key": way.key, "kind": way.kind, **content_of_method(place, way)} for way in ways]
    keys: dict[Which, dict[str, Any]] = {
        which: {
            "target": target.identity,
            "answers": answers[f"answers-{which}.jsonl"]["sha256"],
            "levels": own.levels,
            "width": own.width,
            "methods": content_digest(content),
        }
        for which in get_args(Which)
    }
    if is_finished(layout.replayed(seed), KIND, keys):
        say(f"Seed {seed}: the replay is up to date")
        return

    @cache
    def draftings() -> list[Drafting]:
        heads = StudyHeads(place, layout.target, target.model)
        names = dict.fromkeys(way.drafter for way in ways)
        return [
            Drafting(heads.drafter(name), {way.key: heads.head(way) for way in ways if way.drafter == name})
            for name in names
        ]

    def make(which: Which, file: Path) -> dict[str, Any]:
        texts = [one.continuation for one in load_answers(layout, which)]
        label = f"Replay, {which} answers"
        found = replay(
            target.model, draftings(), texts, levels=own.levels, width=own.width, rows=own.rows, label=label
        )
        save_file({name: _packed(one) for name, one in found.items()}, file)
        figures = {}
        for name, one in found.items():
            scored = [None if math.isnan(value) else value for value in one.scored]
            figures[name] = {"rows": len(one.ranks), "scored": scored}
        return {"figures": figures, "sha256": sha256_file(file)}

    layout.replay.mkdir(parents=True, exist_ok=True)
    files = {which: layout.replay / f"seed-{seed}-{which}.safetensors" for which in keys}
    figures = {}
    for which, key in keys.items():
        file = files[which]
        made = run_step(
            f"Seed {seed}: replay of {which} answers",
            file.with_suffix(".json"),
            key,
            partial(make, which, file),
            partial(_is_there, file),
        )
        figures[which] = {way.key: made["figures"][way.key] for way in ways}
    names = [{"key": way.key, "family": way.family, "name": way.name, "setting": way.setting} for way in ways]
    meta = {"key": keys, "methods": names, "figures": figures}
    with write_artifact(layout.replayed(seed), KIND, meta, overwrite=True) as folder:
        for which, file in files.items():
            shutil.copyfile(file, folder / f"ranks-{which}.safetensors")
    for file in files.values():
        file.unlink()
        file.with_suffix(".json").unlink()


def _is_there(file: Path, made: Mapping[str, Any]) -> bool:
    return file.is_file() and sha256_file(file) == made["sha256"]


def load_replayed(layout: StudyLayout, seed: int, which: Which) -> dict[str, Replayed]:
    """What was replayed of a seed on the answers of a kind, by the methods' keys.

    Rows are those of ``load_answers(layout, which)``, as ``evaluate.replay.cycle_offsets`` places them.

    Raises:
        ArtifactError: the stage has not run for this seed, or its files are damaged.
    """
    artifact = open_artifact(layout.replayed(seed), KIND)
    try:
        return _unpacked(artifact.file(f"ranks-{which}.safetensors"), artifact.meta["figures"][which])
    except (SafetensorError, zlib.error, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            "the ranks of a replay cannot be read",
            got=error,
            source=artifact.path,
            remedy="run the stage replay",
        ) from error


def _packed(one: Replayed) -> np.ndarray[Any, Any]:
    """(n,) uint8: zlib's stream of the ranks, level after level."""
    return np.frombuffer(zlib.compress(np.ascontiguousarray(one.ranks.T).tobytes(), _LEVEL), np.uint8)


def _unpacked(file: Path, figures: Mapping[str, Any]) -> dict[str, Replayed]:
    streams = load_file(file)
    found = {}
    for name, one in figures.items():
        scored = tuple(math.nan if value is None else float(value) for value in one["scored"])
        flat = np.frombuffer(zlib.decompress(streams[name].tobytes()), np.uint8)
        found[name] = Replayed(flat.reshape(len(scored), one["rows"]).T.copy(), scored)
    return found
