"""``bench contention``: each command idle and busy, with chosen and fixed threads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.bench import contention
from vocabforge.bench.contention import COMMANDS, bench_contention
from vocabforge.cli.app import build_app
from vocabforge.cli.bench import bench
from vocabforge.core.errors import ConfigError, UsageError, VocabForgeError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    tiny_target(tmp_path / "t", vocab_size=261)
    byte_tokenizer(tmp_path / "t")
    return tmp_path / "t"


def test_ratios_are_to_the_best_idle_setting(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates by setting and company, from a table."""
    beside, asked = [0], list[tuple[str, int]]()
    rates = {
        ("chosen", 0): 95.0,
        ("chosen", 2): 80.0,
        ("1", 0): 90.0,
        ("1", 2): 85.0,
        ("2", 0): 100.0,
        ("2", 2): 7.0,
    }

    @contextlib.contextmanager
    def busy(count: int) -> Iterator[None]:
        beside[0] = count
        yield

    def command(config: Any, place: Path, kind: str) -> float:
        asked.append((kind, beside[0]))
        return rates[asked[-1]]

    monkeypatch.setattr(contention, "_busy", busy)
    monkeypatch.setitem(COMMANDS, "generate", command)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    settings = [f"target={target}", "commands=[generate]", "busy=2"]
    rows = bench_contention(settings, repeats=2)["rows"]
    assert {row["threads"]: row["ratio"] for row in rows} == {"chosen": 0.8, "1": 0.85, "2": 0.07}
    assert sorted(asked[:6]) == sorted(asked[6:]) == sorted(rates), "every setting once a round"
    assert asked[0][0] != asked[6][0], "each round begins with another setting"
    app = build_app({"bench": bench}, ["bench"])
    done = CliRunner().invoke(app, ["bench", "contention", *settings, "--repeats", "1"], terminal_width=120)
    assert done.exit_code == 0, done.output
    assert "beside 2 busy processes" in done.output
    assert "0.07" in done.output


@pytest.mark.long
def test_the_real_commands(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "thread_counts", lambda most: [1])
    small = ["max_new_tokens=8", "questions=1", "steps=4", "batch=1", "length=32"]
    result = bench_contention([f"target={target}", *small], repeats=1)
    assert json.loads(json.dumps(result)) == result
    rows = result["rows"]
    assert [(row["command"], row["threads"]) for row in rows] == [
        (command, kind) for command in ("generate", "eval", "train-drafter") for kind in ("chosen", "1")
    ]
    assert all(row["idle"] > 0 and row["busy"] > 0 for row in rows)


def test_user_errors(target: Path) -> None:
    with pytest.raises(UsageError, match="serve"):
        bench_contention([f"target={target}", "commands=[serve]"])
    with pytest.raises(ConfigError, match="target"):
        bench_contention([])
    with pytest.raises(VocabForgeError, match="generate failed"):
        contention._run("1", "generate", "--target", target / "nothing")
