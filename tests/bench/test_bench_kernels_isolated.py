"""Figures in a process of their own: what dies is named, the rest follows."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import figures
from bench.figures import Figure, measure_all


def one(action: str) -> dict[str, Any]:
    """A figure that does something."""
    if action == "die":
        print("illegal memory access", flush=True)
        os._exit(7)
    if action == "hang":
        time.sleep(60)
    if action in ("fail", "lose the device"):
        figures.is_lost = lambda device: action != "fail"  # type: ignore[assignment]
        raise torch.OutOfMemoryError("CUDA out of memory")
    return {"us": 1.0, "process": os.getpid()}


def three(action: str) -> list[Figure]:
    return [
        Figure(
            "ops",
            name,
            partial(one, action if name == "b" else ""),
            seconds=1.0 if action == "hang" else 30.0,
        )
        for name in "abc"
    ]


@pytest.mark.parametrize(
    ("action", "told", "ends"),
    [
        ("die", "the process ended with 7\nillegal memory access", True),
        ("hang", "the process ended with 1\nTimeout (0:00:01)!", True),
        ("fail", "OutOfMemoryError: CUDA out of memory", False),
        ("lose the device", "OutOfMemoryError: CUDA out of memory", True),
    ],
)
def test_a_figure_that_ends_its_process_costs_itself_only(
    tmp_path: Path, action: str, told: str, ends: bool
) -> None:
    found = measure_all(partial(three, action), "cpu", tmp_path / "log", 60.0)
    assert [name for name, row in found.items() if row.get("us") == 1.0] == ["a", "c"]
    assert found["b"]["problem"].startswith(told)
    assert (found["a"]["process"] != found["c"]["process"]) is ends


def test_no_figure_begins_without_time(tmp_path: Path) -> None:
    assert measure_all(partial(three, ""), "cpu", tmp_path / "log", -1.0) == {}
    found = measure_all(partial(three, "hang"), "cpu", tmp_path / "log", 0.5)
    assert "c" not in found


def test_figures_are_measured(tmp_path: Path) -> None:
    wanted = partial(figures.figures, "cpu", True, "^(silu_mul|tree_expand)")
    found = measure_all(wanted, "cpu", tmp_path / "log", 60.0)
    assert list(found) == ["ceilings", "silu_mul R=5 i=96", "tree_expand W=4 k=4"]
    assert all(row["us"] > 0 for name, row in found.items() if name != "ceilings")
