"""Run generated programs, each in a separate process, and report whether they passed.

A program has resource limits, an empty environment, and an empty temporary folder as its working directory.
If bubblewrap (``bwrap``) is installed, it also runs in separate namespaces: no network, no other processes,
and read-only access to the system's and Python's libraries only. Without bubblewrap it has the user's
permissions, which ``facts`` reports.

As in the public scorer, a program shares its process with the tests, so a malicious program can fake a pass.
"""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import VocabForgeError
from ...core.progress import ProgressBar

PASSED, TIMED_OUT = "passed", "timed out"
_CHILD = Path(__file__).with_name("sandbox_child.py")
_REPORT_LIMIT = 1 << 16  # maximum bytes that a program can write to a file, including its report


@dataclass(frozen=True)
class Limits:
    """Limits of a program: wall time in seconds, including interpreter start, and address space."""

    wall_s: float = 10.0
    memory_mib: int = 1024

    def resources(self) -> dict[str, int]:
        """Return resource names and values; the address space is last so that the others can still be set."""
        return {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": _REPORT_LIMIT,
            "RLIMIT_NPROC": 0,  # no new processes or threads; root is exempt
            "RLIMIT_NOFILE": 32,
            "RLIMIT_STACK": 8 << 20,
            "RLIMIT_CPU": math.ceil(self.wall_s) + 1,
            "RLIMIT_AS": self.memory_mib << 20,
        }


class Sandbox:
    """Runs programs under ``limits``.

    Raises:
        VocabForgeError: the system is not Linux, or programs cannot be started.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        if sys.platform != "linux":
            raise VocabForgeError(
                "generated code can only be run on Linux",
                got=platform.system(),
                source="--allow-code-execution",
                remedy="leave out --allow-code-execution and score the samples file on a Linux machine",
            )
        self._wrap: list[str] = []
        bwrap = shutil.which("bwrap")
        self._without = "bubblewrap is not installed"
        if bwrap is not None:
            self._wrap = _bubblewrap(bwrap)
            verdict = self.run("")
            if verdict != PASSED:  # namespaces may be forbidden in containers
                self._wrap, self._without = [], f"bubblewrap does not work here ({verdict})"

    def facts(self) -> dict[str, str]:
        """Describe how programs are run on this machine."""
        isolated = (
            "yes (bubblewrap): no network, no other processes, no files except system and Python libraries"
            if self._wrap
            else f"no, {self._without}: a program can read and change your files and use the network. "
            "Install bubblewrap, or run in a container"
        )
        return {
            "sandbox": "a process each, with resource limits and a temporary folder",
            "isolated": isolated,
            "limits": f"{self.limits.wall_s:g} s, {self.limits.memory_mib} MiB",
        }

    def run_all(self, programs: Sequence[str], description: str) -> list[str]:
        """Return results in order; run as many programs in parallel as there are processors."""
        results = []
        pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        with ProgressBar(description, len(programs), "programs") as bar:
            try:
                for result in pool.map(self.run, programs):
                    results.append(result)
                    bar.update(1)
            finally:
                pool.shutdown(cancel_futures=True)
        return results

    def run(self, program: str) -> str:
        """Run one program.

        Returns:
            ``passed`` if it finished without an error, ``timed out``, or ``failed: <why>``.

        Raises:
            VocabForgeError: the process could not be started.
        """
        token = secrets.token_hex(16)
        job = {"token": token, "program": program, "limits": self.limits.resources()}
        python = [os.path.realpath(sys.executable), "-s", "-S", "-B", "-X", "utf8"]
        with (
            tempfile.TemporaryDirectory(prefix="vocabforge-sandbox-", ignore_cleanup_errors=True) as folder,
            tempfile.TemporaryFile() as report,
        ):
            try:
                process = subprocess.Popen(
                    [*self._wrap, *python, str(_CHILD)],
                    stdin=subprocess.PIPE,
                    stdout=report,
                    stderr=subprocess.DEVNULL,
                    # Makes the result deterministic even if a program depends on set order.
                    env={"PYTHONHASHSEED": "0"},
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise VocabForgeError("cannot start a process", got=error, source=sys.executable) from error
            try:
                process.communicate(json.dumps(job).encode(), timeout=self.limits.wall_s)
            except subprocess.TimeoutExpired:
                return TIMED_OUT
            finally:
                if process.returncode is None:  # not reaped yet, so its pid is still valid
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            report.seek(0)
            return _verdict(report.read().decode("utf-8", "replace"), token, process.returncode)


def _bubblewrap(bwrap: str) -> list[str]:
    """Return the bubblewrap command that isolates the command appended to it."""
    words = [bwrap, "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
    python = [os.path.realpath(sys.base_prefix), os.path.dirname(sys.executable), f"{sys.prefix}/pyvenv.cfg"]
    for path in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", *python, str(_CHILD)):
        words += ["--ro-bind-try", path, path]
    return [*words, "--dir", "/tmp", "--chdir", "/tmp"]


def _verdict(report: str, token: str, code: int) -> str:
    """Parse a report; only a report that begins with the token counts as ``passed``."""
    kind, _, message = report.removeprefix(token).partition(":")
    if report.startswith(token) and kind == "passed":
        return PASSED
    if report.startswith(token) and kind == "failed":
        # The message is untrusted: remove terminal control sequences.
        return "failed: " + "".join(letter if letter.isprintable() else " " for letter in message)
    if code < 0:
        return f"failed: the process was ended by {signal.strsignal(-code)}"
    return f"failed: it left before its tests were over (exit code {code})"
