"""A whole search: what it writes, how it goes on, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tune.support import make_place
from tests.worlds import write_questions
from vocabforge.core.errors import UsageError
from vocabforge.decode.build.methods import recipe_methods
from vocabforge.decode.build.recipe import PLAIN, read_recipe
from vocabforge.tune.measure import SpeedMeter
from vocabforge.tune.results import TUNE, TuneResults, methods_table
from vocabforge.tune.run import tune
from vocabforge.tune.settings import MethodSpace, TuneSettings

TREES = {"depth": "0,1", "topk": "2", "total_nodes": "6"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("run"), questions=4)


def settings_for(place: Path, **more: Any) -> TuneSettings:
    settings = {"max_new_tokens": 8, "prompt_format": "raw", "device": "cpu", **more}
    return TuneSettings(target=place / "t", drafter=place / "d", prompts=str(place / "q.jsonl"), **settings)


def space_of(*vocabs: Path, **more: Any) -> MethodSpace:
    return MethodSpace(vocab=list(map(str, vocabs)), **TREES, **more)


def test_a_search_recommends_and_writes_everything(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = tune(out, settings_for(place, batch=3), space_of(place / "v"))
    assert TuneResults.model_validate_json((out / TUNE).read_text("utf-8"), strict=True) == results
    assert len(results.candidates) == 2 * 3
    assert {row.state for row in results.candidates} == {"measured"}
    assert {(row.measured.groups, row.measured.different) for row in results.candidates} == {(2, 0)}
    assert results.prompts == {"measured": 4, "left_out": 0}
    recipe = read_recipe(out / "recipe.yaml")
    assert {results.recommendation.method} - {PLAIN} <= set(recipe.methods)
    assert [one.name for one in recipe_methods(recipe, device="cpu")] == [PLAIN, *recipe.methods]
    assert [str(row[0]) for row in methods_table(results).rows][-1] == PLAIN
    assert {"target", "drafter", "tokenizer", "vocabulary v"} <= set(results.inputs)


def test_it_goes_on_where_it_was_stopped(place, tmp_path, monkeypatch):
    saved: list[tuple[str, int]] = []
    keep = SpeedMeter._keep

    def counting(stop: int) -> Any:
        def run(self: SpeedMeter, method: str, group: int, *turn: Any) -> None:
            if len(saved) == stop:
                raise KeyboardInterrupt
            saved.append((method, group))
            keep(self, method, group, *turn)

        return run

    monkeypatch.setattr(SpeedMeter, "_keep", counting(8))
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path / "out", settings_for(place), space_of(place / "v"))
    assert len(saved) == 8
    assert not (tmp_path / "out" / "tune.json").exists()
    monkeypatch.setattr(SpeedMeter, "_keep", counting(-1))
    results = tune(tmp_path / "out", settings_for(place), space_of(place / "v"))
    assert len(set(saved)) == len(saved) == 6 * 4, "nothing twice"
    saved.clear()
    again = tune(tmp_path / "out", settings_for(place), space_of(place / "v"))
    assert (again.candidates, again.recommendation) == (results.candidates, results.recommendation)
    assert saved == []
    tune(tmp_path / "out", settings_for(place), space_of(), fresh=True)
    assert len(saved) == 3 * 4


def test_time_that_is_up_is_told(place: Path, tmp_path: Path) -> None:
    results = tune(tmp_path / "out", settings_for(place, seconds=0.0), space_of(place / "v"))
    states = [row.state for row in results.candidates]
    assert states.count("not reached") >= 4
    assert any("time for measuring" in remark for remark in results.remarks)


def test_a_folder_with_something_else_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me", "utf-8")
    with pytest.raises(UsageError, match="something else"):
        tune(tmp_path, settings_for(place), space_of(place / "v"))


def test_questions_that_do_not_fit_are_left_out(place: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "q.jsonl", *(["x" * (10 if n % 3 else 9999)] for n in range(6)))
    settings = settings_for(place).model_copy(update={"prompts": str(tmp_path / "q.jsonl"), "limit": 3})
    results = tune(tmp_path / "out", settings, space_of())
    assert results.prompts == {"measured": 3, "left_out": 2}
    assert any("too long" in remark for remark in results.remarks)
    write_questions(tmp_path / "q.jsonl", ["x" * 10])
    with pytest.raises(UsageError, match="short enough"):
        tune(tmp_path / "few", settings, space_of())
