"""Run readers in a forked child under limits of processor time and memory, and tell what became of each input.

A child that is killed (endless loop, memory, a crash in native code) costs only the input it was at: another child
goes on behind it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from vocabforge.core.errors import VocabForgeError

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
        for outcome in _in_one_child(tasks[done:]):
            yield outcome
            done += 1


def _in_one_child(tasks: Sequence[Task]) -> Iterator[Outcome]:
    """Yield outcomes up to the end or to the task that kills the child."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        with contextlib.suppress(BaseException), os.fdopen(writing, "wb") as pipe:
            _work(tasks, pipe)
        os._exit(0)
    os.close(writing)
    received = 0
    with os.fdopen(reading, "rb") as pipe, contextlib.suppress(EOFError):
        while received < len(tasks):
            outcome = pickle.load(pipe)
            received += 1
            yield outcome
    _, status = os.waitpid(child, 0)
    if received < len(tasks):
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status}"
        yield Outcome("wrong", f"killed: {'processor time' if name == 'SIGPROF' else name}")


def _work(tasks: Sequence[Task], pipe: BinaryIO) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    with contextlib.suppress(OSError):  # systems without this file have no such limit
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for folder, task in tasks:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        pickle.dump(_outcome(folder, task), pipe)
        pipe.flush()


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
