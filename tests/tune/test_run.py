"""A whole search with seconds from a file: what it writes, how it goes on, what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tune.support import make_place, make_table, settings_of
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.build.methods import recipe_methods
from vocabforge.decode.build.recipe import PLAIN, read_recipe
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.tune.latency.table import write_latency
from vocabforge.tune.outcome import TUNE, TuneResults
from vocabforge.tune.run import tune
from vocabforge.tune.search.acceptance import AcceptanceSource
from vocabforge.tune.search.space import HeadChoice
from vocabforge.tune.settings import MethodSpace, TuneSettings
from vocabforge.vocab.counts.table import FrequencyTable, save_counts
from vocabforge.vocab.subset.select import SpecialTokens

TREES = {"depth": "0,1", "topk": "2", "total_nodes": "6"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Also ``cheap.json`` and ``dear.json``: verified nodes cost nothing, or a lot."""
    place = make_place(tmp_path_factory.mktemp("run"), questions=7)
    heads = settings_of(place, [HeadChoice(), HeadChoice("v", MethodSpec(vocab=place / "v"))])
    write_latency(place / "cheap.json", make_table(place, heads, cost=0.0))
    write_latency(place / "dear.json", make_table(place, heads, cost=1.0))
    return place


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages take their time; one test looks at one."""
    monkeypatch.setattr("vocabforge.tune.run.render_report", lambda results: "page")


def settings_for(place: Path, table: str | None = "cheap.json", **more: Any) -> TuneSettings:
    what_if = None if table is None else place / table
    settings = {"max_new_tokens": 8, "prompt_format": "raw", "device": "cpu", "what_if": what_if, **more}
    return TuneSettings(target=place / "t", drafter=place / "d", prompts=str(place / "q.jsonl"), **settings)


def space_of(*vocabs: Path, **more: Any) -> MethodSpace:
    return MethodSpace(vocab=list(map(str, vocabs)), **TREES, **more)


def test_a_search_recommends_and_writes_everything(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = tune(out, settings_for(place, batch=(1, 4)), space_of(place / "v"))
    assert TuneResults.model_validate_json((out / TUNE).read_text("utf-8"), strict=True) == results
    assert len(results.candidates) == 2 * 3
    assert [one.batch for one in results.recommendations] == [1, 4]
    assert results.prompts == {"measured": 4, "checking": 3, "left_out": 0}
    recipe = read_recipe(out / "recipe.yaml")
    named = {one.method for one in results.recommendations} - {PLAIN}
    assert named <= set(recipe.methods)
    assert [one.name for one in recipe_methods(recipe, device="cpu")] == [PLAIN, *recipe.methods]
    page = (out / "report.html").read_text("utf-8")
    assert "another GPU" in page
    assert "what if" in page
    assert page.count("cycle, ms") == 2
    assert not [word for word in ("http://", "https://", "<script") if word in page]
    assert {"target", "drafter", "tokenizer", "vocabulary v"} <= set(results.inputs)


@pytest.mark.usefixtures("no_page")
def test_it_goes_on_where_it_was_stopped(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[str, int]] = []
    decode = AcceptanceSource._decode

    def counting(stop: int) -> Any:
        def run(self: AcceptanceSource, places: tuple[int, ...], proposer: Any) -> Any:
            if len(decoded) == stop:
                raise KeyboardInterrupt
            decoded.extend((str(proposer and proposer.args[0].name), place) for place in places)
            return decode(self, places, proposer)

        return run

    monkeypatch.setattr(AcceptanceSource, "_decode", counting(8))
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path / "out", settings_for(place), space_of(place / "v"))
    first = list(decoded)
    assert len(first) == 8
    assert not (tmp_path / "out" / "tune.json").exists()
    monkeypatch.setattr(AcceptanceSource, "_decode", counting(-1))
    results = tune(tmp_path / "out", settings_for(place), space_of(place / "v"))
    assert len(set(decoded)) == len(decoded)  # nothing twice
    decoded.clear()
    assert tune(tmp_path / "out", settings_for(place), space_of(place / "v")).candidates == results.candidates
    assert decoded == []
    monkeypatch.setattr(AcceptanceSource, "_decode", decode)
    other = tune(tmp_path / "fresh", settings_for(place), space_of(place / "v"))
    assert other.candidates == results.candidates
    assert other.recommendations == results.recommendations


@pytest.mark.usefixtures("no_page")
def test_time_that_is_up_is_told(place: Path, tmp_path: Path) -> None:
    results = tune(tmp_path / "out", settings_for(place, seconds=0.0), space_of(place / "v"))
    states = [row.state for row in results.candidates]
    assert states.count("not reached") >= 4
    assert any("time for measuring" in remark for remark in results.remarks)


@pytest.mark.usefixtures("no_page")
def test_latency_is_measured_again_only_for_what_a_longer_budget_could_add(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[float] = []
    table = make_table(place, settings_of(place, [HeadChoice()]), here=True)

    def measured(inputs: Any, seconds: float) -> Any:
        budgets.append(seconds)
        return table.model_copy(update={"notes": ("left out",) if seconds < 30 else ()})

    monkeypatch.setattr("vocabforge.tune.run.measure_latency", measured)
    for budget in (200.0, 100.0, 400.0, 900.0):
        tune(tmp_path / "out", settings_for(place, None, seconds=budget), space_of())
    assert budgets == [20.0, 40.0]
    tune(tmp_path / "out", settings_for(place, None), space_of(), fresh=True)
    assert budgets == [20.0, 40.0, 60.0]


@pytest.mark.usefixtures("no_page")
def test_a_head_that_the_file_does_not_know_is_left_out(place: Path, tmp_path: Path) -> None:
    space = space_of(head=[str(place / "r")])
    results = tune(tmp_path / "out", settings_for(place), space)
    assert {row.head for row in results.candidates} == {"full"}
    assert any(remark.startswith("r was not searched") for remark in results.remarks)


def test_a_file_of_other_models_is_refused(place: Path, tmp_path: Path) -> None:
    heads = settings_of(place, [HeadChoice()])
    table = make_table(place, heads)
    shapes = table.target.model_copy(update={"hidden_size": 64})
    write_latency(tmp_path / "other.json", table.model_copy(update={"target": shapes}))
    with pytest.raises(MismatchError, match="other sizes"):
        tune(tmp_path / "out", settings_for(place, str(tmp_path / "other.json")), space_of(place / "v"))


def test_a_folder_with_something_else_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me", "utf-8")
    with pytest.raises(UsageError, match="something else"):
        tune(tmp_path, settings_for(place), space_of(place / "v"))


@pytest.mark.usefixtures("no_page")
def test_vocabularies_are_cut_into_the_folder(place: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(place / "t")
    counts, special = np.arange(tokenizer.vocab_size), SpecialTokens.of(tokenizer)
    table = FrequencyTable(counts, 1, 1, "corpus", tokenizer.fingerprint, {"x": "y"}, special)
    save_counts(table, tmp_path / "counts")
    settings = settings_for(place, ranking=tmp_path / "counts", size=(20, 40))
    results = tune(tmp_path / "out", settings, space_of())
    assert {row.head for row in results.candidates} == {"full", "r20", "r40"}
    assert results.row("r20+chain1").method.vocab == (tmp_path / "out" / "vocab" / "r20").resolve()


@pytest.mark.parametrize("wrong", [{"batch": ()}, {"batch": (0,)}, {"batch": (2,), "check": 8}])
def test_options_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError):
        settings_for(Path(), **wrong)


def test_sizes_need_a_ranking() -> None:
    with pytest.raises(UsageError, match="cut from a ranking"):
        settings_for(Path(), size="8")
