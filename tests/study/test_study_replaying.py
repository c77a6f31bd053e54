"""The stage ``replay``: what it writes, what it takes over, and what makes it begin anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.study.drafted_support import SEED, drafted_config
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.decode.trees.shapes import chain
from vocabforge.study.config import StudyLayout
from vocabforge.study.methods import methods
from vocabforge.study.replay import stage as replaying
from vocabforge.study.replay.replay import cycle_offsets, replay
from vocabforge.study.replay.types import Replayed
from vocabforge.study.replay.walk import walk
from vocabforge.study.stages.answers import load_answers

pytestmark = pytest.mark.long


@pytest.fixture
def layout(drafted: StudyLayout, tmp_path: Path) -> StudyLayout:
    """A copy of the study, replayed already."""
    shutil.copytree(drafted.root, tmp_path / "study")
    return StudyLayout(tmp_path / "study")


def test_all_methods_are_replayed_on_both_kinds_of_answers(drafted: StudyLayout) -> None:
    ways = methods(drafted_config(drafted.root), drafted)
    for which in ("greedy", "drawn"):
        found = replaying.load_replayed(drafted, SEED, which)
        texts = [one.continuation for one in load_answers(drafted, which)]
        offsets = cycle_offsets(texts)
        assert list(found) == [way.key for way in ways]
        assert {one.ranks.shape for one in found.values()} == {(offsets[-1], 4)}
        assert {one.ranks.dtype for one in found.values()} == {np.dtype(np.uint8)}
        assert len({one.ranks.tobytes() for one in found.values()}) > 3
        full = walk(found[ways[0].key].ranks, offsets, chain(4))
        assert full.committed.sum() > 1.1 * full.cycles.sum() > 0


@pytest.mark.parametrize("what", ["rows", "levels", "answers", "damage"])
def test_only_other_inputs_are_replayed_anew(
    layout: StudyLayout, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    asked: list[str] = []

    def noted(*given: Any, **named: Any) -> dict[str, Replayed]:
        asked.append(named["label"])
        return replay(*given, **named)

    monkeypatch.setattr(replaying, "replay", noted)
    changes: dict[str, Any] = {"levels": {"levels": 3}, "rows": {"rows": 3}}
    if what == "damage":
        file = layout.replayed(SEED) / "ranks-greedy.safetensors"
        file.write_bytes(file.read_bytes()[:-1])
    if what == "answers":
        artifact = open_artifact(layout.answers)
        with write_artifact(layout.answers, artifact.kind, artifact.meta, overwrite=True) as folder:
            shutil.copytree(artifact.path, folder, dirs_exist_ok=True)
            (folder / "manifest.json").unlink()
            rows = (folder / "answers-drawn.jsonl").read_text().splitlines()
            (folder / "answers-drawn.jsonl").write_text("\n".join(rows[1:]) + "\n")
    for _ in range(2):
        replaying.run(drafted_config(layout.root, replay=changes.get(what, {})), layout, SEED)
        assert len(asked) == (0 if what == "rows" else 2)
    for which in ("greedy", "drawn"):
        count = cycle_offsets([one.continuation for one in load_answers(layout, which)])[-1]
        found = replaying.load_replayed(layout, SEED, which)
        assert {one.ranks.shape for one in found.values()} == {(count, 3 if what == "levels" else 4)}
