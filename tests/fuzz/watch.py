"""Runs inputs in a forked child under limits of processor time and memory, and says what became of each.

A child that is killed (endless loop, blow-up, a crash in native code) costs only the input it was at: another child
goes on behind it. The limits bound what an input may do; no time is asserted.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vocabforge.core.errors import VocabForgeError

CPU_S = 30
"""Processor seconds of one input; good ones take a hundredth of it."""
MEMORY_BYTES = 1536 << 20
"""Address space that one input may take beyond what the process holds already."""


@dataclass(frozen=True)
class Outcome:
    """What became of an input.

    Attributes:
        verdict: ``rejected`` (one clear error), ``accepted`` (a value came back) or ``wrong``.
        said: the error's text, the traceback's end, or what killed the child.
        left: paths that were not there before, or are there no more.
    """

    verdict: str
    said: str = ""
    left: tuple[str, ...] = ()


def watched(tasks: Sequence[tuple[Path, Callable[[], Any]]]) -> Iterator[Outcome]:
    """The outcome of each task, in order.

    Args:
        tasks: a folder that must hold afterwards what it held before, and what to call.
    """
    done = 0
    while done < len(tasks):
        for outcome in _batch(tasks[done:]):
            yield outcome
            done += 1


def _batch(tasks: Sequence[tuple[Path, Callable[[], Any]]]) -> Iterator[Outcome]:
    """Outcomes up to the end or to the task that kills the child."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        with contextlib.suppress(BaseException), os.fdopen(writing, "wb") as pipe:
            _child(tasks, pipe)
        os._exit(0)
    os.close(writing)
    told = 0
    with os.fdopen(reading, "rb") as pipe:
        while told < len(tasks):
            try:
                outcome = pickle.load(pipe)
            except EOFError:
                break
            told += 1
            yield outcome
    _, status = os.waitpid(child, 0)
    if told < len(tasks):
        name = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status}"
        yield Outcome("wrong", f"killed: {'processor time' if name == 'SIGPROF' else name}")


def _child(tasks: Sequence[tuple[Path, Callable[[], Any]]], pipe: BinaryIO) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    _limit_memory()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for folder, task in tasks:
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        pickle.dump(_outcome(folder, task), pipe)
        pipe.flush()


def _limit_memory() -> None:
    """A failing allocation is a MemoryError, or kills the child; systems without this file have no such limit."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _outcome(folder: Path, task: Callable[[], Any]) -> Outcome:
    before = _listing(folder)
    try:
        task()
        verdict, said = "accepted", ""
    except VocabForgeError as error:
        verdict, said = "rejected", str(error)
    except BaseException:  # noqa: BLE001 (a reader may raise anything, panics of native code included)
        verdict, said = "wrong", traceback.format_exc(limit=-6)
    left = tuple(sorted(_listing(folder) ^ before))
    return Outcome("wrong" if left and verdict == "rejected" else verdict, said, left)


def _listing(folder: Path) -> set[str]:
    return {os.path.relpath(path, folder) for path in folder.rglob("*")}
