"""The short part of the fault campaign (all of it: ``make test-faults``)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.doc_parse import check_ours
from tests.faults.campaign import FAULTS, SHORT
from tests.faults.jobs import FORMS, JOBS, URLS, WRITERS
from tests.worlds import ROOT

linux = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked up in /proc")


def struck(*start: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *start, "--short", "--jobs", "1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.mark.parametrize("name", [*JOBS, *WRITERS, *FORMS])
def test_the_commands_of_the_whole_campaign_can_be_read(name: str, tmp_path: Path) -> None:
    (tmp_path / URLS).write_text(
        json.dumps(dict.fromkeys(("states", "fetched", "vllm", "plain", "chat"), "http://127.0.0.1:1"))
    )
    check_ours((JOBS | WRITERS | FORMS)[name].words(tmp_path, tmp_path / "work"))


@linux
@pytest.mark.slow
def test_every_struck_command_ends_in_a_clear_error_or_the_identical_result() -> None:
    """Strikes at operations, not at instants: the same ones on every machine."""
    done = struck("-m", "tests.faults.campaign")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]) for line in done.stdout.splitlines()[2:]}
    assert {fault for fault, _ in rows} == set(FAULTS)
    assert (
        {command for fault, command in rows if fault == "kill -9"}
        == {*SHORT, "**all**"}
        == {*JOBS, "**all**"}
    )


@linux
@pytest.mark.slow
def test_the_campaign_finds_a_planted_fault() -> None:
    """Without the clearing up of killed runs, the next run leaves their hidden folders."""
    code = """
import sys
from tests.faults import campaign
from vocabforge.core import folders
folders.leftovers = lambda *_, **__: []
campaign.SHORT = {"export": {campaign.KILL: 4}}
sys.exit(campaign.main())
"""
    done = struck("-c", code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "leaves [" in done.stdout + done.stderr
