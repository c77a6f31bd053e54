"""The sandbox around its programs: the parent's death, other systems, guards that do not hold."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vocabforge.core.errors import VocabForgeError
from vocabforge.evaluate.quality import landlock, sandbox, seccomp
from vocabforge.evaluate.quality.sandbox import PASSED, Sandbox
from vocabforge.evaluate.quality.sandbox_process import collect

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in seccomp.ARCHITECTURES,
    reason="code is run on Linux only",
)
LANDLOCK = landlock.abi()


def test_verdicts_do_not_hang_on_hash_seeds() -> None:
    with Sandbox() as box:
        assert len({box.run("raise ValueError(''.join(set('abcdefgh')))") for _ in range(2)}) == 1


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    root = Path(sandbox.__file__).parents[3]
    script = (
        "from vocabforge.evaluate.quality.sandbox import Limits, Sandbox\n"
        "with Sandbox(Limits(wall_s=60)) as box:\n    print('ready', flush=True)\n    box.run('while True: pass')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        child = _wait_for(lambda: [one for one in _children(parent.pid) if _guarded(one)])[0]
        os.kill(parent.pid, signal.SIGKILL)
    try:
        _wait_for(lambda: [child] if not _running(child) else [])
    finally:
        if _running(child):
            os.kill(child, signal.SIGKILL)


def test_a_flooded_report_is_not_read_to_its_end() -> None:
    receive, send = os.pipe()
    try:
        os.write(send, b"x" * 60000)
        data, ended = collect(receive, time.monotonic() + 20)
    finally:
        os.close(receive)
        os.close(send)
    assert not ended
    assert 4096 < len(data) <= 8192


def _children(parent: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _guarded(process: int) -> bool:
    """It has come to the program: the filter, the last of the guards, is in place."""
    return "\nSeccomp:\t2\n" in Path(f"/proc/{process}/status").read_text()


def _running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _wait_for(found: Callable[[], list[int]]) -> list[int]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.02)
    raise AssertionError("nothing happened")


@pytest.mark.parametrize(
    ("system", "machine"), [("linux", "riscv64"), ("darwin", "arm64"), ("win32", "AMD64")]
)
def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(VocabForgeError, match="cannot be run safely on this system") as raised, Sandbox():
        pass
    assert "x86_64" in str(raised.value)


def test_without_landlock_the_rest_holds_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    file = tmp_path / "file"
    file.write_text("text")
    state = "state = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
    held = "assert not any(int(state['Cap' + one], 16) for one in ('Inh', 'Prm', 'Eff', 'Amb')), state\n"
    name = f"v = {str(file)!r}\n"
    with Sandbox() as box:
        assert "no Landlock" in box.facts()["files it can open"]
        assert (
            box.run(state + held + "assert (int(state['NoNewPrivs']), int(state['Seccomp'])) == (1, 2)")
            == PASSED
        )
        assert box.run(f"{name}assert open(v).read() == 'text'\nopen(v, 'a')") == "failed: PermissionError"
        # What it read does not come out in its errors.
        assert box.run(f"{name}raise ValueError(open(v).read())") == "failed: ValueError"
        assert (
            box.run(f"{name}raise type(open(v).read(), (Exception,), {{}})") == "failed: an error of its own"
        )


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("filter_program", lambda machine: b"\xff" * 16, "prctl"),  # not a program: the kernel refuses it
        ("filter_program", lambda machine: b"\x06\0\0\0\0\0\xff\x7f", "was not refused"),  # allows everything
    ],
)
def test_guards_that_do_not_hold_are_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, reason: str
) -> None:
    monkeypatch.setattr(seccomp, name, value)
    with pytest.raises(VocabForgeError, match="a guard does not hold") as raised, Sandbox():
        pass
    assert reason in str(raised.value)
    assert "--allow-code-execution" in str(raised.value)


@pytest.mark.skipif(not LANDLOCK, reason="this kernel has no Landlock")
def test_a_ruleset_that_the_kernel_refuses_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "ruleset", lambda version: b"\xff" * 8)
    with pytest.raises(VocabForgeError, match="a guard does not hold"), Sandbox():
        pass
