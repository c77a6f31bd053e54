"""The stage ``report``: figures from ranks, results.json, tables, page. Times are made up; nothing is measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from tests.study.drafted_support import SEED, drafted_config
from tests.study.latency_support import made_up_latency
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ArtifactError, DataError
from vocabforge.evaluate.results.intervals import estimate, ratio, ratio_of_ratios
from vocabforge.evaluate.results.schema import Figure
from vocabforge.models.lean.model import load_target
from vocabforge.study.config import ReplayConfig
from vocabforge.study.layout import StudyLayout
from vocabforge.study.methods import StudyHeads, methods
from vocabforge.study.replay.types import Continuation, Replayed
from vocabforge.study.report.figures import Sums, cells, groups_of, mean_scored, question_sums, shapes
from vocabforge.study.report.results import COLUMNS, RARE, RESULTS, Cell, StudyResults, read_study
from vocabforge.study.report.stage import KIND, assemble, run
from vocabforge.study.report.tables import length, methods_table, percent, share, study_tables
from vocabforge.study.stage_answers import StudyAnswer
from vocabforge.study.stage_check import MODES, StudyCheck
from vocabforge.study.times.stage import StudyTimes, trees_of


def asked(*rows: tuple[str, str]) -> list[StudyAnswer]:
    return [StudyAnswer(name, category, 1, Continuation((1,), (1, 2, 3))) for name, category in rows]


class TestFigures:
    def test_spec_bench_is_the_headline_and_rare_data_stands_apart(self) -> None:
        rows = [("spec-bench", "coding"), ("spec-bench", "qa"), ("gsm8k", "gsm8k"), ("rare", "french")]
        found = {group.key: (group, mask.tolist()) for group, mask in groups_of(asked(*rows))}
        assert list(found) == ["all", "gsm8k", "rare", RARE, "mt_bench", "qa"]
        assert found["all"][1] == [True, True, False, False]
        assert found[RARE][1] == [True, False, False, True]
        assert found["mt_bench"][1] == [True, False, False, False]
        assert found["all"][0].questions == 2
        without = groups_of(asked(("a", "x"), ("b", "x"), ("rare", "y")))
        assert [group.key for group, _ in without] == ["all", "a", "b", "rare", RARE]
        assert without[0][1].tolist() == [True, True, False]

    def test_a_chain_by_hand(self) -> None:
        """Answers of 5 and 2 tokens: the full head is always right, the other never at its first token."""
        both = [StudyAnswer("a", "x", 1, Continuation((1,), tuple(range(size)))) for size in (5, 2)]
        full = Replayed(np.zeros((5, 2), np.uint8), (9.0, 9.0))
        none = Replayed(np.full((5, 2), 255, np.uint8), (3.0, float("nan")))
        form = shapes(ReplayConfig(levels=2, trees=()))["chain"]
        sums = question_sums([{"f": full, "n": none}], ["f", "n"], both, form, 99)
        assert sums.committed[:, :, 0].tolist() == [[4, 4], [1, 1]]
        assert sums.cycles[:, :, 0].tolist() == [[2, 4], [1, 1]]
        whole = cells(sums, np.array([True, True]), 0, intervals=False)
        assert whole[0].accepted.value == pytest.approx(5 / 3)
        assert whole[1].accepted.value == 1.0
        assert whole[1].share.value == pytest.approx(0.6)
        assert whole[0].accepted.sd is None
        assert mean_scored([full, none]) == {0: 6.0, 1: 9.0}
        assert mean_scored([none]) == {0: 3.0}

    def test_cycles_that_a_limit_may_have_cut_do_not_count(self) -> None:
        """An answer of 8 tokens, always right, chain of 3: cycles begin at 0 and 4; behind 4 three tokens are left."""
        one = StudyAnswer("a", "x", 1, Continuation((1,), tuple(range(8))))
        right = Replayed(np.zeros((7, 3), np.uint8), (9.0, 9.0, 9.0))
        form = shapes(ReplayConfig(levels=3, trees=()))["chain"]
        limited = question_sums([{"f": right}], ["f"], [one], form, 8)
        ended = question_sums([{"f": right}], ["f"], [one], form, 9)
        assert (limited.committed.sum(), limited.cycles.sum()) == (4, 1)
        assert (ended.committed.sum(), ended.cycles.sum()) == (7, 2)

    def test_the_bootstrap_is_that_of_intervals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("vocabforge.evaluate.results.intervals.RESAMPLES", 80)
        rng = np.random.default_rng(0)
        cycles = rng.integers(1, 9, (25, 3, 2)).astype(float)
        sums = Sums(cycles + rng.integers(0, 9, cycles.shape), cycles)
        mask = rng.random(25) < 0.8
        found = cells(sums, mask, 0, intervals=True)
        for place in range(3):
            own = np.stack([sums.committed[mask, place], sums.cycles[mask, place]], -1)
            beside = np.stack([sums.committed[mask, 0], sums.cycles[mask, 0]], -1)
            both = np.concatenate([own, beside], -1)
            for figure, expected in (
                (found[place].accepted, estimate(own, ratio, pooled=False)),
                (found[place].share, estimate(both, ratio_of_ratios, pooled=False)),
            ):
                assert figure.model_dump() == pytest.approx(expected.model_dump())
        one = np.zeros(25, bool)
        one[3] = True
        assert cells(sums, one, 0, intervals=True)[0].accepted.low is None  # one question has no interval


def test_figures_in_tables() -> None:
    def cell(value: float | None, **spread: float) -> Cell:
        figure = Figure(value=value, **spread)
        return Cell(accepted=figure, share=figure, predicted={})

    assert length(cell(2.614, sd=0.018)) == "2.61 ±0.02"
    assert length(None) == length(cell(None)) == share(None) == share(cell(None)) == "–"
    assert share(cell(0.98512, sd=0.001, low=0.982, high=0.988)) == "98.5 ±0.1 [98.2–98.8]"
    assert share(cell(0.98512, sd=0.001, low=0.982, high=0.988), between=False) == "98.5 ±0.1"
    assert share(cell(1.0, low=1.0, high=1.0)) == "100.0"
    assert (percent(0.0135), percent(0.216), percent(1.0), percent(None)) == ("1.35%", "21.6%", "100.0%", "–")


@pytest.fixture(scope="module")
def layout(drafted: StudyLayout, tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    """A study with made-up times and check, and its report."""
    layout = StudyLayout(shutil.copytree(drafted.root, tmp_path_factory.mktemp("report") / "study"))
    config = drafted_config(layout.root)
    ways, model = methods(config, layout), load_target(layout.target)
    heads = StudyHeads(layout.seed(SEED), layout.target, model)
    sizes = {way.key: heads.setting(way) for way in ways}
    times = StudyTimes(
        vocabforge="0",
        heads=sizes,
        rows=model.config.vocab_size,
        hidden=model.config.hidden_size,
        prefix=20,
        trees=trees_of(config),
        latency=made_up_latency(dict.fromkeys(sizes.values(), 1e-3)),
    )
    layout.times.write_text(times.model_dump_json())
    names = ("outputs", "identical", "near_tied", "faults", "compared", "cycles", "equal_cycles")
    counts = dict(zip(names, (8, 7, 1, 0, 8, 30, 30)))
    made = {mode: {"accepted_length": 2.5} for mode in MODES}
    checked = StudyCheck(
        dtype="float32",
        device="cpu",
        settings=config.check,
        questions=[["spec", 1]],
        methods={way.key: {str(SEED): made} for way in ways},
        totals=dict.fromkeys(MODES, counts),
        lossless=True,
        as_replayed=True,
    )
    layout.checked.write_text(checked.model_dump_json())
    run(config, layout)
    return layout


@pytest.fixture(scope="module")
def results(layout: StudyLayout) -> StudyResults:
    return read_study(layout.report / RESULTS)


class TestReport:
    def test_every_method_has_every_cell(self, results: StudyResults) -> None:
        assert results.columns == list(COLUMNS)
        assert results.main_shape == "tree 12"
        for one in results.methods:
            assert set(one.cells) == {"greedy", "drawn"}
            for by_shape in one.cells.values():
                assert list(by_shape) == ["chain", "tree 12"]
                assert all(set(by_group) == {"all", "rare", RARE} for by_group in by_shape.values())
        full = results.methods[0].at("tree 12")
        assert full is not None
        assert full.accepted.value > 1.1  # type: ignore[operator]
        assert (full.share.value, full.share.low, full.share.high) == (1.0, 1.0, 1.0)
        assert results.methods[0].exact == 1.0
        families = {one.family: one for one in results.main_methods}
        assert len(families) == len(results.main_methods) == len({one.family for one in results.methods})

    def test_five_tables_with_speeds_against_the_full_head(self, results: StudyResults) -> None:
        parts = {part.key: part for part in study_tables(results)}
        assert list(parts) == ["methods", "categories", "rare", "drawn", "lossless"]
        for part in parts.values():
            assert all(len(row) == len(part.columns) for row in part.rows), part.key
            assert "easured" in part.note
        assert [text.split(" ")[1] for text in parts["methods"].rows[0][-3:-1]] == ["(1.00×)"] * 2
        assert parts["methods"].rows[0][-1] == "2.50"
        assert parts["rare"].rows[0][-1] == "+0.0"
        assert list(parts["lossless"].rows[0]) == ["chain, greedy", "8", "7", "1", "0", "30 of 30"]

    def test_all_files_are_written_at_once(self, layout: StudyLayout, results: StudyResults) -> None:
        made = open_artifact(layout.report, KIND)
        plots = {f"plots/{key}.svg" for key in ("share", "speed", "categories")}
        assert set(made.manifest["files"]) == {RESULTS, "table.md", "report.html", *plots}
        for name in plots:
            text = made.file(name).read_text()
            assert ElementTree.fromstring(text).tag.endswith("svg")
            assert "var(--" not in text
        page = (layout.report / "report.html").read_text()
        for words in ("measured", "predicted", "arithmetic", "there was no GPU", "1 prompts shortened"):
            assert words in page, words
        for key in ("methods", "categories", "rare", "drawn", "lossless", "how"):
            assert f'id="{key}"' in page, key
        assert "<script" not in page
        assert "7 of 8" not in page  # the card sums the modes
        assert "21 of 24 outputs" in page

    def test_what_is_missing_is_said(self, drafted: StudyLayout) -> None:
        config = drafted_config(drafted.root).model_copy(update={"seeds": (SEED, 7)})
        found = assemble(config, drafted)
        assert found.checked is None
        assert found.columns == []
        for words in ("Not replayed: seed 7.", "stage check", "stage times"):
            assert any(words in one for one in found.missing), words
        with pytest.raises(ArtifactError, match="no seed of the study is replayed"):
            assemble(config.model_copy(update={"seeds": (7,)}), drafted)

    def test_older_versions_are_read_and_others_refused(self, results: StudyResults, tmp_path: Path) -> None:
        file, content = tmp_path / RESULTS, json.loads(results.model_dump_json())
        file.write_text(json.dumps(content | {"schema_version": 1, "claims": [{"held": None}]}))
        assert read_study(file).methods == results.methods
        file.write_text(json.dumps(content | {"schema_version": 1, "columns": ["machine", "shape"]}))
        assert len(methods_table(read_study(file)).columns) == 5  # a column that went is left out
        for changes, words in (({"schema_version": 7}, "another version"), ({"seeds": "all"}, "schema")):
            file.write_text(json.dumps(content | changes))
            with pytest.raises(DataError, match=words):
                read_study(file)

    @pytest.mark.parametrize("width", [80, 140])
    def test_the_terminal(self, results: StudyResults, width: int, tmp_path: Path) -> None:
        with open(tmp_path / "out", "w+", encoding="utf-8") as file:
            Console(width=width, file=file).print(methods_table(results))
            file.seek(0)
            assert max(map(len, file.read().splitlines())) <= width
