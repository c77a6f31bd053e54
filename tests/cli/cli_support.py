"""A tiny target with a tokenizer, a drafter and vocabularies for it, and ways to call the commands."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import Result
from typer.testing import CliRunner

from tests.worlds import ROOT
from vocabforge.cli import COMMANDS
from vocabforge.cli.app import build_app
from vocabforge.core.registry import load_attribute


def invoke(command: str, *arguments: object) -> Result:
    """A command in this process."""
    app = build_app({command: load_attribute(COMMANDS[command])}, list(COMMANDS))
    return CliRunner().invoke(app, [command, *map(str, arguments)], catch_exceptions=True)


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """Inside, what starts ``python -m vocabforge`` with ``subprocess.run`` runs it here: no process, no imports."""
    really = subprocess.run

    def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        if list(command[1:3]) != ["-m", "vocabforge"]:
            return really(command, **options)
        live = ["run.live.prompts=1", "run.live.max_new_tokens=8"] if command[3] == "train-drafter" else []
        done = invoke(*command[3:], *live)
        if done.exit_code and options.get("check"):
            raise subprocess.CalledProcessError(done.exit_code, command, done.output)
        return subprocess.CompletedProcess(command, done.exit_code, done.output)

    with mock.patch("subprocess.run", run):
        yield


def call(*arguments: object, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own, as a user starts it; ``code`` replaces ``-m vocabforge``."""
    start = ["-m", "vocabforge"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def ok(done: Result) -> Result:
    """A command that has ended well."""
    assert done.exit_code == 0, done.output
    return done


def succeeds(command: str, *arguments: object) -> Result:
    return ok(invoke(command, *arguments))


def facts_of(done: Result) -> Any:
    """What a command with ``--json`` prints."""
    return json.loads(ok(done).stdout)


def truncate(file: Path, share: float = 0.5) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])


def edit_json(file: Path, **changes: object) -> None:
    body = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**body, **changes}), "utf-8")


def assert_user_error(result: Result, code: int, *words: str) -> None:
    """An exit code, one message of ours, and no traceback."""
    assert isinstance(result.exception, (SystemExit, type(None))), repr(result.exception)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    said = " ".join(result.output.split())
    for word in words:
        assert word in said, f"{word!r} not in: {said}"
