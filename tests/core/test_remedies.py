"""What someone is told whose folder is not there yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from vocabforge.core.artifact import model_remedy, open_artifact, write_artifact
from vocabforge.core.errors import ArtifactError


def test_a_name_of_the_hub_is_answered_with_how_to_fetch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B" in model_remedy(Path("Qwen/Qwen3-0.6B"))
    (tmp_path / "models").mkdir()
    for path in ("model", "models/model", "a/b/c", "../a/b", "./nothere", "/nowhere/model", "a b/c", "-x/y"):
        assert model_remedy(Path(path)) == "check the path", path
    (tmp_path / "Qwen").mkdir()  # then a folder was meant
    assert model_remedy(Path("Qwen/Qwen3-0.6B")) == "check the path"


def test_an_artefact_that_was_not_made_yet_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(
        ArtifactError, match="vocabforge prepare-data makes one, and an interrupted run leaves none"
    ):
        open_artifact(tmp_path / "data", "prepared-data")
    with pytest.raises(ArtifactError, match="run the command that makes it again"):
        open_artifact(tmp_path / "data")
    write_artifact_of(tmp_path / "other", "subset")
    with pytest.raises(ArtifactError, match="another kind") as caught:
        open_artifact(tmp_path / "other", ("counts", "drafter"))
    assert caught.value.expected == "counts or drafter"
    assert caught.value.remedy == "vocabforge count-freq makes one"


def write_artifact_of(path: Path, kind: str) -> None:
    with write_artifact(path, kind, {}) as folder:
        (folder / "a.txt").write_text("a", "utf-8")
