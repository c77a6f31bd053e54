"""The sandbox: verdicts and limits in both forms, and what bubblewrap keeps from a program."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest

from vocabforge.evaluate.quality.sandbox import PASSED, TIMED_OUT, Limits, Sandbox

linux = pytest.mark.skipif(sys.platform != "linux", reason="code is run on Linux only")
LIMITS = Limits(wall_s=20, memory_mib=256)


def _isolated() -> bool:
    return sys.platform == "linux" and Sandbox().facts()["isolated"].startswith("yes")


isolates = pytest.mark.skipif(not _isolated(), reason="bubblewrap is not installed or not allowed here")


@pytest.fixture(params=["plain", pytest.param("bubblewrap", marks=isolates)])
def box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    if sys.platform != "linux":
        pytest.skip("code is run on Linux only")
    if request.param == "plain":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    return Sandbox(LIMITS)


def test_a_program_that_ends_has_passed(box: Sandbox) -> None:
    ordinary = (
        "import collections, dataclasses, decimal, hashlib, heapq, itertools, json, math, random, re, string, typing\n"
        "@dataclasses.dataclass\nclass A:\n    x: 'typing.List[int]'\n"
        "assert hashlib.md5(b'x').hexdigest()[:4] == '9dd4' and A([1]).x == [1]\n"
        "assert __name__ != '__main__' and random.random() < 1\n"
        "import time, os, sys; time.sleep(0.01); print('fine', file=sys.stderr)\n"
        "names = {'PYTHONHASHSEED', 'LC_CTYPE', 'PWD'}\n"
        "assert set(os.environ) <= names and os.listdir('.') == [], os.environ\n"
        "assert 'site' not in sys.modules and not any('site-packages' in one for one in sys.path)\n"
    )
    assert box.run(ordinary) == PASSED
    seeds = {box.run("raise ValueError(''.join(set('abcdefgh')))") for _ in range(2)}
    assert len(seeds) == 1


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("assert 1 == 2, 'one'", "failed: AssertionError: one"),
        ("def f(:", "failed: SyntaxError"),
        ("x = '\ud800'", "failed: UnicodeEncodeError"),
        ("raise SystemExit(0)", "failed: SystemExit: 0"),
        ("import os; os._exit(0)", "failed: it left before its tests were over (exit code 0)"),
        ("import os; os.write(3, b'passed:'); os._exit(0)", "failed: it left before"),
        ("import os; os.closerange(3, 32)", "failed: it left before"),
        ("import os\nwhile True: os.write(3, b'x' * 4096)", "failed: it left before"),
        ("class E(Exception):\n  def __str__(self): raise E\nraise E", "failed: E"),
        ("raise ValueError('\\x1b[31m\\n' + 9999 * 'x')", "failed: ValueError:  [31m xxxx"),
        ("input()", "failed: EOFError"),
        ("x = bytearray(1 << 30)", "failed: MemoryError"),
        ("def f(): f()\nf()", "failed: RecursionError"),
        ("open('big', 'wb', 0).write(bytes(1 << 20)); open('big', 'ab', 0).write(b'x')", "failed: OSError"),
        ("import os; x = [open(os.__file__) for _ in range(99)]", "failed: OSError"),
        ("import os\nos.abort()", "failed: "),
    ],
)
def test_failures_and_early_ends(box: Sandbox, program: str, says: str) -> None:
    result = box.run(program)
    if says.startswith("failed: it left") and "3" in program:
        assert result != PASSED  # its report may be overwritten, which is its own loss
    else:
        assert result.startswith(says)
    assert len(result) < 400
    assert result.isprintable()


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time, signal\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(100)",
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E",
    ],
)
def test_time_is_limited(box: Sandbox, program: str) -> None:
    box.limits = Limits(wall_s=1, memory_mib=256)
    assert box.run(program) == TIMED_OUT  # none of them ends by itself


def test_limits_hold_and_output_goes_nowhere(box: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    limits = box.limits.resources()
    check = f"import resource\nfor name, value in {limits!r}.items():\n"
    assert (
        box.run(check + "    assert resource.getrlimit(getattr(resource, name)) == (value, value), name")
        == PASSED
    )
    flood = "import sys\nfor _ in range(2000): print('x' * 10000); print('y' * 10000, file=sys.stderr)"
    programs = [flood, "assert False", "pass", "import os; os._exit(3)"]
    assert box.run_all(programs, "programs") == [
        PASSED,
        "failed: AssertionError",
        PASSED,
        "failed: it left before its tests were over (exit code 3)",
    ]
    assert len("".join(capfd.readouterr())) < 1000
    assert box.run_all([], "programs") == []


@isolates
def test_bubblewrap_keeps_files_network_and_processes_away(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("whole")
    with socket.create_server(("127.0.0.1", 0)) as server:
        attack = f"""
import os, socket
def refused(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    raise SystemError(f"not refused: {{action}} {{arguments}}")
refused(open, {str(secret)!r}); refused(open, {str(secret)!r}, "w"); refused(os.listdir, {str(tmp_path)!r})
refused(open, "/etc/passwd"); refused(os.listdir, {str(Path.home())!r} + "/.ssh"); refused(open, os.__file__, "a")
refused(socket.create_connection, ("127.0.0.1", {server.getsockname()[1]}))
assert len([one for one in os.listdir("/proc") if one.isdigit()]) <= 3
"""
        assert Sandbox(LIMITS).run(attack) == PASSED
    assert secret.read_text() == "whole"


@linux
def test_the_user_is_told_how_programs_are_isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "bubblewrap is not installed" in Sandbox().facts()["isolated"]
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    box = Sandbox(LIMITS)
    assert "bubblewrap does not work here" in box.facts()["isolated"]
    assert box.run("pass") == PASSED
