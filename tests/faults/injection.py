"""A layer between a command and the file system: it counts writing operations, and strikes at a chosen one.

An operation is anything that changes what lies below ``root``: opening to write, a write, a flush to the disk,
a rename, a link, a new folder, a removal, and a file that the safetensors library writes by itself. It strikes by
SIGKILL (as ``kill -9`` does), by an error of the operating system, or by stopping the process until it is let go
on. Which operation is struck does not depend on time.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Strike:
    """What to do at which operation.

    Attributes:
        at: number of the operation, from 1; 0 strikes never.
        action: ``kill``, ``stop`` or the name of an error number, such as ``EIO``.
        steps: count training steps, too (a process that writes nothing can be killed there).
    """

    at: int = 0
    action: str = "kill"
    steps: bool = False


class Layer:
    """Counts and strikes; ``install`` puts it in place for the rest of this process.

    Attributes:
        names: every operation so far, as ``write``, ``rename`` ...
    """

    def __init__(self, root: Path, strike: Strike) -> None:
        self.root, self.strike = os.path.realpath(root) + os.sep, strike
        self.names: list[str] = []
        self._lock = threading.Lock()

    def watches(self, place: object) -> bool:
        """Whether a path or an open file is below the root."""
        try:
            if isinstance(place, int):
                path = os.readlink(f"/proc/self/fd/{place}")
            else:
                path = os.path.abspath(os.fsdecode(place))  # type: ignore[arg-type]
        except (OSError, TypeError):
            return False
        return path.startswith(self.root)

    def meet(self, name: str, path: object = None, *, spoil: Callable[[], object] | None = None) -> None:
        """One operation is about to happen; ``spoil`` does it by half where it is struck."""
        with self._lock:
            self.names.append(name)
            struck = len(self.names) == self.strike.at
        if not struck:
            return
        if spoil is not None and self.strike.action != "stop":
            spoil()
        if self.strike.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.strike.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            number = getattr(errno, self.strike.action)
            raise OSError(number, os.strerror(number), None if isinstance(path, int) else path)

    def install(self) -> None:
        """Wrap the functions that write."""
        self._truncate = os.truncate
        for name in ("write", "fsync", "ftruncate", "fdatasync"):
            self._wrap(os, name, 0)
        for name in ("rename", "replace", "link", "symlink"):
            self._wrap(os, name, 1)
        for name in ("mkdir", "unlink", "remove", "rmdir", "truncate"):
            self._wrap(os, name, 0)
        self._wrap_os_open()
        self._wrap_open()
        self._wrap_safetensors()
        if self.strike.steps:
            self._wrap_steps()

    def _wrap(self, module: Any, name: str, which: int) -> None:
        real = getattr(module, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            place = args[which]
            if named.get("dir_fd") is not None or self.watches(place):
                self.meet(name, place)
            return real(*args, **named)

        setattr(module, name, wrapped)

    def _wrap_os_open(self) -> None:
        real = os.open

        def wrapped(path: Any, flags: int, *args: Any, **named: Any) -> int:
            if flags & WRITING and self.watches(path):
                self.meet("open", path)
            return real(path, flags, *args, **named)

        os.open = wrapped  # type: ignore[assignment]

    def _wrap_open(self) -> None:
        real = io.open

        def wrapped(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if set(mode) & set("wax+") and self.watches(file):
                self.meet("open", file)
                return Watched(real(file, mode, *args, **named), self, file)
            return real(file, mode, *args, **named)

        builtins.open = io.open = wrapped  # type: ignore[assignment]

    def _wrap_safetensors(self) -> None:
        """Its files are written outside of Python: an operation before, and one behind a half-written file."""
        import safetensors.numpy
        import safetensors.torch
        from safetensors import SafetensorError

        real_truncate = self._truncate
        for module in (safetensors.numpy, safetensors.torch):
            real = module.serialize_file  # type: ignore[attr-defined]

            def wrapped(tensors: Any, filename: Any, *args: Any, _real: Callable = real, **named: Any) -> Any:
                if not self.watches(filename):
                    return _real(tensors, filename, *args, **named)
                try:
                    self.meet("safetensors", filename)
                    done = _real(tensors, filename, *args, **named)

                    def spoil() -> None:
                        real_truncate(filename, os.path.getsize(filename) // 2)

                    self.meet("safetensors-half", filename, spoil=spoil)
                except OSError as error:
                    raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from error
                return done

            module.serialize_file = wrapped  # type: ignore[attr-defined]

    def _wrap_steps(self) -> None:
        from vocabforge.train import loop

        real = loop.take_step

        def step(*args: Any) -> int:
            self.meet("step")
            return real(*args)

        loop.take_step = step


class Watched:
    """An open file whose writes are operations; a killed or failing write leaves half of its bytes."""

    def __init__(self, file: Any, layer: Layer, path: object) -> None:
        self._file, self._layer, self._path = file, layer, path

    def write(self, data: Any) -> int:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._layer.meet("write", self._path, spoil=half)
        return self._file.write(data)

    def __enter__(self) -> Watched:
        self._file.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
