"""Run readers in a forked child under limits of processor time and memory, and tell what became of each input.

A child that is killed (endless loop, memory, a crash in native code) costs only the input it was at: another child
goes on behind it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from vocabforge.core.errors import VocabForgeError

FORK = get_context("fork")
CPU_S = 30.0
"""Processor seconds of one input; good ones take a hundredth of it."""
MEMORY_BYTES = 1536 << 20
"""Address space that one input may take beyond what the process holds already."""

Task = tuple[Path, Callable[[], Any]]
"""A folder that must hold afterwards what it held before, and what to call."""


class Outcome(NamedTuple):
    """``rejected`` (one clear error), ``accepted`` (a value came back) or ``wrong``, with what was said."""

    verdict: str
    said: str = ""


def watched(tasks: Sequence[Task]) -> Iterator[Outcome]:
    """Yield the outcome of each task, in order."""
    done = 0
    while done < len(tasks):
        reading, writing = FORK.Pipe(duplex=False)
        child = FORK.Process(target=_work, args=(tasks[done:], reading, writing))
        child.start()
        writing.close()
        with reading, contextlib.suppress(EOFError, OSError):
            while done < len(tasks):
                yield reading.recv()
                done += 1
        child.join()
        if done < len(tasks):
            late = child.exitcode == -signal.SIGPROF
            yield Outcome("wrong", f"killed: {'processor time' if late else f'exit code {child.exitcode}'}")
            done += 1


def _work(tasks: Sequence[Task], reading: Connection, writing: Connection) -> None:
    reading.close()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    with contextlib.suppress(OSError):  # systems without this file have no such limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        for folder, task in tasks:
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            writing.send(_outcome(folder, task))
    finally:
        os._exit(0)  # at once: a thread of the parent may have held a lock of its streams


def _outcome(folder: Path, task: Callable[[], Any]) -> Outcome:
    before = set(folder.rglob("*"))
    try:
        task()
        return Outcome("accepted")
    except VocabForgeError as error:
        left = sorted(map(str, before ^ set(folder.rglob("*"))))
        return (
            Outcome("wrong", f"{error}\nleft or removed: {left}") if left else Outcome("rejected", str(error))
        )
    except BaseException:  # noqa: BLE001 (a reader may raise anything, panics of native code included)
        return Outcome("wrong", traceback.format_exc(limit=-6))
