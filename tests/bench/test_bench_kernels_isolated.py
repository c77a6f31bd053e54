"""A part in processes of its own: what is measured stays, what dies is named, the rest follows."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.parts import KernelOptions
from bench.timing import DeviceCeilings

from tests.ops.kernels_build import load_script

parts = load_script("gpu_parts")
main, read_figures, run_isolated = parts.main, parts.read_figures, parts.run_isolated

# Measures a, b, c; does something at b the first time that it gets there.
CHILD = """
import json, pathlib, sys, time
journal, action = pathlib.Path(sys.argv[1]), sys.argv[2]
lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
known = {line["name"] for line in lines if "begun" not in line}
def add(**line):
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\\n")
for name in "abc":
    if name in known:
        continue
    add(name=name, begun=True)
    if name == "b":
        if action == "die":
            print("illegal memory access")
            sys.exit(7)
        if action == "hang":
            time.sleep(60)
    add(name=name, row={"us": 1.0})
    add(name=name, ended=True)
if action == "at the end":
    sys.exit("no more")
"""


def child(action: str) -> Any:
    def command(part: str, journal: Path, options: Path) -> Sequence[str]:
        assert json.loads(options.read_text())["budget"] > 0
        return [sys.executable, "-S", "-c", CHILD, str(journal), action]

    return command


def test_all_goes_well(tmp_path: Path) -> None:
    found = run_isolated("ops", KernelOptions(), tmp_path, child("nothing"))
    assert list(found.rows) == ["a", "b", "c"]
    assert found.open == {}


def test_a_figure_that_kills_its_process_costs_itself_only(tmp_path: Path) -> None:
    found = run_isolated("ops", KernelOptions(), tmp_path, child("die"))
    assert list(found.rows) == ["a", "c"]
    assert list(found.open) == ["b"]
    assert "ended with 7: illegal memory access" in found.open["b"]


def test_a_figure_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_GRACE", 0.2)
    found = run_isolated("ops", KernelOptions(budget=0.5), tmp_path, child("hang"))
    assert list(found.rows) == ["a"]
    assert "not done after" in found.open["b"]


def test_a_process_that_dies_between_figures_is_not_started_again(tmp_path: Path) -> None:
    found = run_isolated("ops", KernelOptions(), tmp_path, child("at the end"))
    assert list(found.rows) == ["a", "b", "c"]
    assert "no more" in found.open["ops: start"]
    assert (tmp_path / "ops.log").read_text().count("no more") == 1


def test_the_process_itself(tmp_path: Path) -> None:
    options = KernelOptions(
        "cpu", ("small",), (1,), ("silu_mul",), "auto", 1e-4, 30.0, DeviceCeilings(1e9, 1e9, 1e-6)
    )
    journal, settings = tmp_path / "ops.jsonl", tmp_path / "ops.json"
    settings.write_text(json.dumps({**options.to_dict(), "began": 0.0}))
    main(["ops", str(journal), str(settings)])  # began long ago: no time is left
    found, _ = read_figures(journal)
    assert set(found.open.values()) == {"no time left"}
    journal.unlink()
    settings.write_text(json.dumps({**options.to_dict(), "began": 4e9}))
    main(["ops", str(journal), str(settings)])
    again, at = read_figures(journal)
    assert set(again.rows) == set(found.open)
    assert at is None
    assert all(row["timing"]["us"] > 0 for row in again.rows.values())
    written = journal.read_text()
    main(["ops", str(journal), str(settings)])
    assert journal.read_text() == written  # all is there


class TestJournal:
    def test_a_failing_figure_is_open_and_the_next_follows(self, tmp_path: Path) -> None:
        journal = parts.JournalFile(tmp_path / "j")

        def fail() -> dict[str, Any]:
            raise ValueError("no")

        journal.measure("a", fail)
        journal.measure("b", lambda: {"us": 1.0})
        found, at = read_figures(tmp_path / "j")
        assert (found.rows, found.open, at) == ({"b": {"us": 1.0}}, {"a": "ValueError: no"}, None)

    def test_a_lost_device_ends_the_process(self, tmp_path: Path) -> None:
        journal = parts.JournalFile(tmp_path / "j")

        def fail() -> dict[str, Any]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        with pytest.raises(RuntimeError, match="illegal"):
            journal.measure("a", fail)
        assert read_figures(tmp_path / "j")[1] == "a"

    def test_a_line_that_was_cut_off_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "j").write_text('{"name": "a", "row": {}}\n{"name": "b", "ro')
        found, at = read_figures(tmp_path / "j")
        assert (list(found.rows), at) == (["a"], None)
