"""The short part of the fault campaign (all of it: ``make test-faults``)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.doc_parse import check_ours
from tests.faults.campaign import FAULTS, SHORT, Trial
from tests.faults.jobs import FORMS, JOBS, URLS, WRITERS
from tests.worlds import ROOT

linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked up in /proc")


def struck(record: Path, *start: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *start, "--short", "--jobs", "1", "--json", str(record)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("name", [*JOBS, *WRITERS, *FORMS])
def test_the_commands_of_the_whole_campaign_can_be_read(name: str, tmp_path: Path) -> None:
    (tmp_path / URLS).write_text(json.dumps(dict.fromkeys(("states", "vllm", "plain"), "http://127.0.0.1:1")))
    check_ours((JOBS | WRITERS | FORMS)[name].words(tmp_path, tmp_path / "work"))


@linux
@pytest.mark.slow
def test_every_struck_command_ends_in_a_clear_error_or_the_identical_result(tmp_path: Path) -> None:
    """Strikes at operations, not at instants: the same ones on every machine."""
    done = struck(tmp_path / "trials.json", "-m", "tests.faults.campaign")
    assert (tmp_path / "trials.json").is_file(), done.stderr
    trials = [Trial(**row) for row in json.loads((tmp_path / "trials.json").read_text())]
    wrong = [f"{t.command}, {t.fault}, {t.where}:\n{t.note}" for t in trials if t.verdict == "WRONG"]
    assert not wrong, "\n\n".join(wrong)
    assert done.returncode == 0
    assert {trial.fault for trial in trials} == set(FAULTS)
    assert {trial.command for trial in trials if trial.fault == "kill -9"} == set(SHORT) == set(JOBS)


@linux
@pytest.mark.slow
def test_the_campaign_finds_a_planted_fault(tmp_path: Path) -> None:
    """Without the clearing up of killed runs, the next run leaves their hidden folders."""
    code = """
import sys
from tests.faults import campaign
from vocabforge.core import folders
folders.leftovers = lambda *_, **__: []
campaign.SHORT = {"export": {campaign.KILL: 4}}
sys.exit(campaign.main())
"""
    done = struck(tmp_path / "trials.json", "-c", code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "leaves [" in (tmp_path / "trials.json").read_text()
