"""How evaluations to be compared are named and opened, and what other folders are told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.evaluate.comparison_support import Made, write_run
from vocabforge.core.artifact import write_artifact
from vocabforge.core.errors import ArtifactError, UsageError
from vocabforge.evaluate.comparison.runs import open_runs
from vocabforge.evaluate.results.schema import RESULTS

SMALL = Made(questions=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("made") / "eval", SMALL)


def copies(made: Path, folder: Path, *names: str) -> list[str]:
    for name in names:
        shutil.copytree(made, folder / name)
    return [str(folder / name) for name in names]


@pytest.mark.parametrize(
    ("folders", "labels"),
    [
        (["a", "b"], ["a", "b"]),
        (["x/eval", "y/eval"], ["x/eval", "y/eval"]),
        (["a:b", "c"], ["a-b", "c"]),
    ],
)
def test_folders_give_labels_that_differ(
    made: Path, tmp_path: Path, folders: list[str], labels: list[str]
) -> None:
    assert [run.label for run in open_runs(copies(made, tmp_path, *folders))] == labels


def test_labels_may_be_given(made: Path, tmp_path: Path) -> None:
    first, second, odd = copies(made, tmp_path, "one", "two", "a=b")
    runs = open_runs([f"before={first}", f"after={second}", odd])
    assert [(run.label, run.folder.name) for run in runs] == [
        ("before", "one"),
        ("after", "two"),
        ("a=b", "a=b"),
    ]
    with pytest.raises(UsageError, match="same label"):
        open_runs([f"x={first}", f"x={second}"])
    for label in ("", "a:b", "a\nb", "\x1b[2J", "\udcff"):
        with pytest.raises(UsageError, match="cannot be a run's label") as raised:
            open_runs([f"{label}={first}"])
        assert "\x1b" not in str(raised.value)
    with pytest.raises(UsageError, match="given twice"):
        open_runs([first, f"again={tmp_path}/two/../one"])


def test_a_changed_evaluation_is_refused(made: Path, tmp_path: Path) -> None:
    (folder,) = copies(made, tmp_path, "eval")
    rows = Path(folder) / "answers" / "plain.jsonl"
    rows.write_text(rows.read_text().replace('"plain"', '"plane"'), "utf-8")
    with pytest.raises(ArtifactError, match="differs in content"):
        open_runs([folder])


@pytest.mark.parametrize("files", [["/dev/zero"], ["../../secret"], [], ["answers/plain.jsonl"] * 2])
def test_results_that_name_other_files_are_refused(made: Path, tmp_path: Path, files: list[str]) -> None:
    content = json.loads((made / RESULTS).read_text("utf-8"))
    content["methods"][1]["answers"] = files
    with write_artifact(tmp_path / "eval", "evaluation", {}) as folder:
        shutil.copytree(made / "answers", folder / "answers")
        shutil.copytree(made / "details", folder / "details")
        (folder / RESULTS).write_text(json.dumps(content), "utf-8")
    with pytest.raises(ArtifactError, match="do not fit their evaluation"):
        open_runs([str(tmp_path / "eval")])
