"""The stage ``report``: figures from ranks, results.json, tables, plot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from tests.study.drafted_support import drafted_config
from vocabforge.core.artifact import open_artifact
from vocabforge.core.errors import DataError
from vocabforge.study.config import ReplayConfig, StudyLayout
from vocabforge.study.methods import methods
from vocabforge.study.replay.types import Continuation, Replayed
from vocabforge.study.report.figures import cells, groups_of, mean_scored, question_sums, shapes
from vocabforge.study.report.results import RARE, RESULTS, Checked, Decoded, StudyResults, read_study
from vocabforge.study.report.stage import KIND, run
from vocabforge.study.report.tables import methods_table, study_tables
from vocabforge.study.stages.answers import StudyAnswer
from vocabforge.study.stages.check import MODES


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
        assert sums[:, :, 0, 0].tolist() == [[4, 4], [1, 1]]
        assert sums[:, :, 0, 1].tolist() == [[2, 4], [1, 1]]
        whole = cells(sums, np.array([True, True]), 0)
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
        assert tuple(limited.sum((0, 1, 2))) == (4, 1)
        assert tuple(ended.sum((0, 1, 2))) == (7, 2)


@pytest.fixture(scope="module")
def layout(drafted: StudyLayout, tmp_path_factory: pytest.TempPathFactory) -> StudyLayout:
    """A study with a made-up check, and its report."""
    layout = StudyLayout(shutil.copytree(drafted.root, tmp_path_factory.mktemp("report") / "study"))
    config = drafted_config(layout.root)
    ways = methods(config, layout)
    counts = dict(
        zip(("outputs", "identical", "near_tied", "faults", "cycles", "equal_cycles"), (8, 7, 1, 0, 30, 30))
    )
    checked = Checked(
        modes=[Decoded(mode=mode, **counts) for mode in MODES],
        lengths={way.key: dict.fromkeys(MODES, 2.5) for way in ways},
        questions=1,
        where="cpu, float32",
        settings=config.check.model_dump(),
    )
    layout.checked.write_text(checked.model_dump_json())
    run(config, layout)
    return layout


@pytest.fixture(scope="module")
def results(layout: StudyLayout) -> StudyResults:
    return read_study(layout.report / RESULTS)


class TestReport:
    def test_every_method_has_every_cell(self, results: StudyResults) -> None:
        assert results.main_shape == "tree 12"
        for one in results.methods:
            assert set(one.cells) == {"greedy", "drawn"}
            for by_shape in one.cells.values():
                assert list(by_shape) == ["chain", "tree 12"]
                assert all(set(by_group) == {"all", "rare", RARE} for by_group in by_shape.values())
            assert one.at("tree 12").tokens_per_s > 0  # type: ignore[union-attr,operator]
        full = results.full.at("tree 12")
        assert full is not None
        assert full.accepted.value > 1.1  # type: ignore[operator]
        assert (full.share.value, full.share.low, full.share.high) == (1.0, 1.0, 1.0)
        assert results.full.exact == 1.0
        assert len({one.family for one in results.methods}) == len(results.main_methods)

    def test_five_tables_with_speeds_against_the_full_head(self, results: StudyResults) -> None:
        parts = study_tables(results)
        assert list(parts) == ["methods", "categories", "rare", "drawn", "lossless"]
        for key, part in parts.items():
            assert all(len(row) == len(part.columns) for row in part.rows), key
            assert "easured" in part.caption
        assert parts["methods"].cells[0][-2].under == "1.00×"
        assert parts["methods"].rows[0][-1] == "2.50"
        assert parts["rare"].rows[0][-1] == "+0.0"
        assert list(parts["lossless"].rows[0]) == ["chain, greedy", 8, 7, 1, 0, "30 of 30"]

    def test_all_files_are_written_at_once(self, layout: StudyLayout) -> None:
        made = open_artifact(layout.report, KIND)
        assert set(made.manifest["files"]) == {RESULTS, "table.md", "plots/share.svg"}
        text = made.file("plots/share.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert "var(--" not in text
        tables = made.file("table.md").read_text()
        for words in ("Measured", "arithmetic", "1 prompts shortened"):
            assert words in tables, words

    def test_older_versions_are_read_and_others_refused(self, results: StudyResults, tmp_path: Path) -> None:
        file, content = tmp_path / RESULTS, json.loads(results.model_dump_json())
        cell = content["methods"][0]["cells"]["greedy"]["chain"]["all"]
        cell["predicted"] = {"roofline": {"tokens_per_s": cell.pop("tokens_per_s")}}
        file.write_text(json.dumps(content | {"schema_version": 1, "claims": [{"held": None}]}))
        assert read_study(file).methods == results.methods
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
