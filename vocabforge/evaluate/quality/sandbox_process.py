"""The child process of a sandbox: starting it, reading its report, ending it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_CHILD = Path(__file__).with_name("sandbox_child.py")
_REPORT_LIMIT = 1 << 12  # bytes; a report is far shorter


def start(report: int, folder: str) -> subprocess.Popen[bytes]:
    """The child, the head of a session of its own; ``report`` is the one descriptor that it gets."""
    return subprocess.Popen(
        [sys.executable, "-s", "-S", "-B", "-X", "utf8", str(_CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            "PYTHONHASHSEED": "0"
        },  # the same verdict each time, whatever order of a set a program relies on
        cwd=folder,
        pass_fds=(report,),
        start_new_session=True,
    )


def feed(process: subprocess.Popen[bytes], job: bytes) -> None:
    """Hand it its job."""
    stream = process.stdin
    if stream is None:
        raise RuntimeError("the process has no standard input")
    try:
        with stream:
            stream.write(job)
    except BrokenPipeError:  # it died at once; the missing report says so
        pass


def collect(receive: int, deadline: float) -> tuple[bytes, bool]:
    """What comes through the pipe until it closes (True) or until the time is over or it is too much (False)."""
    poller = select.poll()
    poller.register(receive, select.POLLIN)
    data = b""
    while len(data) <= _REPORT_LIMIT and (left := deadline - time.monotonic()) > 0:
        if poller.poll(left * 1000):
            chunk = os.read(receive, _REPORT_LIMIT)
            if not chunk:
                return data, True
            data += chunk
    return data, False


def exit_code(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Its exit code; None: it has not ended in time."""
    try:
        return process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:  # it closed the pipe and runs on
        return None


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it and whatever might be in its group."""
    if process.returncode is None:  # not waited for, so its number is still its own
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
