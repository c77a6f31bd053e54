"""Benchmarks are data: a table of known ones, where their files are found, and readers of their formats."""

from .find import BENCHMARKS, MT_BENCH, load_benchmark, read_questions, spread
from .types import Benchmark, BenchmarkRow, Question, Source

__all__ = [
    "BENCHMARKS",
    "MT_BENCH",
    "Benchmark",
    "BenchmarkRow",
    "Question",
    "Source",
    "load_benchmark",
    "read_questions",
    "spread",
]
