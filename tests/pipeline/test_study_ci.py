"""The vocabulary study from end to end at its smallest size, by its command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_support import invoke
from vocabforge.study.report.results import RESULTS, read_study
from vocabforge.study.stages.run import STAGES

pytestmark = pytest.mark.long


def test_every_stage_runs_and_nothing_is_made_twice(tmp_path: Path) -> None:
    output = tmp_path / "study"
    command = ("study", "all", "--size", "ci", "--output", output, "seeds=[0]")
    first = invoke(*command)
    assert first.exit_code == 0, first.output
    record = json.loads((output / "stages.json").read_text())
    assert list(record) == list(STAGES)
    assert all(row["finished"] for row in record.values())
    results = read_study(output / "report" / RESULTS)
    assert results.checked is not None
    for mode in results.checked.modes:
        assert mode.faults == 0 < mode.outputs
        assert mode.equal_cycles == mode.cycles
    assert {
        "full",
        "fr",
        "trim",
        "pa-fr",
        "ranker",
        "low-rank",
        "router",
        "context",
        "hybrid",
        "reduced",
    } == {method.family for method in results.methods}
    assert results.facts["stage data"].endswith("threads")
    made = {path: path.stat().st_mtime_ns for path in output.rglob("*.safetensors")}
    again = invoke(*command)
    assert again.exit_code == 0, again.output
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*.safetensors")} == made
