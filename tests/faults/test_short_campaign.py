"""The short part of the fault campaign (all of it: ``make test-faults``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.doc_parse import check_ours
from tests.faults import forms
from tests.faults.faults_world import JOBS
from tests.faults.judging import Trial
from tests.faults.writers import WRITERS
from tests.worlds import ROOT


@pytest.mark.parametrize("name", [*JOBS, *WRITERS, *forms.FORMS])
def test_the_commands_of_the_whole_campaign_can_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "url_of", lambda *_: "http://127.0.0.1:1")
    check_ours([str(word) for word in (JOBS | WRITERS | forms.FORMS)[name].argv(tmp_path, tmp_path)])


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="trials are watched by a Linux call")
@pytest.mark.slow
def test_every_struck_command_ends_in_a_clear_error_or_goes_on_to_the_identical_result(
    tmp_path: Path,
) -> None:
    """Strikes at operations, not at instants: the same ones on every machine."""
    record = tmp_path / "trials.json"
    command = [sys.executable, "-m", "tests.faults.campaign", "--short", "--jobs", "1", "--json", str(record)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert record.is_file(), done.stderr
    trials = [Trial(**row) for row in json.loads(record.read_text())]
    wrong = [f"{t.command}, {t.fault}, {t.where}:\n{t.note}" for t in trials if t.verdict == "WRONG"]
    assert not wrong, "\n\n".join(wrong)
    assert done.returncode == 0
    assert {trial.fault for trial in trials} >= {
        "kill -9",
        "failing write",
        "file quota",
        "two writers",
        "clock back",
    }
    assert {trial.command for trial in trials if trial.fault == "kill -9"} == {
        "count-freq",
        "capture",
        "train-drafter",
        "export",
        "eval",
    }
