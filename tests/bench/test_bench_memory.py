"""The memory benchmark: all commands run on what it makes, in small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.cli_support import invoke
from vocabforge.bench import memory
from vocabforge.bench.memory import IDLE, bench_memory
from vocabforge.core.errors import ConfigError


@pytest.mark.long
def test_every_command_runs_and_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has loaded torch already."""

    def here(name: str, words: Sequence[str], folder: Path) -> dict[str, float]:
        if words:
            done = invoke(words[0], *words[1:])
            assert done.exit_code == 0, done.output
        return {"peak_mb": 7.0, "seconds": 1.0}

    monkeypatch.setattr(memory, "_in_a_process", here)
    output = tmp_path / "memory.json"
    words = ["memory", "vocab=6000", "chats=120", "length=512", "--repeats", "1", "--output", output]
    done = invoke("bench", *words)
    assert done.exit_code == 0, done.output
    result = json.loads(output.read_text())
    assert (result["vocab"], result["table_mb"], result["row_mb"]) == (6000, 6000 * 64 * 4 / 1e6, 0.024)
    named = {"count-freq", "select-vocab", "cluster-vocab", "prepare-data", "train-drafter", "export", "eval"}
    assert named | {IDLE} < set(result["commands"])
    assert all(name in done.output for name in result["commands"])


def test_memory_is_that_of_the_command_not_of_this_process(tmp_path: Path) -> None:
    idle = memory._in_a_process(IDLE, [], tmp_path)["peak_mb"]
    assert idle > memory._in_a_process("version", ["--version"], tmp_path)["peak_mb"] > 10


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="vocab"):
        bench_memory(["vocab=100"])
    with pytest.raises(ConfigError, match="unknown key 'vocabulary'"):
        bench_memory(["vocabulary=5000"])
