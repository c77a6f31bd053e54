"""Servers that an evaluation starts: health, logs without keys, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_support import assert_user_error, call, invoke
from tests.worlds import ROOT
from vocabforge.core.provenance import hide_secrets
from vocabforge.evaluate.results.schema import read_results

# Tests beside these start servers too: the key tells this process's own.
KEY = f"sk-secret-of-{os.environ.get('PYTEST_XDIST_WORKER', 'tests')}"
SERVER = f"{sys.executable} -m tests.evaluate.served_fakes --port {{port}} --api-key {KEY}"
QUESTION = {"question_id": 1, "category": "qa", "turns": ["Who was it"]}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", KEY)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "question.jsonl"
    path.write_text(json.dumps(QUESTION) + "\n", "utf-8")
    return path


def words(questions: Path, *starts: str) -> list[Any]:
    asked: list[Any] = ["eval", "--benchmark", questions, "--warmup", "0", "--api-key-env", "SERVER_KEY"]
    for start in starts:
        asked += ["--start", start]
    return [*asked, "--output", questions.parent / "out"]


def left_behind() -> list[str]:
    """Command lines of this process's fakes that run."""
    return [text for text in _commands() if "served_fakes" in text and KEY in text]


def _commands() -> Iterator[str]:
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = one.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:  # it ended meanwhile
            continue
        if "vocabforge eval" not in text.replace("-m vocabforge", "vocabforge"):
            yield text


def test_servers_are_started_asked_and_stopped_one_after_the_other(questions: Path) -> None:
    done = call(*words(questions, f"eagle3={SERVER}", f"plain={SERVER} --plain"))
    assert done.returncode == 0, done.stderr
    output = questions.parent / "out"
    results = read_results(output)
    assert [one.name for one in results.methods] == ["plain", "eagle3"]
    assert results.methods[1].summary.outputs is not None
    assert results.methods[1].summary.outputs.identical == 1
    assert "--api-key '***'" in results.command or "--api-key ***" in results.command
    log = (output / "servers" / "eagle3.log").read_text("utf-8")
    assert "'api_key': '***'" in log
    for path in questions.parent.rglob("*"):
        assert not path.is_file() or b"sk-secret" not in path.read_bytes(), path
    assert "sk-secret" not in done.stdout + done.stderr
    assert left_behind() == []


def test_a_server_that_ends_shows_its_last_lines(questions: Path) -> None:
    done = invoke(*words(questions, f"{SERVER} --fails"))
    assert_user_error(done, 1, "ended before it was ready (exit code 1)", "CUDA error: no such device")
    assert "CUDA error" in (questions.parent / "out.server.log").read_text("utf-8")
    assert "sk-secret" not in done.output


def test_a_program_that_is_not_there_is_one_error(questions: Path) -> None:
    assert_user_error(invoke(*words(questions, "no-such-program --port {port}")), 2, "cannot be started")


def test_a_terminated_evaluation_stops_its_server(questions: Path) -> None:
    command = [sys.executable, "-m", "vocabforge", *map(str, words(questions, f"{SERVER} --slow 30"))]
    run = subprocess.Popen(command, cwd=ROOT, env=os.environ, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    for line in run.stderr:
        if "is ready" in line:
            break
    time.sleep(0.5)  # it asks
    assert len(left_behind()) == 1
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) in (130, 143)
    assert left_behind() == []


@pytest.mark.parametrize(
    ("command", "hidden"),
    [
        ("serve --api-key abc --port 1", "serve --api-key *** --port 1"),
        ("serve --api-key=abc", "serve --api-key=***"),
        ("serve --api-key abc xyz --port 1", "serve --api-key *** *** --port 1"),
        ("serve --hf-token abc", "serve --hf-token ***"),
        ("serve --model m --model-url http://me:abc@host/x", "serve --model m --model-url http://***@host/x"),
        ("eval --tokenizer abc --max-new-tokens 7 --api-key-env KEY",) * 2,
    ],
)
def test_keys_in_commands_are_hidden(command: str, hidden: str) -> None:
    assert hide_secrets(command) == hidden
