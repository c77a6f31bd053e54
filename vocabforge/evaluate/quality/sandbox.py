"""Runs programs that nobody has read, each in a process of its own, and says whether they ended as they should.

What a program meets, on Linux (x86_64, aarch64; elsewhere nothing is run):

- a fresh interpreter without site packages, an empty environment (but a fixed hash seed), an empty working folder,
  standard input, output and error on the null device, no other open file but the pipe of its verdict;
- no capabilities, ``no_new_privs``, limits on processor time, memory, file size, open files, processes, core dumps;
- a filter of system calls (``seccomp.py``): no opening to write, no change of the file system, no network, no new
  process or thread, no signal to others, no tracing, no change of its limits;
- Landlock (``landlock.py``) where the kernel has it: no file can be opened but those of the standard library and the
  system's shared libraries. Without it, a program can read what the user can; it has nowhere to send it, and what
  it says in its errors is not kept;
- an end: the parent kills the process group when its time is over, and the kernel kills it when the parent dies.

What is not covered: a program that passes on purpose. It runs in one process with its tests, as in the public
scorer; it can return an object that equals everything, or search the interpreter's frames for the token that marks a
verdict. It still reads names and sizes of files (``stat``), the time and the processor's counters, and a fault of the
kernel is beyond any of this.
"""

from __future__ import annotations

import builtins
import marshal
import math
import os
import platform
import secrets
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ...core.errors import VocabForgeError
from ...core.progress import ProgressBar
from . import landlock, seccomp
from .sandbox_process import collect, exit_code, feed, kill, start

PASSED, TIMED_OUT = "passed", "timed out"
_SIGNALS = {one.value: one.name for one in signal.Signals}
_SHARED_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
_REMEDY = "leave out --allow-code-execution and score the samples file on another machine"

_PROBE = """
import os, _socket
def refused(action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    raise SystemError(f"{action.__name__}{arguments} was not refused")
refused(open, "probe", "w")
refused(os.mkdir, "probe")
refused(_socket.socket)
refused(os.kill, os.getppid(), 0)
refused(os.fork)
"""
_PROBE_READING = 'refused(os.listdir, "/")\n'


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        wall_s: seconds from the start of its process, the interpreter's own start included.
        memory_mib: address space.
        open_files: file descriptors.
    """

    wall_s: float = 10.0
    memory_mib: int = 1024
    open_files: int = 32

    def resources(self) -> dict[str, int]:
        """Names in the module ``resource`` and their values; the address space last, so that nothing else fails."""
        return {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": 0,
            "RLIMIT_MEMLOCK": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_NPROC": 0,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_STACK": 8 << 20,
            "RLIMIT_CPU": math.ceil(self.wall_s) + 1,
            "RLIMIT_AS": self.memory_mib << 20,
        }


class Sandbox:
    """Context manager: the guards are built and tried once, then ``run`` and ``run_all``.

    Raises (on entering):
        VocabForgeError: not Linux, no table for this processor, or a guard that does not hold here.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.landlock = 0
        self._job: dict[str, Any] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Sandbox:
        machine = _machine()
        self.landlock = landlock.abi()
        self._job = {
            "machine": machine,
            "filter": seccomp.filter_program(machine),
            "ruleset": landlock.ruleset(self.landlock) if self.landlock else b"",
            "readable": readable_folders(),
            "read_rights": landlock.READ_FILE | landlock.READ_DIR,
            "limits": self.limits.resources(),
        }
        self._folder = tempfile.TemporaryDirectory(prefix="vocabforge-sandbox-")
        try:
            verdict = self.run(_PROBE + (_PROBE_READING if self.landlock else ""))
            if verdict != PASSED:
                raise _unsafe(verdict)
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def facts(self) -> dict[str, str]:
        """How programs are run here, in words."""
        reading = (
            f"standard library and shared libraries only (Landlock ABI {self.landlock})"
            if self.landlock
            else "all that the user can read: this kernel has no Landlock"
        )
        return {
            "sandbox": "a process each; no network, new process or change of files (system call filter)",
            "files it can open": reading,
            "limits": f"{self.limits.wall_s:g} s, {self.limits.memory_mib} MiB",
            "verdict": "the tests' own, in the program's process; a program that means to deceive them can",
            "python": f"{platform.python_version()}, standard library only",
        }

    def run_all(self, programs: Sequence[str], description: str) -> list[str]:
        """Results in order, as many programs at once as there are processors for this process."""
        if not programs:
            return []
        workers = min(len(programs), len(os.sched_getaffinity(0)))
        with ProgressBar(description, len(programs), "programs") as bar:
            pool = ThreadPoolExecutor(workers)
            try:
                results = []
                for result in pool.map(self.run, programs):
                    results.append(result)
                    bar.update(1)
            finally:
                pool.shutdown(cancel_futures=True)
        return results

    def run(self, program: str) -> str:
        """Run one program.

        Returns:
            ``passed``: it ran to its end without an error; ``timed out``; or ``failed: <why>``.

        Raises:
            VocabForgeError: the process could not be started or guarded; the program was not run.
        """
        if self._folder is None:
            raise RuntimeError("the sandbox has not been entered")
        deadline = time.monotonic() + self.limits.wall_s
        token, alarm = secrets.token_bytes(16), secrets.token_bytes(16)
        receive, send = os.pipe()
        try:
            process = start(send, self._folder.name)
        except OSError as error:
            os.close(receive)
            raise VocabForgeError(
                "cannot start a process",
                got=error,
                source=sys.executable,
                remedy="check the limits on processes and memory (ulimit -a)",
            ) from error
        finally:
            os.close(send)
        job = self._job | {
            "token": token,
            "alarm": alarm,
            "program": program,
            "report": send,
            "parent": os.getpid(),
        }
        try:
            feed(process, marshal.dumps(job))
            data, ended = collect(receive, deadline)
            code = exit_code(process, deadline) if ended else None
        finally:
            os.close(receive)
            kill(process)
        if data.startswith(alarm):
            raise _unsafe(_printable(data[len(alarm) :].decode("utf-8", "replace").partition(":")[2]))
        return _verdict(data, token, ended, code, _printable if self.landlock else _kind_of_error)


