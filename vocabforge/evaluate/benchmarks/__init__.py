"""Benchmarks as data: a table of known benchmarks, file lookup, and readers of their formats."""

from .load import load_benchmark, spread
from .readers import read_questions
from .registry import BENCHMARKS, FORMATS, MT_BENCH, detect_format
from .types import Benchmark, BenchmarkRow, Question, Source, asked_sha256

__all__ = [
    "BENCHMARKS",
    "FORMATS",
    "MT_BENCH",
    "Benchmark",
    "BenchmarkRow",
    "Question",
    "Source",
    "asked_sha256",
    "detect_format",
    "load_benchmark",
    "read_questions",
    "spread",
]
