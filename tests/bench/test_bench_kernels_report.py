"""Tables and runs of the kernels' benchmark: what was measured, what was not, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench import run as bench_kernels
from bench.parts import FigureJournal, KernelOptions
from bench.table import tables
from bench.timing import DeviceCeilings


def head_row(kind: str, us: float, case: str = "", **sizes: int) -> dict[str, Any]:
    places = {"V": 128_256, "N": 10, "dynamic": int(kind not in ("full", "static")), "fp8": 0, **sizes}
    timing = {"us": us, "low_us": us, "high_us": us, "method": "graph"}
    return {
        "op": f"head {kind}",
        "case": case or kind,
        "sizes": places,
        "problems": {},
        "timing": timing,
        "eager": timing,
        "floor_us": 1.0,
        "bound": "bytes",
        "cold": True,
        "share": 0.5,
    }


def test_heads_stand_beside_the_static_one_of_the_same_place() -> None:
    rows = [head_row("static", 100.0), head_row("ranker", 30.0), head_row("ranker", 30.0, N=1)]
    parts = {"heads": {str(place): row for place, row in enumerate(rows)}}
    ceilings = DeviceCeilings(1e9, 1e9, 1e-6).to_dict()
    _, shown = tables({"ceilings": ceilings, "parts": parts, "open": {}})
    assert [row[-1] for row in shown.rows] == ["1.00", "0.30", None]


class TestRun:
    def test_a_wrong_figure_is_a_failure(self) -> None:
        wrong = {"a": {"problems": {"bfloat16": "NaN"}}, "b": {"problems": {}}}
        journal = FigureJournal(rows=wrong, open={"x": "no time left", "y": "died"})
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

    def test_time_that_a_part_leaves_is_for_the_others(self) -> None:
        given: list[float] = []

        def run(part: str, options: KernelOptions) -> FigureJournal:
            given.append(options.budget)
            return FigureJournal()

        bench_kernels.measure(replace(bench_kernels.SMALL, budget=100.0), ("heads", "cycle"), run)
        assert given[0] == pytest.approx(63.6, abs=1)
        assert given[1] == pytest.approx(100.0, abs=1)
