"""Every figure of the benchmark: what it measures, in which order, in a process that may die with it."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .cases import OP_BENCHES, heads
from .cases.types import LLAMA3_8B, QWEN3_8B, SMALL
from .cycle import cycles
from .ops import measure_case
from .timing import Protocol, ceilings

ROWS = (1, 10, 60)  # measured values of N
CEILINGS = "ceilings"
_GRACE = 15.0  # seconds beyond the limit, to finish a figure started in time
_START = 60.0  # seconds beyond a figure's own, to import torch and to start on a device


class Figure(NamedTuple):
    """Something to measure.

    Attributes:
        part: table of the report that shows it.
        measure: returns plain JSON.
        goal: whether a goal of docs/performance/gpu.md depends on it; such figures are measured first.
        seconds: after these it hangs; they include building models.
    """

    part: str
    name: str
    measure: Callable[[], dict[str, Any]]
    goal: bool = True
    seconds: float = 30.0


def figures(device: str, small: bool, only: str = "") -> list[Figure]:
    """Return the figures whose name contains the pattern ``only``, the least important last, in case time runs out.

    Args:
        small: sizes that prove the code on a CPU instead of those of real models.
    """
    protocol, backend = Protocol(torch.device(device)), "auto" if small else "native"
    if device == "cpu":
        protocol = replace(protocol, seconds=0.001, least=2, most=10, most_copies=2)
    models = (SMALL,) if small else (LLAMA3_8B, QWEN3_8B)
    shapes = models if small else [replace(model, rows=rows) for rows in ROWS for model in models]
    every = [
        Figure("cycle", name, measure, seconds=90.0) for name, measure in cycles(models, protocol).items()
    ]
    for shape in shapes:
        for cases_of in (heads.cases, *OP_BENCHES.values()):
            part = "heads" if cases_of is heads.cases else "ops"
            every += [
                Figure(part, case.name, partial(measure_case, case, protocol, backend), case.goal)
                for case in cases_of(shape)
            ]
    named = {figure.name: figure for figure in every}  # of equal sizes, one
    chosen = [figure for figure in named.values() if re.search(only, figure.name)]
    first = [Figure(CEILINGS, CEILINGS, partial(ceilings, protocol))] if chosen else []
    return first + sorted(chosen, key=lambda figure: not figure.goal)


def measure_all(
    wanted: Callable[[], list[Figure]], device: str, log: Path, seconds: float
) -> dict[str, dict[str, Any]]:
    """Measure figures in a process that may hang, abort or lose the device; another one continues.

    Args:
        wanted: returns the figures; also called in the process.
        log: receives the output of the last process.
        seconds: after these no figure begins.

    Returns:
        What each figure's ``measure`` returns, or its ``problem``, by name; those that did not begin are missing.
    """
    context, until, process = get_context("spawn"), time.monotonic() + seconds, None
    rows: dict[str, dict[str, Any]] = {}
    for number, figure in enumerate(wanted()):
        if (left := until - time.monotonic()) < 0:
            break
        if process is None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, wanted, device, log))
            process.start()
            theirs.close()
        try:
            ours.send((number, limit := min(figure.seconds, left + _GRACE)))
            if not ours.poll(limit + _START):
                process.kill()  # not even its own watchdog ran
            row, over = ours.recv()
        except (EOFError, OSError):
            process.join()
            said = log.read_text("utf-8", "replace").strip()[-3000:] if log.is_file() else ""
            row, over = {"problem": f"the process ended with {process.exitcode}\n{said}"}, True
        rows[figure.name] = row
        if "problem" in row:
            print(f"[gpu-check] {figure.name}: {row['problem'].splitlines()[0]}", file=sys.stderr, flush=True)
        process = None if over else process
    if process is not None:
        ours.close()
        process.join()
    return rows


def _work(orders: Connection, wanted: Callable[[], list[Figure]], device: str, log: Path) -> None:
    """Measure the figures of these numbers, each within so many seconds, and tell whether this process ends."""
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    own, over = wanted(), False
    with contextlib.suppress(EOFError):
        while not over:
            number, seconds = orders.recv()
            faulthandler.dump_traceback_later(seconds, exit=True)
            try:
                row = own[number].measure()
            except Exception as error:  # noqa: BLE001 (the other figures must be measured)
                row = {"problem": f"{type(error).__name__}: {error}"}
            over = "problem" in row and is_lost(device)
            faulthandler.cancel_dump_traceback_later()
            orders.send((row, over))
            if not over:
                make_room(device)


def is_lost(device: str) -> bool:
    """Return whether the device cannot be used any more: after an illegal address every CUDA call fails."""
    try:
        if device != "cpu":
            torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def make_room(device: str) -> None:
    """Run the garbage collector, which is slow, only if much of the device's memory is in use."""
    if device != "cpu" and torch.cuda.memory_reserved(device) > torch.cuda.mem_get_info(device)[1] / 2:
        gc.collect()
        torch.cuda.empty_cache()
