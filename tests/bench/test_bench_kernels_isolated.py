"""Processes that keep a journal: what is measured stays, what dies is named, the rest follows."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import figures
from gpu_process import DEADLINE, JOURNAL, NO_TIME, Entries, note, read_journal, supervise

# Does a, b, c; something at b the first time that it gets there.
CHILD = """
import os, pathlib, sys, time
from gpu_process import JOURNAL, begin, end, leave_if_lost, note, read_journal
journal, action = pathlib.Path(os.environ[JOURNAL]), sys.argv[1]
for name in "abc":
    if name in read_journal(journal)[0]:
        continue
    begin(journal, name, 1.0 if action == "hang" else 60.0)
    if name == "b":
        if action == "die":
            print("illegal memory access")
            sys.exit(7)
        if action in ("hang", "sleep"):
            time.sleep(60)
        if action == "lose the device":
            note(journal, name, outcome="failed", problem="CUDA error: unspecified launch failure")
            leave_if_lost("CUDA error: unspecified launch failure")
    note(journal, name, outcome="passed")
    end(journal, name)
if action == "at the end":
    sys.exit("no more")
"""


def run(folder: Path, action: str, seconds: float = 60.0) -> tuple[Entries, str | None]:
    (folder / "child.py").write_text(CHILD)
    return supervise([sys.executable, str(folder / "child.py"), action], folder / "j.jsonl", seconds)


def test_all_goes_well(tmp_path: Path) -> None:
    assert run(tmp_path, "nothing") == ({name: {"outcome": "passed"} for name in "abc"}, None)


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("die", "ended with 7\nillegal memory access"),
        ("hang", "child.py"),  # the trace names the line
        ("lose the device", "unspecified launch failure"),
    ],
)
def test_a_figure_that_ends_its_process_costs_itself_only(tmp_path: Path, action: str, told: str) -> None:
    found, problem = run(tmp_path, action)
    assert {name: one["outcome"] for name, one in found.items()} == {
        "a": "passed",
        "b": "failed",
        "c": "passed",
    }
    assert told in found["b"]["problem"]
    assert problem is None


def test_what_exceeds_the_time_is_stopped(tmp_path: Path) -> None:
    found, problem = run(tmp_path, "sleep", seconds=2.0)
    assert list(found) == ["a", "b"]
    assert "not done after 2 s" in found["b"]["problem"]
    assert problem == "not done after 2 s"


def test_no_process_begins_without_time(tmp_path: Path) -> None:
    assert run(tmp_path, "nothing", seconds=-1.0) == ({}, NO_TIME)


def test_a_process_that_dies_between_figures_is_not_started_again(tmp_path: Path) -> None:
    found, problem = run(tmp_path, "at the end")
    assert found["j: start"]["problem"] == "the process ended with 1\nno more"
    assert problem == "the process ended with 1"
    assert (tmp_path / "j.log").read_text().count("no more") == 2  # the first one had measured


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    note(tmp_path / "j", "a", outcome="passed")
    with (tmp_path / "j").open("a") as file:
        file.write('{"name": "b", "ou')
    assert read_journal(tmp_path / "j") == ({"a": {"outcome": "passed"}}, None)


class TestFigures:
    def measured(self, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> Entries:
        monkeypatch.setenv(JOURNAL, str(folder / "j.jsonl"))
        monkeypatch.setenv(DEADLINE, str(time.time() + seconds))
        figures.main("cpu", "small", "^(silu_mul|tree_expand)")
        return read_journal(folder / "j.jsonl")[0]

    def test_they_are_measured_once_while_there_is_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.measured(tmp_path, monkeypatch, -1.0) == {}
        found = self.measured(tmp_path, monkeypatch, 60.0)
        assert {name: one["outcome"] for name, one in found.items()} == dict.fromkeys(
            ("ceilings", "silu_mul R=5 i=96", "tree_expand W=4 k=4"), "passed"
        )
        assert all(one["row"]["us"] > 0 for name, one in found.items() if name != "ceilings")
        written = (tmp_path / "j.jsonl").read_text()
        self.measured(tmp_path, monkeypatch, 60.0)
        assert (tmp_path / "j.jsonl").read_text() == written

    def test_one_that_fails_is_told_and_the_next_is_measured(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(protocol: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(figures, "ceilings", fail)
        found = self.measured(tmp_path, monkeypatch, 60.0)
        assert found["ceilings"] == {"outcome": "failed", "problem": "OutOfMemoryError: CUDA out of memory"}
        assert [one["outcome"] for one in found.values()] == ["failed", "passed", "passed"]
