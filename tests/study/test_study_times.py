"""The stage ``times``: what it measures, and what it keeps. Nothing here rests on a clock."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.study.decoding_support import VOCAB
from tests.study.drafted_support import drafted_config
from vocabforge.models.lean.model import load_target
from vocabforge.study.config import StudyConfig
from vocabforge.study.layout import StudyLayout
from vocabforge.study.methods import StudyHeads, methods
from vocabforge.study.times import stage as times
from vocabforge.study.times.stage import StudyTimes, read_times, trees_of
from vocabforge.tune.latency.table import read_latency
from vocabforge.tune.types import CycleSetting, HeadSetting, TreeSetting


def times_config(root: Path, **values: Any) -> StudyConfig:
    return drafted_config(root, times={"budget_s": 0.1, **values})


@pytest.fixture(scope="module")
def made(drafted: StudyLayout, tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    layout = StudyLayout(tmp_path_factory.mktemp("times") / "study")
    shutil.copytree(drafted.root, layout.root)
    times.run(times_config(layout.root), layout)
    return layout


@pytest.fixture(scope="module")
def found(made: StudyLayout) -> StudyTimes:
    return read_times(made.times)


class TestStage:
    def test_every_head_and_tree_has_a_cycle(self, found: StudyTimes) -> None:
        assert set(found.trees) == {"chain", "tree 12", "dynamic tree"}
        for head in found.heads.values():
            for tree in found.trees.values():
                cycle = found.latency.cycle(CycleSetting(head=head, tree=tree, prefix=found.prefix))
                assert cycle.value > 0

    def test_the_prefix_is_that_of_the_prompts(self, made: StudyLayout, found: StudyTimes) -> None:
        config = times_config(made.root)
        lengths = [len(ids) for ids in times.study_prompts(config, made)]
        assert len(lengths) == 4  # of two sets
        assert found.prefix == round(sum(lengths) / 4 + config.answers.tokens / 2)

    def test_tune_can_read_the_table(self, made: StudyLayout, found: StudyTimes) -> None:
        assert read_latency(made.root / "latency.json") == found.latency

    def test_what_is_there_is_not_measured_again(
        self, made: StudyLayout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*anything: Any) -> None:
            raise AssertionError("measured again")

        before = made.times.read_text("utf-8")
        made.times.unlink()
        with monkeypatch.context() as patch:
            patch.setattr(times, "measure_latency", refuse)
            times.run(times_config(made.root), made)
            assert made.times.read_text("utf-8") == before
            times.run(times_config(made.root, bandwidth=1.0, layer_us=1.0), made)  # of the roofline alone
            with pytest.raises(AssertionError, match="measured again"):
                times.run(times_config(made.root, budget_s=0.2), made)


def test_heads_are_those_of_the_methods(made: StudyLayout) -> None:
    config = times_config(made.root)
    heads = StudyHeads(made.seed(3), made.target, load_target(made.target))
    sizes = {way.key: heads.setting(way) for way in methods(config, made)}
    assert sizes["full-head-v-270"] == HeadSetting(kind="full", scored=(VOCAB,))
    assert (sizes["eagle-3-reduced-r-40"].scored, sizes["fr-spec-r-120"].scored) == ((60,), (120,))
    assert sizes["pa-fr-decay-120-to-30"].scored == (120, 120, 60, 40)
    assert sizes["ranker-d-2-joint-k-40"] == HeadSetting(kind="ranker", scored=(40,), rank=16)
    hybrid = next(one for key, one in sizes.items() if key.startswith("hybrid"))
    assert (hybrid.scored, hybrid.core, hybrid.rank) == ((60,), 40, 16)


def test_trees() -> None:
    config = times_config(Path("nowhere"))
    assert trees_of(config) == {
        "chain": TreeSetting.chain(3),
        "tree 12": TreeSetting(topk=10, depth=3, total=12),
        "dynamic tree": TreeSetting(topk=3, depth=2, total=9),
    }
    replay = config.replay.model_copy(update={"trees": (5, 1000), "levels": 2})
    found = trees_of(config.model_copy(update={"replay": replay}))
    assert list(found) == ["chain", "tree 5", "dynamic tree"]  # none has 1,000 nodes on two levels
