"""The stage ``report``: figures from ranks, results.json, the page. Inputs are made up; nothing is trained or timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluate.test_browser import CONTRAST, browser, troubles  # noqa: F401
from tests.study.drafted_support import SEED, drafted_config
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import ArtifactError, DataError
from vocabforge.evaluate.reports.page import PageChart
from vocabforge.evaluate.results.intervals import estimate, ratio, ratio_of_ratios
from vocabforge.study.config import ReplayConfig, StudyConfig
from vocabforge.study.layout import StudyLayout
from vocabforge.study.replay.replay import cycle_offsets
from vocabforge.study.replay.types import MISSED, Continuation, Replayed
from vocabforge.study.report.figures import (
    Sums,
    cells,
    conditional,
    groups_of,
    mean_scored,
    question_sums,
    shapes,
)
from vocabforge.study.report.results import COLUMNS, GREEDY, RARE, RESULTS, StudyResults, read_study
from vocabforge.study.report.stage import (
    KIND,
    ReportInputs,
    assemble,
    read_check,
    read_inputs,
    render_study,
    write_report,
)
from vocabforge.study.stage_answers import StudyAnswer


def asked(*rows: tuple[str, str]) -> list[StudyAnswer]:
    return [StudyAnswer(name, category, 1, Continuation((1,), (1, 2, 3))) for name, category in rows]


class TestFigures:
    def test_spec_bench_is_the_headline_and_rare_data_stands_apart(self) -> None:
        rows = [("spec-bench", "coding"), ("spec-bench", "qa"), ("gsm8k", "gsm8k"), ("rare", "french")]
        found = {group.key: (group, mask.tolist()) for group, mask in groups_of(asked(*rows))}
        assert list(found) == ["all", "gsm8k", "rare", RARE, "mt_bench", "coding", "qa"]
        assert found["all"][1] == [True, True, False, False]
        assert found[RARE][1] == [True, False, False, True]
        assert found["mt_bench"][1] == found["coding"][1] == [True, False, False, False]
        assert [found[key][0].kind for key in ("mt_bench", "coding", "qa")] == ["task", "category", "task"]
        assert found["all"][0].questions == 2

    def test_without_spec_bench_the_headline_is_all_but_rare(self) -> None:
        found = {
            group.key: mask.tolist()
            for group, mask in groups_of(asked(("a", "x"), ("b", "x"), ("rare", "y")))
        }
        assert found == {
            "all": [True, True, False],
            "a": [True, False, False],
            "b": [False, True, False],
            "rare": [False, False, True],
            RARE: [False, False, True],
        }

    def test_a_chain_by_hand(self) -> None:
        """Answers of 5 and 2 tokens: the full head is always right, the other never at its first token."""
        both = [StudyAnswer("a", "x", 1, Continuation((1,), tuple(range(size)))) for size in (5, 2)]
        offsets = cycle_offsets([one.continuation for one in both])
        right = np.zeros((5, 2), np.uint8)
        right[[2, 3, 4], [1, 1, 1]] = MISSED  # behind an answer's end
        right[3, 0] = MISSED
        full = Replayed(right, (9.0, 9.0))
        none = Replayed(np.full((5, 2), MISSED, np.uint8), (3.0, float("nan")))
        form = shapes(ReplayConfig(levels=2, trees=()))["chain"]
        sums = question_sums([{"f": full, "n": none}], ["f", "n"], both, form, 99)
        assert sums.committed[:, :, 0].tolist() == [[4, 4], [1, 1]]
        assert sums.cycles[:, :, 0].tolist() == [[2, 4], [1, 1]]
        whole = cells(sums, np.array([True, True]), 0, intervals=False)
        assert whole[0].accepted.value == pytest.approx(5 / 3)
        assert whole[1].accepted.value == 1.0
        assert whole[1].share.value == pytest.approx(0.6)
        assert whole[0].accepted.sd is None
        assert (whole[1].tokens, whole[1].cycles) == (5, 5)
        mask = np.array([True, False])
        assert conditional([full], offsets, mask, 2) == [0.5, 1.0]
        assert conditional([none], offsets, mask, 2) == [0.0, None]
        assert mean_scored([full, none]) == [6.0, 9.0]

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
        assert (found[0].share.low, found[0].share.high) == (1.0, 1.0)

    def test_one_question_has_no_interval(self) -> None:
        sums = Sums(np.full((2, 1, 1), 3.0), np.array([[[2.0]], [[0.0]]]))
        (cell,) = cells(sums, np.array([True, True]), 0, intervals=True)
        assert cell.accepted.low is None
        assert cell.accepted.value == 3.0


class TestResults:
    def test_every_method_has_every_cell(self, results: StudyResults) -> None:
        groups = {group.key for group in results.groups}
        assert {"all", "human-eval", "gsm8k", "rare", RARE, "writing", "translation"} <= groups
        for one in results.methods:
            assert set(one.cells) == {"greedy", "drawn"}
            for by_shape in one.cells.values():
                assert list(by_shape) == ["chain", "tree 30", "tree 60"]
                assert all(set(by_group) == groups for by_group in by_shape.values())

    def test_shares_are_of_the_same_seed(self, results: StudyResults) -> None:
        full, other = results.methods[0].at("chain"), results.methods[2].at("chain")
        assert full is not None
        assert other is not None
        for share, own, whole in zip(
            other.share_by_seed, other.accepted_by_seed, full.accepted_by_seed, strict=True
        ):
            assert share == pytest.approx(own / whole)  # type: ignore[operator]
        assert other.share.value == pytest.approx(np.mean(other.share_by_seed))  # type: ignore[arg-type]
        assert other.share.sd == pytest.approx(np.std(other.share_by_seed, ddof=1))  # type: ignore[arg-type]
        assert other.share.low < other.share.value < other.share.high  # type: ignore[operator]

    def test_predictions_stand_in_every_column(self, results: StudyResults) -> None:
        assert results.columns == list(COLUMNS)
        cell = results.methods[0].at("tree 60")
        assert cell is not None
        speed = cell.predicted["roofline"]
        assert speed.tokens_per_s == pytest.approx(cell.accepted.value / speed.cycle_s)  # type: ignore[operator]
        assert speed.speedup == pytest.approx(speed.tokens_per_s / speed.plain)
        categories = [group.key for group in results.groups if group.kind == "category"]
        assert not results.methods[0].at("tree 60", categories[0]).predicted  # type: ignore[union-attr]

    def test_without_times_nothing_is_predicted(self, study: tuple[StudyConfig, ReportInputs]) -> None:
        config, inputs = study
        found = assemble(config, replace(inputs, times=None, checked=None, replays=_greedy_only(inputs)))
        assert found.columns == []
        page = render_study(found, [])
        assert 'id="speed"' not in page
        assert 'id="lossless"' not in page

    def test_the_file_is_read_back(self, results: StudyResults, tmp_path: Path) -> None:
        file = tmp_path / RESULTS
        file.write_text(results.model_dump_json(), "utf-8")
        assert read_study(file) == results
        content = json.loads(file.read_text("utf-8"))
        first = content | {"schema_version": 1, "goals": [], "claims": [{"held": None}], "recommended": None}
        file.write_text(json.dumps(first), "utf-8")
        assert read_study(file).methods == results.methods
        file.write_text(json.dumps(content | {"schema_version": 7}), "utf-8")
        with pytest.raises(DataError, match="another version"):
            read_study(file)
        file.write_text(json.dumps(content | {"seeds": "all"}), "utf-8")
        with pytest.raises(DataError, match="schema"):
            read_study(file)


def _greedy_only(inputs: ReportInputs) -> Any:
    return {GREEDY: inputs.replays[GREEDY]}


class TestReport:
    def test_all_files_are_written_at_once(
        self,
        study: tuple[StudyConfig, ReportInputs],
        results: StudyResults,
        panels: list[PageChart],
        tmp_path: Path,
    ) -> None:
        layout = StudyLayout(tmp_path / "out")
        write_report(results, study[0], layout, panels)
        made = open_artifact(layout.report, KIND)
        assert {"results.json", "table.md", "report.html", "plots/share.svg"} <= set(made.manifest["files"])
        assert read_study(layout.report / RESULTS) == results
        write_report(results, study[0], layout, panels)  # and again, in its place

    def test_without_a_replay_there_is_no_report(
        self, study: tuple[StudyConfig, ReportInputs], drafted: StudyLayout
    ) -> None:
        other = drafted_config(drafted.root, methods={}).model_copy(update={"seeds": (7,)})
        with pytest.raises(ArtifactError, match="no seed of the study is replayed"):
            read_inputs(other, drafted)

    def test_what_is_missing_is_said(self, drafted: StudyLayout) -> None:
        config = drafted_config(drafted.root).model_copy(update={"seeds": (SEED, 7)})
        found = assemble(config, read_inputs(config, drafted))
        assert found.checked is None
        assert found.columns == []
        for words in ("Not replayed: seed 7.", "stage check", "stage times"):
            assert any(words in one for one in found.missing), words
        assert "1 prompts shortened" in found.facts["answers, greedy"]

    def test_the_page_says_what_is_measured(self, results: StudyResults, panels: list[PageChart]) -> None:
        page = render_study(results, panels)
        for words in ("measured", "predicted", "arithmetic", "Not replayed: seed 3."):
            assert words in page, words
        for key in ("methods", "speed", "categories", "rare", "drawn", "lossless", "how"):
            assert f'id="{key}"' in page, key
        assert "<script" not in page
        assert results.command in page


@pytest.fixture(scope="module")
def page(results: StudyResults, panels: list[PageChart], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(render_study(results, panels), "utf-8")
    return file


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_the_page_can_be_read(browser: Any, page: Path, width: int, scheme: str) -> None:  # noqa: F811
    assert troubles(browser, page, width, scheme) == []


def test_light_and_dark_have_contrast(browser: Any, page: Path) -> None:  # noqa: F811
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        opened = context.new_page()
        opened.goto(page.as_uri())
        seen = opened.evaluate(CONTRAST)
        context.close()
        assert seen["text"][0] >= 4.5, (scheme, seen["text"])
        assert seen["colours"][0] >= 3.0, (scheme, seen["colours"])


def test_the_check_is_summed_by_mode(tmp_path: Path) -> None:
    layout = StudyLayout(tmp_path)

    def figures(judgements: list[str], **replay: int) -> dict[str, Any]:
        different = [{"judgement": one} for one in judgements]
        found = {
            "outputs": 8,
            "identical": 8 - len(different),
            "different": different,
            "accepted_length": 2.0,
        }
        return {**found, **({"replay": replay} if replay else {})}

    by_seed = {
        "0": {
            "chain": figures([], cycles=30, equal=30, outputs=8),
            "drawn": figures(["near-tied", "fault", "not judged"], cycles=20, equal=19, outputs=5),
            "tree": figures([]),
        },
        "1": {
            "chain": {**figures([], cycles=10, equal=10, outputs=8), "accepted_length": 3.0},
            "drawn": figures([], cycles=10, equal=10, outputs=8),
            "tree": {**figures([]), "accepted_length": None},
        },
    }
    content = {
        "schema_version": 1,
        "device": "cpu",
        "dtype": "float32",
        "settings": {"questions": 6, "tokens": 24},
        "questions": [["a", 1], ["a", 2]],
        "plain": {},
        "totals": {},
        "lossless": False,
        "as_replayed": False,
        "methods": {"full": {"name": "full", "setting": "", "by_seed": by_seed}},
    }
    layout.checked.write_text(json.dumps(content), "utf-8")
    missing: list[str] = []
    found = read_check(layout, missing)
    assert found is not None
    assert missing == []
    chain, drawn, tree = found.modes
    assert (chain.outputs, chain.identical, chain.cycles, chain.equal_cycles) == (16, 16, 40, 40)
    assert (drawn.identical, drawn.near_tied, drawn.faults, drawn.not_judged) == (13, 1, 1, 1)
    assert (drawn.cycles, drawn.equal_cycles, tree.cycles) == (30, 29, 0)
    assert (chain.compared, drawn.compared, tree.compared) == (16, 13, 0)
    assert found.faults == 1
    assert found.lengths["full"] == {
        "chain, greedy": 2.5,
        "chain, temperature 1": 2.0,
        "dynamic tree, greedy": 2.0,
    }
    assert found.questions == 2
