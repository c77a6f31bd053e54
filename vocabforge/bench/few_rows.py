"""The product of few rows on a CPU: PyTorch's and the compiled op's, taking turns over the same matrices."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from ..core.config import Positive, StrictModel, apply_overrides, parse_config
from ..core.errors import UsageError
from ..models.device import threads_set
from ..ops.few_rows import linear, runs_products

_CALLS = 8  # of one turn


class FewRowsBenchConfig(StrictModel):
    """Settings of ``vocabforge bench few-rows``, given as ``key=value``.

    Attributes:
        shapes: matrices, inputs x outputs.
        rows: how many rows are multiplied at once; 1 is always measured.
        threads: of torch.
    """

    shapes: tuple[str, ...] = ("256x1024", "256x4096", "768x3072")
    rows: tuple[Positive, ...] = (1, 2, 3, 4, 6, 8)
    threads: Positive = 1


def bench_few_rows(settings: Sequence[str], *, repeats: int = 3) -> dict[str, Any]:
    """Time both products.

    Returns:
        plain JSON: ``threads``, and for each of ``products`` its ``shape``, ``rows``, microseconds ``torch_us`` and
        ``ours_us`` (lower quartiles of 10 turns a repeat), and ``in_rows``: ours over the faster of both at one row.

    Raises:
        UsageError: the op is not built here, or a shape cannot be read.
    """
    config = parse_config(FewRowsBenchConfig, apply_overrides({}, settings), source="the command line")
    if not runs_products():
        raise UsageError(
            "the CPU's ops are not built here",
            got="no library",
            remedy="`vocabforge kernels build --cpu` builds it",
        )
    found = []
    with threads_set(config.threads), torch.inference_mode():
        for shape in config.shapes:
            depth, columns = _sizes(shape)
            weight, one = torch.randn(columns, depth), 0.0
            for rows in sorted({1, *config.rows}):
                x = torch.randn(rows, depth)
                theirs, ours = _turns(
                    [partial(F.linear, x, weight), partial(linear, x, weight)], 10 * repeats
                )
                one = min(theirs, ours) if rows == 1 else one
                times = {"torch_us": theirs, "ours_us": ours, "in_rows": ours / one}
                found.append({"shape": shape, "rows": rows, **times})
    return {"threads": config.threads, "torch": torch.__version__, "products": found}


def _sizes(shape: str) -> tuple[int, int]:
    parts = shape.split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(
            "the shape of a matrix cannot be read", got=shape, expected="INPUTSxOUTPUTS, as 256x4096"
        )
    return int(parts[0]), int(parts[1])


def _turns(calls: Sequence[Callable[[], Any]], turns: int) -> list[float]:
    """Microseconds of each call: lower quartiles, as a busy machine only ever adds to them."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for place, call in enumerate(calls):
            call()
            start = time.perf_counter()
            for _ in range(_CALLS):
                call()
            taken[place].append((time.perf_counter() - start) / _CALLS * 1e6)
    return [statistics.quantiles(one, n=4)[0] for one in taken]
