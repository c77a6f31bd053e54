"""The stage ``drafters``: all trainings of a seed in small, and what another run of it takes over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.study.training_support import make_inputs, study_config, write_own
from vocabforge.core.artifact import MANIFEST
from vocabforge.models.drafters.io import TargetTensors, load_trainable
from vocabforge.models.heads.io import drafter_digest, load_head, owner_of
from vocabforge.models.target.hf import HFTarget
from vocabforge.study.config import StudyConfig, StudyLayout
from vocabforge.study.methods import methods
from vocabforge.study.stages import drafters, vocab
from vocabforge.study.stages.drafters import FOLDER, HELDOUT, TRAIN, packed
from vocabforge.vocab.subset.subset import load_subset

pytestmark = pytest.mark.long

RUNS = "full", "reduced", "rankers", "router-8", "router-4"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyConfig, StudyLayout]:
    """A finished study of one seed; tests that change it work on a copy."""
    layout = make_inputs(tmp_path_factory.mktemp("study-drafters") / "study")
    config = study_config(layout.root)
    vocab.run(config, layout)
    drafters.run(config, layout, 0)
    return config, layout


@pytest.fixture
def again(
    study: tuple[StudyConfig, StudyLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StudyLayout:
    """The finished study under the same relative path, so that it may be changed."""
    _, layout = study
    shutil.copytree(layout.root, tmp_path / "copy" / "study", copy_function=shutil.copy2)
    moved(tmp_path / "copy" / "study", layout.root)
    return StudyLayout(tmp_path / "copy" / "study")


def moved(root: Path, before: Path) -> None:
    """Let the records of a copied study name the copy."""
    for path in (*root.glob("*/*.json"), *root.glob("*/*/*.json")):
        if path.name != MANIFEST:  # sealed
            path.write_text(path.read_text().replace(str(before), str(root)))


def made(layout: StudyLayout) -> dict[str, str]:
    """Key of each run, and the moment of its record."""
    place = layout.seed(0)
    return {name: (place / f"{name}.json").stat().st_mtime_ns for name in RUNS}


def remade(layout: StudyLayout, before: dict[str, Any]) -> set[str]:
    return {name for name, stamp in made(layout).items() if stamp != before[name]}


def test_every_method_finds_what_it_drafts_with(study: tuple[StudyConfig, StudyLayout]) -> None:
    config, layout = study
    target = HFTarget.load(layout.target)
    tensors = TargetTensors(target.embedding, target.head_weight)
    place = layout.seed(0)
    sizes = {}
    for method in methods(config, layout):
        drafter, _ = load_trainable(place / method.drafter / "drafter", tensors)
        sizes[method.drafter] = len(drafter.target_ids)
        assert tuple(drafter.config.aux_layers) == (0, 1, 2)
        if method.head is not None:
            head = load_head(place / method.head)
            assert head.kind == ("ranker" if method.kind == "hybrid" else method.kind)
            assert owner_of(head.artifact).drafter == drafter_digest(place / method.drafter / "drafter")
    assert sizes == {"full": target.vocab_size, "reduced": 50}
    reduced, _ = load_trainable(place / "reduced" / "drafter", tensors)
    assert reduced.target_ids.tolist() == load_subset(layout.subset("fr", 50)).ids.tolist()
    ranks = {
        name: load_head(place / "full" / "heads" / name).module.rank
        for name in ("ranker", "small-ranker", "low-rank")
    }
    assert ranks == {"ranker": 8, "small-ranker": 4, "low-rank": 8}
    joint, alone = (load_head(place / run / "heads" / "ranker").module for run in ("full", "rankers"))
    assert alone.rank == 8
    assert not joint.head_weight.equal(alone.head_weight)
    assert [load_head(place / f"router-{count}" / "router").module.clusters for count in (8, 4)] == [8, 4]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, (30, 30)), (0.75, (60, 20)), (0.0, (0, 30)), (1.0, (60, 0))]
)
def test_the_mixture(
    study: tuple[StudyConfig, StudyLayout], tmp_path: Path, share: float, expected: tuple[int, int]
) -> None:
    layout = StudyLayout(tmp_path)
    for name in ("data", "answers", "target"):
        (tmp_path / name).symlink_to(study[1].root / name)
    packed(study_config(tmp_path, drafters={"corpus_share": share}), layout)
    lines = (tmp_path / FOLDER / TRAIN).read_text().splitlines()
    parts = [set(path.read_text().splitlines()) for path in (layout.train_texts, layout.own_texts)]
    assert tuple(sum(line in part for line in lines) for part in parts) == expected
    heldout = (tmp_path / FOLDER / HELDOUT).read_text().splitlines()
    assert len(heldout) == 8
    assert set(heldout) <= set(layout.heldout_texts("apart").read_text().splitlines())


def test_a_change_makes_again_only_what_it_decides(again: StudyLayout) -> None:
    def changed(**sections: Any) -> set[str]:
        before = made(again)
        drafters.run(study_config(again.root, **sections), again, 0)
        return remade(again, before)

    part = {"steps": 1, "batch_size": 2}
    assert changed() == set()
    assert changed(drafters={"alone": part}) == {"rankers"}
    both = {"alone": part, "router": part}
    shutil.rmtree(again.seed(0) / "reduced" / "drafter")
    assert changed(drafters=both) == {"reduced", "router-8", "router-4"}
    digest = drafter_digest(again.seed(0) / "full" / "drafter")
    write_own(again, ["quack"], 3)
    assert changed(drafters=both) == set(RUNS)
    assert drafter_digest(again.seed(0) / "full" / "drafter") != digest


def test_a_killed_training_goes_on_and_a_changed_one_begins_again(
    again: StudyLayout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    whole = drafter_digest(again.seed(0) / "full" / "drafter")
    shutil.rmtree(again.seed(0))
    for learning_rate in (0.5, 1e-3):
        part = {"steps": 4, "batch_size": 2, "lr": learning_rate}
        config = study_config(again.root, drafters={"full": part})
        with monkeypatch.context() as patch:
            patch.setattr("vocabforge.train.loop.finish", die)
            with pytest.raises(Killed):
                drafters.run(config, again, 0)
    assert "Resuming" not in capsys.readouterr().err
    drafters.run(config, again, 0)
    assert drafter_digest(again.seed(0) / "full" / "drafter") == whole
    assert "Resuming at step 4 of 4" in capsys.readouterr().err
