"""Benchmarks are data: a table of known ones, where their files are found, and readers of their formats."""

from .formats import FORMATS, detect_format
from .listing import BenchmarkListing, describe_benchmarks
from .load import load_benchmark, spread
from .read_spec_bench import read_questions
from .table import BENCHMARKS, MT_BENCH
from .types import Benchmark, BenchmarkRow, Question, Source, asked_sha256

__all__ = [
    "BENCHMARKS",
    "FORMATS",
    "MT_BENCH",
    "Benchmark",
    "BenchmarkListing",
    "BenchmarkRow",
    "Question",
    "Source",
    "asked_sha256",
    "describe_benchmarks",
    "detect_format",
    "load_benchmark",
    "read_questions",
    "spread",
]