def readable_folders() -> list[str]:
    """Folders that a program's imports read: the standard library's and those of shared libraries."""
    extensions, libraries = sysconfig.get_config_vars("DESTSHARED", "LIBDIR")
    folders = [sysconfig.get_path("stdlib"), extensions, libraries, *_SHARED_LIBRARIES]
    return list(dict.fromkeys(os.path.realpath(one) for one in folders if one))


def _machine() -> str:
    machine = platform.machine()
    # A 32-bit interpreter on a 64-bit kernel makes other calls.
    if sys.platform == "linux" and machine in seccomp.ARCHITECTURES and sys.maxsize > 1 << 32:
        return machine
    raise VocabForgeError(
        "generated code cannot be run safely on this system",
        got=f"{platform.system()} {machine}",
        expected=f"Linux on {' or '.join(seccomp.ARCHITECTURES)}",
        source="--allow-code-execution",
        remedy=_REMEDY,
    )


def _unsafe(reason: str) -> VocabForgeError:
    return VocabForgeError(
        "generated code cannot be run safely: a guard does not hold here",
        got=reason,
        expected="seccomp filters for processes without privileges (containers may forbid them)",
        source="--allow-code-execution",
        remedy=_REMEDY,
    )


def _printable(message: str) -> str:
    """The message is made by the program: nothing in it may steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in message)


def _kind_of_error(message: str) -> str:
    """The built-in error's name alone: the rest could be what the program has read."""
    name = message.partition(":")[0]
    kind = getattr(builtins, name, None)
    return name if isinstance(kind, type) and issubclass(kind, BaseException) else "an error of its own"


def _verdict(data: bytes, token: bytes, ended: bool, code: int | None, quote: Callable[[str], str]) -> str:
    """The result's text; only a report that begins with the token, of a process that ended, can say ``passed``."""
    report = data[len(token) :].decode("utf-8", "replace") if data.startswith(token) and ended else ""
    kind, _, message = report.partition(":")
    if kind == "passed":
        return PASSED
    if kind == "failed":
        return f"failed: {quote(message)}"
    if data:
        return "failed: it wrote to the pipe of its verdict"
    if code is None:
        return TIMED_OUT
    if code < 0:
        return f"failed: the process was ended by {_SIGNALS.get(-code, f'signal {-code}')}"
    return f"failed: it left before its tests were over (exit code {code})"
