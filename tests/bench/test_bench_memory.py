"""The memory benchmark: all commands run on what it makes, in small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from vocabforge.bench.memory import IDLE, bench_memory
from vocabforge.cli.app import build_app
from vocabforge.cli.bench import bench
from vocabforge.core.errors import ConfigError


@pytest.mark.long
def test_every_command_runs_and_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "memory.json"
    words = ["memory", "vocab=6000", "chats=120", "length=512", "--repeats", "1", "--output", str(output)]
    done = CliRunner().invoke(build_app({"bench": bench}, ["bench"]), ["bench", *words])
    assert done.exit_code == 0, done.output
    result = json.loads(output.read_text())
    assert (result["vocab"], result["table_mb"], result["row_mb"]) == (6000, 6000 * 64 * 4 / 1e6, 0.024)
    peaks = {name: row["peak_mb"] for name, row in result["commands"].items()}
    assert {"count-freq", "select-vocab", "cluster-vocab", "prepare-data", "train-drafter", "export"} < set(
        peaks
    )
    assert all(name in done.output for name in peaks)
    assert peaks["eval"] > 0.9 * peaks[IDLE] > peaks["select-vocab"] > 10, (
        "VmHWM of the command, not of this process"
    )


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="vocab"):
        bench_memory(["vocab=100"])
    with pytest.raises(ConfigError, match="unknown key 'vocabulary'"):
        bench_memory(["vocabulary=5000"])
