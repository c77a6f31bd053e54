"""The stage ``replay``: what it writes, what it takes over, and what makes it begin anew."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.study.drafted_support import SEED, drafted_config
from vocabforge.core.artifact import open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError
from vocabforge.decode.trees.shapes import chain
from vocabforge.models.lean.model import load_target
from vocabforge.study import stage_replay as replaying
from vocabforge.study.layout import StudyLayout
from vocabforge.study.methods import StudyHeads, methods
from vocabforge.study.replay.replay import Drafting, cycle_offsets, replay
from vocabforge.study.replay.types import Replayed
from vocabforge.study.replay.walk import walk
from vocabforge.study.stage_answers import load_answers

pytestmark = pytest.mark.long


@pytest.fixture
def layout(drafted: StudyLayout, tmp_path: Path) -> StudyLayout:
    """A study of its own, replayed already."""
    shutil.copytree(drafted.root, tmp_path / "study")
    return StudyLayout(tmp_path / "study")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Labels of the replays that are made."""
    labels: list[str] = []

    def noted(*given: Any, **named: Any) -> dict[str, Replayed]:
        labels.append(named["label"])
        return replay(*given, **named)

    monkeypatch.setattr(replaying, "replay", noted)
    return labels


def run(layout: StudyLayout, **sections: Any) -> None:
    replaying.run(drafted_config(layout.root, **sections), layout, SEED)


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
    assert not list(drafted.replay.glob("seed-*-*"))


def test_ranks_are_those_of_the_method_s_own_head(drafted: StudyLayout) -> None:
    """One method of each drafter, replayed by itself."""
    model = load_target(drafted.target)
    heads = StudyHeads(drafted.seed(SEED), drafted.target, model)
    texts = [one.continuation for one in load_answers(drafted, "greedy")]
    found = replaying.load_replayed(drafted, SEED, "greedy")
    ways = {way.family: way for way in methods(drafted_config(drafted.root), drafted)}
    for family in ("reduced", "trim", "router"):
        way = ways[family]
        one = Drafting(heads.drafter(way.drafter), {"one": heads.head(way)})
        alone = replay(model, [one], texts, levels=4, width=10, rows=5)["one"]
        assert np.array_equal(alone.ranks, found[way.key].ranks)
        assert alone.scored == pytest.approx(found[way.key].scored, nan_ok=True)


def test_a_finished_replay_is_taken_over(layout: StudyLayout, asked: list[str]) -> None:
    before = open_artifact(layout.replayed(SEED)).content_hash
    run(layout)
    run(layout, replay={"rows": 3})  # how many rows at once changes no rank
    assert asked == []
    assert open_artifact(layout.replayed(SEED)).content_hash == before


@pytest.mark.parametrize("what", ["levels", "head", "drafter", "answers", "vocabulary", "damage"])
def test_other_inputs_are_replayed_anew(layout: StudyLayout, asked: list[str], what: str) -> None:
    changes: dict[str, Any] = {"levels": {"replay": {"levels": 3}}}
    if what == "head":
        _rewrite(
            layout.seed(SEED) / "full" / "heads" / "low-rank",
            lambda name, values: -values if "down" in name else values,
        )
    if what == "drafter":
        _rewrite(
            layout.seed(SEED) / "reduced" / "drafter",
            lambda name, values: values * 2 if values.dtype.kind == "f" else values,
        )
    if what == "vocabulary":
        shutil.rmtree(layout.subset("trim", 120))
        shutil.copytree(layout.subset("fr", 120), layout.subset("trim", 120))
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
    run(layout, **changes.get(what, {}))
    assert len(asked) == 2
    run(layout, **changes.get(what, {}))
    assert len(asked) == 2
    rows = [
        cycle_offsets([one.continuation for one in load_answers(layout, which)])[-1]
        for which in ("greedy", "drawn")
    ]
    for which, count in zip(("greedy", "drawn"), rows):
        found = replaying.load_replayed(layout, SEED, which)
        assert {one.ranks.shape for one in found.values()} == {(count, 3 if what == "levels" else 4)}


def _rewrite(place: Path, change: Any) -> None:
    """The same artefact with other weights."""
    artifact = open_artifact(place)
    with write_artifact(place, artifact.kind, artifact.meta, overwrite=True) as folder:
        shutil.copytree(artifact.path, folder, dirs_exist_ok=True)
        (folder / "manifest.json").unlink()
        for file in folder.glob("*.safetensors"):
            save_file({name: change(name, values) for name, values in load_file(file).items()}, file)


def test_damaged_ranks_are_told(layout: StudyLayout) -> None:
    artifact = open_artifact(layout.replayed(SEED))
    ranks = {which: load_file(artifact.file(f"ranks-{which}.safetensors")) for which in ("greedy", "drawn")}
    with write_artifact(artifact.path, artifact.kind, artifact.meta, overwrite=True) as folder:
        del ranks["greedy"][next(iter(ranks["greedy"]))]
        for which, kept in ranks.items():
            save_file(kept, folder / f"ranks-{which}.safetensors")
    assert replaying.load_replayed(layout, SEED, "drawn")
    for seed in (SEED, SEED + 1):
        with pytest.raises(ArtifactError):
            replaying.load_replayed(layout, seed, "greedy")
