"""The stage ``replay``: ranks that every draft vocabulary of a seed gives the target's own answers."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
from safetensors.numpy import load_file, save_file

from ...core.artifact import open_artifact, write_artifact
from ...core.console import say
from ...corpus.regenerate.rows import content_digest
from ...tune.types import setting_of
from ..config import StudyConfig, StudyLayout
from ..methods import StudyHeads, content_of_method, methods
from ..stages.answers import KIND as ANSWERS
from ..stages.answers import AnsweringTarget, Which, load_answers
from ..stages.run import seed_digest
from ..steps import is_finished
from .replay import Drafting, replay
from .types import Replayed

KIND = "study-replay"
_FORMAT = 3


def run(config: StudyConfig, layout: StudyLayout, seed: int) -> None:
    """Write the artefact ``study-replay`` of a seed: all methods, greedy and drawn answers."""
    own, place, ways = config.replay, layout.seed(seed), methods(config, layout)
    target = AnsweringTarget(layout.target, config.device, 1)
    content = [{"key": way.key, "kind": way.kind, **content_of_method(place, way)} for way in ways]
    key = {
        "format": _FORMAT,
        "target": target.identity,
        "answers": open_artifact(layout.answers, ANSWERS, verify=False).content_hash,
        "levels": own.levels,
        "width": own.width,
        "methods": content_digest(content),
    }
    if is_finished(layout.replayed(seed), KIND, key):
        say(f"Seed {seed}: the replay is up to date")
        return
    heads = StudyHeads(place, layout.target, target.model)
    draftings = [
        Drafting(heads.drafter(name), {way.key: heads.head(way) for way in ways if way.drafter == name})
        for name in dict.fromkeys(way.drafter for way in ways)
    ]
    sizes = {way.key: setting_of(heads.head(way)).model_dump(mode="json") for way in ways}
    figures: dict[str, Any] = {}
    meta = {"key": key, "settings": seed_digest(config, seed), "heads": sizes, "scored": figures}
    with write_artifact(layout.replayed(seed), KIND, meta, overwrite=True) as folder:
        for which in get_args(Which):
            found = replay(
                target.model,
                draftings,
                [one.continuation for one in load_answers(layout, which)],
                levels=own.levels,
                width=own.width,
                rows=own.rows,
                label=f"Replay, {which} answers",
            )
            ranks = {name: np.ascontiguousarray(one.ranks) for name, one in found.items()}
            save_file(ranks, folder / f"ranks-{which}.safetensors")
            figures[which] = {
                way.key: [None if math.isnan(value) else value for value in found[way.key].scored]
                for way in ways
            }


def load_replayed(layout: StudyLayout, seed: int, which: Which) -> dict[str, Replayed]:
    """What was replayed of a seed on the answers of a kind, by the methods' keys.

    Rows are those of ``load_answers(layout, which)``, as ``replay.cycle_offsets`` places them.

    Raises:
        ArtifactError: the stage has not run for this seed, or its files are damaged.
    """
    artifact = open_artifact(layout.replayed(seed), KIND)
    ranks = load_file(artifact.file(f"ranks-{which}.safetensors"))
    return {
        name: Replayed(ranks[name], tuple(math.nan if value is None else value for value in scored))
        for name, scored in artifact.meta["scored"][which].items()
    }
