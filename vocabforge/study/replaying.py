"""The stage ``replay``: ranks that every draft vocabulary of a seed gives the target's own answers."""

from __future__ import annotations

import math
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ..core.artifact import Artifact, open_artifact, write_artifact
from ..core.errors import ArtifactError
from ..core.progress import say
from ..corpus.regenerate_check import content_digest
from ..evaluate.replay import Drafting, replay
from ..evaluate.replay_types import Replayed
from .answers import KIND as ANSWERS
from .answers import AnsweringTarget, Which, load_answers
from .config import StudyConfig
from .layout import Layout
from .methods import Method, StudyHeads, content_of_method, methods

KIND, PART = "study-replay", "study-replay-part"
_LEVEL = 6  # of zlib: ranks of tokens that are mostly missed take a tenth of their bytes


def run(config: StudyConfig, layout: Layout, seed: int) -> None:
    """Write the artefact ``study-replay`` of a seed: all methods, greedy and drawn answers.

    What is finished for the same target, answers, drafters, heads and settings is taken over; the answers of one kind
    are kept beside it until both are done, so that a killed run goes on.

    Raises:
        ArtifactError: what another stage makes is missing or damaged.
        MismatchError: a part was made for another one.
        UsageError: a draft head that cannot be replayed.
    """
    ways = methods(config, layout)
    target = AnsweringTarget(layout.target, config.device, 1)
    keys = {which: _key(config, layout, seed, ways, target.identity, which) for which in get_args(Which)}
    if _found(layout.replayed(seed), KIND, keys) is not None:
        say(f"Seed {seed}: the replay is there already")
        return
    parts: dict[Which, Artifact] = {}
    draftings: list[Drafting] | None = None
    for which, key in keys.items():
        place = _place(layout, seed, which)
        found = _found(place, PART, key)
        if found is None:
            if draftings is None:
                draftings = _draftings(StudyHeads(layout.seed(seed), layout.target, target.model), ways)
            _replay(config, layout, target, draftings, which, place, key)
            found = open_artifact(place, PART)
        else:
            say(f"Seed {seed}, {which} answers: replayed before")
        parts[which] = found
    _join(layout.replayed(seed), parts, keys, ways)
    for which in parts:
        shutil.rmtree(_place(layout, seed, which))


def load_replayed(layout: Layout, seed: int, which: Which) -> dict[str, Replayed]:
    """What was replayed of a seed on the answers of a kind, by the methods' keys.

    Rows are those of ``load_answers(layout, which)``, as ``evaluate.replay.cycle_offsets`` places them.

    Raises:
        ArtifactError: the stage has not run for this seed, or its files are damaged.
    """
    artifact = open_artifact(layout.replayed(seed), KIND)
    try:
        return _unpacked(artifact.file(_file(which)), artifact.meta["figures"][which])
    except (SafetensorError, zlib.error, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            "the ranks of a replay cannot be read",
            got=error,
            source=artifact.path,
            remedy="run the stage replay",
        ) from error


def _key(
    config: StudyConfig, layout: Layout, seed: int, ways: Sequence[Method], target: str, which: str
) -> dict[str, Any]:
    """Everything that decides the ranks on the answers of a kind, by content."""
    place = layout.seed(seed)
    answers = open_artifact(layout.answers, ANSWERS, verify=False)
    made = [{"key": way.key, "kind": way.kind, **content_of_method(place, way)} for way in ways]
    return {
        "target": target,
        "answers": answers.manifest["files"][f"answers-{which}.jsonl"]["sha256"],
        "levels": config.replay.levels,
        "width": config.replay.width,
        "methods": content_digest(made),
    }


def _found(place: Path, kind: str, key: Mapping[str, Any]) -> Artifact | None:
    """The artefact there, where it was made of the same; None where it must be made."""
    try:
        artifact = open_artifact(place, kind)
    except ArtifactError:
        return None
    return artifact if artifact.meta.get("key") == key else None


def _draftings(heads: StudyHeads, ways: Sequence[Method]) -> list[Drafting]:
    """The methods by drafter; heads over a part of its rows among them."""
    names = dict.fromkeys(way.drafter for way in ways)
    return [
        Drafting(heads.drafter(name), {way.key: heads.head(way) for way in ways if way.drafter == name})
        for name in names
    ]


def _replay(
    config: StudyConfig,
    layout: Layout,
    target: AnsweringTarget,
    draftings: Sequence[Drafting],
    which: Which,
    place: Path,
    key: Mapping[str, Any],
) -> None:
    own = config.replay
    found = replay(
        target.model,
        draftings,
        [one.continuation for one in load_answers(layout, which)],
        levels=own.levels,
        width=own.width,
        rows=own.rows,
        label=f"Replay, {which} answers",
    )
    figures = {
        name: {
            "rows": len(one.ranks),
            "scored": [None if math.isnan(value) else value for value in one.scored],
        }
        for name, one in found.items()
    }
    with write_artifact(place, PART, {"key": key, "figures": figures}, overwrite=True) as folder:
        save_file({name: _packed(one) for name, one in found.items()}, folder / _file(which))


def _join(
    place: Path,
    parts: Mapping[Which, Artifact],
    keys: Mapping[Which, Mapping[str, Any]],
    ways: Sequence[Method],
) -> None:
    names = [{"key": way.key, "family": way.family, "name": way.name, "setting": way.setting} for way in ways]
    figures = {
        which: {way.key: part.meta["figures"][way.key] for way in ways} for which, part in parts.items()
    }
    meta = {"key": keys, "methods": names, "figures": figures}
    parents: dict[str, str] = {which: part.content_hash for which, part in parts.items()}
    with write_artifact(place, KIND, meta, parents=parents, overwrite=True) as folder:
        for which, part in parts.items():
            shutil.copyfile(part.file(_file(which)), folder / _file(which))


def _place(layout: Layout, seed: int, which: str) -> Path:
    """Where the answers of one kind wait for the other."""
    return layout.replay / f"seed-{seed}-{which}"


def _file(which: str) -> str:
    return f"ranks-{which}.safetensors"


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
