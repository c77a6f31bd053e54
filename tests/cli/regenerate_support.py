"""Conversations to answer, and ways to call ``regenerate``."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.cli_support import invoke
from tests.corpus.chat_server import FakeServer
from vocabforge.corpus.regenerate.pool import PoolOptions


def write_rows(file: Path) -> Path:
    """Conversations of one to three questions, two of them alike, one without a question, one without an answer."""
    lines = []
    for number in range(12):
        turns = [{"role": "system", "content": "Sei höflich."}] if number % 3 == 0 else []
        for turn in range(1 + number % 3):
            turns.append({"role": "user", "content": f"Frage {number}.{turn} 日本 🦊"})
            turns.append({"role": "assistant", "content": "old"})
        lines.append({"messages": turns})
    lines += [lines[4], {"messages": [{"role": "system", "content": "alone"}]}]
    lines.append({"messages": [{"role": "user", "content": "open"}], "tools": [{"name": "sky"}]})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return file


def ask(rows: Path, output: Path, *servers: FakeServer | str, **options: object) -> Result:
    words: list[object] = ["--input", rows, "--output", output, "--temperature", 0.5]
    for server in servers:
        words += ["--server", server if isinstance(server, str) else server.url]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [value])
    return invoke("regenerate", *words)


def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off of thousandths of a second."""
    quick = partial(PoolOptions, first_wait=0.001, longest_wait=0.01)
    monkeypatch.setattr("vocabforge.decode.regenerate.PoolOptions", quick)


def read(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "responses.jsonl").read_text("utf-8").split("\n")[:-1]]


def meta(output: Path) -> dict:
    return json.loads((output / "manifest.json").read_text("utf-8"))["meta"]


def ok(done: Result) -> None:
    assert done.exit_code == 0, done.output


def local(rows: Path, output: Path, target: Path, **options: object) -> Result:
    words: list[object] = ["--input", rows, "--output", output, "--target", target, "--device", "cpu"]
    for name, value in {"max_tokens": 8, "batch_size": 4, **options}.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [value])
    return invoke("regenerate", *words)
