"""Commands in forked children of one warmed process: a start costs milliseconds, not seconds."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.injection import Layer, Strike
from tests.worlds import ROOT

HANG_S = 240.0


@dataclass(frozen=True)
class Conditions:
    """Under which a command runs.

    Attributes:
        strike: see :mod:`tests.faults.injection`.
        file_bytes: no file may grow beyond (RLIMIT_FSIZE, as a quota does).
        clock: seconds that the wall clock is wrong by.
        backwards: seconds that it goes back at each look.
        ranks: environment of a launched process.
        unforeseen: whether there is room on the disk is not looked at first.
    """

    strike: Strike = field(default_factory=Strike)
    file_bytes: int | None = None
    clock: float = 0.0
    backwards: float = 0.0
    ranks: Mapping[str, str] = field(default_factory=dict)
    unforeseen: bool = False


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: exit code; negative: the signal.
        text: what it said.
        operations: that it did; nobody knows them of a killed one.
        modules: that it had loaded at its end.
    """

    code: int
    text: str
    seconds: float
    operations: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


class Child:
    """A command that runs in a child process; ``root`` is watched by the layer."""

    def __init__(self, argv: Sequence[str], root: Path, conditions: Conditions | None = None) -> None:
        self.argv, self.root = list(argv), root
        self.conditions = conditions or Conditions()
        root.mkdir(parents=True, exist_ok=True)
        number = next(_numbers)
        self._said = root.parent / f"{root.name}.said-{os.getpid()}-{number}"
        self._record = root.parent / f"{root.name}.record-{os.getpid()}-{number}"
        self._start = time.monotonic()
        self._status: int | None = None
        self.pid = self._begin()

    def _begin(self) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            code = self._work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _work(self) -> int:
        os.setsid()
        said = os.open(self._said, os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number in (1, 2):
            os.dup2(said, number)
        os.environ.update(self.conditions.ranks)
        sys.argv = ["vocabforge", *self.argv]
        layer = Layer(self.root, self.conditions.strike)
        _set_clock(self.conditions)
        try:
            from vocabforge import cli

            if self.conditions.file_bytes is not None:
                limit = self.conditions.file_bytes
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            if self.conditions.unforeseen:
                from vocabforge.capture.writer import DiskUse

                DiskUse.fits = True  # type: ignore[assignment,method-assign]
            layer.install()
            cli.main()
            return 0
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 (what the interpreter would print)
            traceback.print_exc()
            return 1
        finally:
            with contextlib.suppress(OSError):
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                done = {"operations": layer.names, "modules": list(sys.modules)}
                self._record.write_text(json.dumps(done))

    def ended(self, *, kill_after: float | None = None, patience: float = HANG_S) -> Ended:
        """Wait for the end; ``kill_after`` seconds from the start it is killed. What hangs is an error."""
        limit = patience if kill_after is None else min(kill_after, patience)
        status = _wait(self.pid, self._start + limit) if self._status is None else self._status
        if status is None:
            os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):  # it had no group of its own yet
                os.killpg(self.pid, signal.SIGKILL)
            status = os.waitpid(self.pid, 0)[1]
            if kill_after is None:
                raise TimeoutError(f"{' '.join(self.argv)} hangs:\n{self._text()}")
        seconds = time.monotonic() - self._start
        record: dict[str, list[str]] = {"operations": [], "modules": []}
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(self._record.read_text())
        code = os.waitstatus_to_exitcode(status)
        return Ended(code, self._text(), seconds, tuple(record["operations"]), tuple(record["modules"]))

    def stopped(self) -> bool:
        """Wait until a ``stop`` has struck; False if it ended before."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._status = status
        return False

    def over(self, seconds: float) -> bool:
        """Whether it ends within some seconds."""
        if self._status is None:
            self._status = _wait(self.pid, time.monotonic() + seconds)
        return self._status is not None

    def let_go(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _text(self) -> str:
        try:
            return self._said.read_text("utf-8", "replace")
        except OSError:
            return ""


def _wait(pid: int, deadline: float) -> int | None:
    """The status of a child that ends before the deadline."""
    descriptor = os.pidfd_open(pid)
    try:
        import select

        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
    finally:
        os.close(descriptor)
    return os.waitpid(pid, 0)[1]


def _counted() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


_numbers = _counted()


def _set_clock(conditions: Conditions) -> None:
    """Put the wall clock wrong; what measures durations (``time.monotonic``) is right."""
    if not conditions.clock and not conditions.backwards:
        return
    real, gmtime, localtime = time.time, time.gmtime, time.localtime
    looks = [0]

    def now() -> float:
        looks[0] += 1
        return real() + conditions.clock - conditions.backwards * looks[0]

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)  # type: ignore[assignment]
    time.gmtime = lambda seconds=None: gmtime(now() if seconds is None else seconds)  # type: ignore[assignment]
    time.localtime = lambda seconds=None: localtime(now() if seconds is None else seconds)  # type: ignore[assignment]


def run(argv: Sequence[str], root: Path, conditions: Conditions | None = None) -> Ended:
    """A command from start to end in a forked child."""
    return Child(argv, root, conditions).ended()


def load_modules(names: Sequence[str]) -> None:
    """Load what a child had to load by itself, so that the next one need not."""
    for name in names:
        if name not in sys.modules and name != "__main__":
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def run_fresh(argv: Sequence[str], *, kill_after: float | None = None) -> Ended:
    """A command as a user starts it: a new interpreter; ``kill_after`` seconds from the start it is killed."""
    began = time.monotonic()
    command = [sys.executable, "-m", "vocabforge", *argv]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as child:
        try:
            said, _ = child.communicate(timeout=HANG_S if kill_after is None else kill_after)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            said, _ = child.communicate()
            if kill_after is None:
                raise
    return Ended(child.returncode, said.decode("utf-8", "replace"), time.monotonic() - began)


def isolated(function: Callable[[], object]) -> None:
    """Call a function in a forked child, so that this process stays without threads and models.

    Raises:
        RuntimeError: it failed (its traceback is on stderr).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            function()
            code = 0
        except BaseException:  # noqa: BLE001 (told by the exit code)
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError("a piece of work in a child process failed; see above")
