"""Tables and runs of the kernels' benchmark: what was measured, what was not, and why."""

from __future__ import annotations

from typing import Any

import pytest
from bench import run as bench_kernels
from bench.parts import FigureJournal, KernelOptions


class TestRun:
    def test_a_wrong_figure_is_a_failure(self) -> None:
        wrong = {"a": {"problems": {"bfloat16": "NaN"}}, "b": {"problems": {}}}
        journal = FigureJournal()
        journal.rows, journal.open = wrong, {"x": "no time left", "y": "died"}
        assert bench_kernels.failures({"heads": journal}) == {"heads": {"a": "bfloat16: NaN", "y": "died"}}

    def test_real_means_a_gpu_real_sizes_and_compiled_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        library: dict[str, Any] | None = {"variant": "native"}
        monkeypatch.setattr(bench_kernels, "library_facts", lambda: library)
        assert bench_kernels.why_not_real(KernelOptions()) is None
        assert "no GPU" in str(bench_kernels.why_not_real(KernelOptions("cpu")))
        assert "small" in str(bench_kernels.why_not_real(KernelOptions("cuda", ("small",))))
        assert "kernels" in str(bench_kernels.why_not_real(KernelOptions(backend="auto")))
        library = {"variant": "cpu"}
        assert "kernels" in str(bench_kernels.why_not_real(KernelOptions()))
        library = None
        assert "kernels" in str(bench_kernels.why_not_real(KernelOptions()))
