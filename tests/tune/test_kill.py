"""A killed search goes on and ends as if it had not been killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tune.support import make_place, make_table, settings_of
from tests.worlds import ROOT
from vocabforge.tune.latency.table import write_latency
from vocabforge.tune.search.space import HeadChoice


@pytest.mark.proof
def test_kill_9_loses_one_measurement_at_most(tmp_path: Path) -> None:
    place = make_place(tmp_path, questions=16)
    write_latency(place / "there.json", make_table(place, settings_of(place, [HeadChoice()])))
    command = [sys.executable, "-m", "vocabforge", "tune", "--target", "t", "--drafter", "d"]
    command += [
        "--prompts",
        "q.jsonl",
        "--what-if",
        "there.json",
        "--prompt-format",
        "raw",
        "--device",
        "cpu",
    ]
    command += ["--max-new-tokens", "32", "--output"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start(output: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, output], cwd=place, env=environment, stdout=subprocess.DEVNULL)

    kept = place / "killed" / "acceptance"
    for wanted in (3, 8):
        running = start("killed")
        while running.poll() is None and len(list(kept.glob("*.json"))) < wanted:
            time.sleep(0.01)
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert not (place / "killed" / "tune.json").exists()
        assert len(list(kept.glob("*.json"))) >= wanted
    assert start("killed").wait() == 0
    assert start("whole").wait() == 0
    killed, whole = (
        json.loads((place / name / "tune.json").read_text("utf-8")) for name in ("killed", "whole")
    )
    assert killed["candidates"] == whole["candidates"]
    assert killed["recommendations"] == whole["recommendations"]
