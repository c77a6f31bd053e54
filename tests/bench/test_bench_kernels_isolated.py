"""A part in processes of its own: what is measured stays, what dies is named, the rest follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu_process
import pytest
from bench.parts import FigureJournal, KernelOptions, read_journal
from bench.timing import DeviceCeilings
from gpu_process import main, run_isolated

# Measures a, b, c; does something at b the first time that it gets there.
CHILD = """
import json, pathlib, sys, time
journal, action = pathlib.Path(sys.argv[2]), pathlib.Path(__file__).stem
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


def measured(folder: Path, action: str, **options: float) -> FigureJournal:
    script = folder / f"{action}.py"
    script.write_text(CHILD)
    return run_isolated("ops", KernelOptions(**options), folder, script)


def test_all_goes_well(tmp_path: Path) -> None:
    found = measured(tmp_path, "nothing")
    assert list(found.rows) == ["a", "b", "c"]
    assert found.open == {}


def test_a_figure_that_kills_its_process_costs_itself_only(tmp_path: Path) -> None:
    found = measured(tmp_path, "die")
    assert list(found.rows) == ["a", "c"]
    assert list(found.open) == ["b"]
    assert "ended with 7: illegal memory access" in found.open["b"]


def test_a_figure_that_hangs_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_process, "_GRACE", 0.2)
    found = measured(tmp_path, "hang", budget=0.5)
    assert list(found.rows) == ["a"]
    assert "not done after" in found.open["b"]


def test_a_process_that_dies_between_figures_is_not_started_again(tmp_path: Path) -> None:
    found = measured(tmp_path, "at the end")
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
    found = FigureJournal(path=journal)
    assert set(found.open.values()) == {"no time left"}
    journal.unlink()
    settings.write_text(json.dumps({**options.to_dict(), "began": 4e9}))
    main(["ops", str(journal), str(settings)])
    again, at = FigureJournal(path=journal), read_journal(journal)[1]
    assert set(again.rows) == set(found.open)
    assert at is None
    assert all(row["timing"]["us"] > 0 for row in again.rows.values())
    written = journal.read_text()
    main(["ops", str(journal), str(settings)])
    assert journal.read_text() == written  # all is there


class TestJournal:
    def test_a_lost_device_ends_the_process(self, tmp_path: Path) -> None:
        def fail() -> dict[str, Any]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        with pytest.raises(RuntimeError, match="illegal"):
            FigureJournal(path=tmp_path / "j").measure("a", fail)
        assert read_journal(tmp_path / "j")[1] == "a"

    def test_a_line_that_was_cut_off_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "j").write_text('{"name": "a", "row": {}}\n{"name": "b", "ro')
        assert list(FigureJournal(path=tmp_path / "j").rows) == ["a"]
