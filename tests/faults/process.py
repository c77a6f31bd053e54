"""Commands in forked children of one warmed process, struck at a chosen writing operation.

An operation changes what is below a folder: opening to write, a write, a flush to the disk, a rename, a link, a new
folder, a removal. Which one is struck does not depend on time.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import io
import itertools
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HANG_S = 240.0
FORK = get_context("fork")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events of ``sys.addaudithook`` -> the argument that is the path; behind it may be the descriptor of its folder.
EVENTS = {
    "open": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1, "os.mkdir": 0, "os.remove": 0, "os.rmdir": 0,
    "os.truncate": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Conditions:
    """Under which a command runs.

    Attributes:
        at: number of the operation that is struck, from 1; 0 strikes never.
        action: ``kill`` (-9), ``stop`` or the name of an error number, such as ``EIO``.
        file_bytes: no file may grow beyond (RLIMIT_FSIZE, as a quota does).
        clock: seconds that the wall clock is wrong by. backwards: seconds that it goes back at each look.
    """

    at: int = 0
    action: str = "kill"
    file_bytes: int | None = None
    clock: float = 0.0
    backwards: float = 0.0


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (negative: the signal), output, and (if it was not killed) its operations."""

    code: int
    text: str
    operations: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


class Layer:
    """Counts operations below ``root`` and strikes one of them, for the rest of this process."""

    def __init__(self, root: Path, conditions: Conditions) -> None:
        self.root, self.conditions = os.path.realpath(root) + os.sep, conditions
        self.names: list[str] = []
        self._lock = threading.Lock()

    def watches(self, place: Any) -> bool:
        """Whether a path or an open file is below the root."""
        try:
            opened = isinstance(place, int)
            path = os.readlink(f"/proc/self/fd/{place}") if opened else os.path.abspath(os.fsdecode(place))
        except (OSError, TypeError):
            return False
        return f"{path}/".startswith(self.root)

    def meet(self, name: str, path: object = None, *, spoil: Callable[[], object] | None = None) -> None:
        """One operation is about to happen; ``spoil`` does it by half where it is struck."""
        action = self.conditions.action
        with self._lock:
            self.names.append(name)
            struck = len(self.names) == self.conditions.at
        if not struck:
            return
        if spoil is not None and action != "stop":
            spoil()
        if action in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        else:
            number = getattr(errno, action)
            raise OSError(number, os.strerror(number), None if isinstance(path, int) else path)

    def install(self) -> None:
        sys.addaudithook(self._hear)
        for name in ("write", "fsync", "fdatasync"):
            self._wrap(os, name)
        self._wrap_open()
        self._wrap_safetensors()

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in EVENTS or (event == "open" and not (isinstance(args[2], int) and args[2] & WRITING)):
            return
        path, folder = args[EVENTS[event]], args[-1]
        inside = event in ("os.remove", "os.rmdir", "os.mkdir") and folder >= 0
        if self.watches(folder if inside else path):
            self.meet(event.removeprefix("os."), path)

    def _wrap(self, module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapped(file: Any, *args: Any) -> Any:
            if self.watches(file):
                self.meet(name, file)
            return real(file, *args)

        setattr(module, name, wrapped)

    def _wrap_open(self) -> None:
        real = io.open

        def wrapped(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            opened = real(file, mode, *args, **named)
            if set(mode) & set("wax+") and self.watches(file):
                opened.write = partial(self._write, opened.write, opened.flush, file)
            return opened

        builtins.open = io.open = wrapped  # type: ignore[assignment]

    def _write(self, write: Callable[[Any], int], flush: Callable[[], None], path: object, data: Any) -> int:
        """A killed or failing write leaves half of its bytes."""

        def half() -> None:
            write(data[: len(data) // 2])
            flush()

        self.meet("write", path, spoil=half)
        return write(data)

    def _wrap_safetensors(self) -> None:
        """Its files are written outside of Python; in it, from now on, unless their own writes are to meet a quota."""
        import safetensors.numpy
        import safetensors.torch
        from safetensors import SafetensorError, serialize

        def serialize_file(tensors: Any, file: Any, metadata: Any = None) -> None:
            try:
                with open(file, "wb") as opened:
                    opened.write(serialize(tensors, metadata=metadata))
            except OSError as error:
                raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from error

        if self.conditions.file_bytes is None:
            safetensors.numpy.serialize_file = safetensors.torch.serialize_file = serialize_file  # type: ignore[attr-defined]


class Child:
    """A command that runs in a child process; operations below ``root`` are counted."""

    def __init__(self, argv: Sequence[str], root: Path, conditions: Conditions | None = None) -> None:
        self.argv, self.root, self.conditions = list(argv), root, conditions or Conditions()
        self._record = root.parent / f"record-{os.getpid()}-{next(_numbers)}"
        self._reading, self._writing = os.pipe()  # a file would meet the quota
        fcntl.fcntl(self._writing, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._process = FORK.Process(target=self._work)
        self._process.start()
        os.close(self._writing)
        self.pid = self._process.pid

    def _work(self) -> None:
        os.setsid()
        os.dup2(self._writing, 1)
        os.dup2(self._writing, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["vocabforge", *self.argv]
        os.environ["VOCABFORGE_CACHE"] = str(self.root / "cache")
        layer = Layer(self.root, self.conditions)
        _set_clock(self.conditions)
        try:
            from vocabforge import cli

            limit = self.conditions.file_bytes or resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            layer.install()
            cli.main()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            self._record.write_text(json.dumps({"operations": layer.names, "modules": list(sys.modules)}))

    def ended(self) -> Ended:
        """Wait for the end.

        Raises:
            TimeoutError: it hangs.
        """
        if not self.over(HANG_S):
            os.killpg(self.pid, signal.SIGKILL)
            self._process.join()
            raise TimeoutError(f"{' '.join(self.argv)} hangs:\n{self._text()}")
        record: dict[str, list[str]] = {"operations": [], "modules": []}
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(self._record.read_text())
        operations, modules = (tuple(record[name]) for name in ("operations", "modules"))
        return Ended(self._process.exitcode, self._text(), operations, modules)

    def over(self, seconds: float) -> bool:
        """Whether it ends within some seconds; what it has started may run on."""
        deadline = time.monotonic() + seconds
        while self._process.exitcode is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._process.exitcode is not None

    def stopped(self) -> bool:
        """Wait until a ``stop`` has struck; False if it ended before."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        return found is not None and found.si_code == os.CLD_STOPPED

    def _text(self) -> str:
        """Return its output, once."""
        os.set_blocking(self._reading, False)  # what it has started may hold the other end
        with open(self._reading, "rb", buffering=0) as output:
            return (output.read(1 << 20) or b"").decode("utf-8", "replace")


_numbers = itertools.count()


def _set_clock(conditions: Conditions) -> None:
    """Put the wall clock wrong; what measures durations (``time.monotonic``) is right."""
    if not conditions.clock and not conditions.backwards:
        return
    real, gmtime, localtime, looks = time.time, time.gmtime, time.localtime, itertools.count(1)

    def now() -> float:
        return real() + conditions.clock - conditions.backwards * next(looks)

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)  # type: ignore[assignment]
    time.gmtime = lambda seconds=None: gmtime(now() if seconds is None else seconds)  # type: ignore[assignment]
    time.localtime = lambda seconds=None: localtime(now() if seconds is None else seconds)  # type: ignore[assignment]


def run(argv: Sequence[str], root: Path, conditions: Conditions | None = None) -> Ended:
    """Run a command from start to end in a forked child."""
    return Child(argv, root, conditions).ended()
