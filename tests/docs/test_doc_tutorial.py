"""The tutorial as a newcomer would follow it: its commands in their order, as they are printed, in an empty folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.docs.doc_commands import commands
from tests.docs.doc_parse import ours
from tests.docs.doc_world import run
from tests.worlds import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.md"
# A file that takes what the commands print: to renew the tutorial's examples.
TOLD = "VOCABFORGE_TUTORIAL_OUTPUT"


@pytest.mark.long
def test_the_tutorial_works_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    told = []
    for command in commands(TUTORIAL):
        words = ours(command.words)
        if words is None or not command.whole:
            continue
        try:
            done = run(*words)
        except AssertionError as error:
            raise AssertionError(f"{command.place}: {command.text}\n{error}") from error
        told.append(f"$ {command.text}\n{done.output}")
    if os.environ.get(TOLD):
        Path(os.environ[TOLD]).write_text("\n".join(told), "utf-8")
    found = json.loads((tmp_path / "tutorial" / "results" / "results.json").read_text("utf-8"))
    plain, drafted = found["methods"]
    assert (plain["name"], drafted["name"]) == ("plain", "eagle3")
    figures = drafted["summary"]["overall"]
    assert figures["accepted_length"]["value"] > 1.3  # 2.9 where the tutorial was written
    assert figures["forwards_per_token"]["value"] < 0.9
    assert (tmp_path / "tutorial" / "served" / "README.md").is_file()
