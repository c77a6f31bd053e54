"""Every figure of the benchmark: what it measures, in which order, in a process that may die with it.

``python -m bench.figures DEVICE SIZES PATTERN``, started by ``gpu_check.py``, measures them and writes the journal.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_process import DEADLINE, JOURNAL, begin, end, leave_if_lost, note, read_journal

from .cases import OP_BENCHES, heads, op_cases
from .cases.types import LLAMA3_8B, QWEN3_8B, SMALL
from .cycle import cycles
from .ops import measure_case
from .timing import Protocol, ceilings

ROWS = (1, 10, 60)  # measured values of N
CEILINGS = "ceilings"


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
    found = [
        Figure("cycle", name, measure, seconds=90.0) for name, measure in cycles(models, protocol).items()
    ]
    for shape in shapes:
        sets = {
            "heads": heads.cases(shape),
            "ops": [case for op in OP_BENCHES for case in op_cases(op, shape)],
        }
        for part, cases in sets.items():
            found += [
                Figure(part, case.name, partial(measure_case, case, protocol, backend), case.goal)
                for case in cases
            ]
    named = {one.name: one for one in found}  # of equal sizes, one
    chosen = [one for one in named.values() if re.search(only, one.name)]
    first = [Figure(CEILINGS, CEILINGS, partial(ceilings, protocol))] if chosen else []
    return first + sorted(chosen, key=lambda one: not one.goal)


def main(device: str, sizes: str, only: str) -> None:
    journal, deadline = Path(os.environ[JOURNAL]), float(os.environ[DEADLINE])
    done = read_journal(journal)[0]
    for one in figures(device, sizes == "small", only):
        if one.name in done or time.time() > deadline:
            continue
        begin(journal, one.name, one.seconds)
        try:
            note(journal, one.name, outcome="passed", row=one.measure())
        except Exception as error:  # noqa: BLE001 (the other figures must be measured)
            problem = f"{type(error).__name__}: {error}"
            note(journal, one.name, outcome="failed", problem=problem)
            leave_if_lost(problem)
        end(journal, one.name)
        make_room(device)


def make_room(device: str) -> None:
    """Run the garbage collector, which is slow, only if much of the device's memory is in use."""
    if device != "cpu" and torch.cuda.memory_reserved(device) > torch.cuda.mem_get_info(device)[1] / 2:
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
