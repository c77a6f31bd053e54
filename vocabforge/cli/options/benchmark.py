"""Options that say which questions are asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...core.config import Positive, StrictModel
from .groups import option

if TYPE_CHECKING:
    from ...evaluate.benchmarks import Benchmark


class BenchmarkOptions(StrictModel):
    """The questions of an evaluation."""

    benchmark: str = option(
        ...,
        "spec-bench, human-eval, gsm8k, sample (made here), or a file: Spec-Bench, HumanEval, GSM8K, ShareGPT or "
        "messages.",
    )
    data: Path | None = option(
        None, "Folder with benchmark files [default: VOCABFORGE_DATA, data, the cache]."
    )
    offline: bool = option(False, "Never fetch a benchmark from its public source.")
    limit: Positive | None = option(None, "Use only N questions, spread evenly over the benchmark.")

    def load(self) -> Benchmark:
        """The questions."""
        from ...evaluate.benchmarks import load_benchmark

        return load_benchmark(self.benchmark, self.limit, data=self.data, offline=self.offline)
