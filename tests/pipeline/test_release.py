"""`make release` uses a Python only if it runs: version managers put names on PATH that do not."""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tests.worlds import ROOT

SPEC = spec_from_loader("release", SourceFileLoader("release", str(ROOT / ".ci" / "release")))
assert SPEC is not None
assert SPEC.loader is not None
release = module_from_spec(SPEC)
SPEC.loader.exec_module(release)


@pytest.mark.parametrize(
    ("scripts", "found"),
    [
        ({"python3.10": f'exec "{sys.executable}" "$@"'}, sys.executable),
        ({"python3.10": "exit 127"}, None),
        ({"python3.10": "exit 127", "uv": 'echo "/managed/python$5"'}, "/managed/python3.10"),
        ({"uv": "exit 2"}, None),
        ({}, None),
    ],
    ids=["on PATH", "does not run", "uv has it", "uv has none", "nowhere"],
)
def test_a_python_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripts: dict[str, str], found: str | None
) -> None:
    for name, line in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert release.find_python("python3.10") == found


def test_a_failed_command_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(release.Failed, match=f"{Path(sys.executable).name} -c"):
        release.run(sys.executable, "-c", "import sys; sys.exit('no demo here')")
    assert "no demo here" in capsys.readouterr().out


def test_commands_do_not_see_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert release.run(sys.executable, "-c", "import os; print('PYTHONPATH' in os.environ)") == "False\n"
    assert "PYTHONPATH" in os.environ
