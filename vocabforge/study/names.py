"""How a study's columns and groups are called in tables and charts."""

from __future__ import annotations

from ..evaluate.summary import MT_BENCH_TASK
from .joined import EVERYTHING, MACHINE, ROOFLINE, SHAPE

COLUMN_NAMES = {
    MACHINE: "this model, this machine",
    SHAPE: "8B shape, measured",
    ROOFLINE: "8B shape, roofline",
}
# Spec-Bench, or what a study has in its place (figures.groups_of).
_GROUP_NAMES = {EVERYTHING: "the benchmark", MT_BENCH_TASK: "MT-bench, first turns"}


def shown_group(key: str, kind: str) -> str:
    """Name of a group; categories of a task stand below it."""
    shown = _GROUP_NAMES.get(key, key.replace("_", " "))
    return f"· {shown}" if kind == "category" else shown
