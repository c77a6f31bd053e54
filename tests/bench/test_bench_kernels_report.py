"""Goals, tables and runs of ``bench kernels``: what was measured, what is open, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vocabforge.bench.kernels import run as bench_kernels
from vocabforge.bench.kernels.parts import FigureJournal, KernelOptions
from vocabforge.bench.kernels.run import goals
from vocabforge.bench.kernels.table import head_lines, markdown
from vocabforge.cli.bench import HeadBenchArguments, RoundOptions, bench
from vocabforge.core.errors import UsageError


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
        "share": 0.5,
    }


class TestGoals:
    def state(self, parts: dict[str, Any], goal: str, where: str, real: bool = True) -> dict[str, Any]:
        found = goals(parts, ("llama3-8b",), real=real)
        return next(row for row in found if goal in row["goal"] and row["where"].startswith(where))

    def heads(self, *rows: dict[str, Any]) -> dict[str, Any]:
        return {"heads": {str(number): row for number, row in enumerate(rows)}}

    def test_the_best_dynamic_head_against_the_faster_static_one(self) -> None:
        parts = self.heads(
            head_row("static", 100.0),
            head_row("static", 80.0),
            head_row("ranker", 40.0),
            head_row("context", 20.0),
            head_row("ranker", 1.0, fp8=1),
            head_row("ranker", 2.0, V=151_936),
        )
        row = self.state(parts, "best dynamic", "V = 128,256, N = 10")
        assert (row["measured"], row["by"], row["state"]) == (0.25, "context", "reached")
        row = self.state(parts, "best ranker", "V = 128,256, N = 10")
        assert (row["measured"], row["state"]) == (0.5, "missed")
        assert self.state(parts, "best dynamic", "V = 151,936, N = 10")["state"] == "open"

    def test_without_a_gpu_every_goal_is_open(self) -> None:
        parts = self.heads(head_row("static", 100.0), head_row("ranker", 1.0))
        found = goals(parts, ("llama3-8b", "qwen3-8b"), real=False)
        assert {row["state"] for row in found} == {"open"}
        assert {row["measured"] for row in found} == {None}
        assert len(found) == 2 * 2 * 3 + 2 * 2 * 3 + 2 * 2

    def test_the_worst_case_of_indexed_logits_counts(self) -> None:
        def row(case: str, ratio: float, share: float, k: int = 2048) -> dict[str, Any]:
            return {
                "op": "indexed_logits",
                "case": case,
                "sizes": {"V": 128_256, "N": 10, "k": k},
                "timing": {},
                "baselines": {"gather + matmul": {"ratio": ratio}, "other": {"ratio": 0.1}},
                "share": share,
                "bound": "bytes",
            }

        cases = (row("shared", 9.0, 0.9), row("own", 5.0, 0.85), row("k", 1.0, 0.1, k=512))
        parts = {"ops": {str(number): one for number, one in enumerate(cases)}}
        found = self.state(parts, "gather + matmul", "V = 128,256, N = 10")
        assert (found["measured"], found["by"], found["state"]) == (5.0, "own", "missed")
        found = self.state(parts, "share of the copy", "V = 128,256, N = 10")
        assert (found["measured"], found["state"]) == (0.85, "reached")

    def test_the_fastest_cycle_counts(self) -> None:
        def row(name: str, ms: float, share: float) -> dict[str, Any]:
            return {"name": name, "ms": ms, "share": share, "by": name}

        rows = (row("llama3-8b: plain", 4.0, 0.91), row("llama3-8b: cycle, a", 6.0, 0.9))
        rows += (row("llama3-8b: cycle, b", 5.0, 0.8),)
        parts = {"cycle": {one["name"]: one for one in rows}}
        assert self.state(parts, "plain decoding", "llama3-8b")["state"] == "reached"
        found = self.state(parts, "speculative cycle", "llama3-8b")
        assert (found["measured"], found["by"], found["state"]) == (0.8, "llama3-8b: cycle, b", "missed")


def test_heads_stand_beside_the_static_one_of_the_same_place() -> None:
    rows = [head_row("static", 100.0), head_row("ranker", 30.0), head_row("ranker", 30.0, N=1)]
    lines = head_lines(rows)
    assert lines[3].endswith("| 0.30 |")
    assert lines[4].endswith("| - |")


class TestRun:
    def test_what_was_not_measured_is_open_and_says_why(self) -> None:
        name = bench_kernels.planned(bench_kernels.REAL)["heads"][0]
        journal = FigureJournal(rows={name: {"problems": {}}})
        found = bench_kernels.open_figures({"heads": journal}, None)
        assert name not in found["heads"]
        assert set(found["heads"].values()) == {"not reached"}
        assert set(found["cycle"].values()) == {"not part of this run"}
        found = bench_kernels.open_figures({"heads": journal}, "no GPU")
        assert name in found["heads"]
        assert "no GPU" in found["heads"][name]

    def test_a_wrong_figure_is_open_and_a_failure(self) -> None:
        name = bench_kernels.planned(bench_kernels.REAL)["heads"][0]
        journal = FigureJournal(
            rows={name: {"problems": {"bfloat16": "NaN"}}}, open={"x": "no time left", "y": "died"}
        )
        assert name in bench_kernels.open_figures({"heads": journal}, None)["heads"]
        assert bench_kernels.failures({"heads": journal}) == {"heads": {name: "bfloat16: NaN", "y": "died"}}

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

    @pytest.mark.parametrize(
        ("setting", "told"),
        [
            ("shape=small", "did you mean shapes"),
            ("shapes=nothing", "there is no shape of this name"),
            ("rows=ten", "cannot be read"),
            ("ops=indexed_logit", "did you mean indexed_logits"),
            ("parts=all", "there is no part of this name"),
            ("device", "no KEY=VALUE"),
        ],
    )
    def test_settings_that_there_are_not(self, setting: str, told: str) -> None:
        with pytest.raises(UsageError, match=told):
            bench_kernels.bench_kernels(["device=cpu", setting])

    def test_time_that_a_part_leaves_is_for_the_others(self) -> None:
        given: list[float] = []

        def run(part: str, options: KernelOptions) -> FigureJournal:
            given.append(options.budget)
            return FigureJournal()

        bench_kernels.measure(replace(bench_kernels.SMALL, budget=100.0), ("drafting", "cycle"), run)
        assert given[0] == pytest.approx(40.0, abs=1)
        assert given[1] == pytest.approx(100.0, abs=1)

    def test_a_device_that_is_not_there(self) -> None:
        with pytest.raises(UsageError, match="no device meta2"):
            bench_kernels.bench_kernels(["device=meta2"])

    def test_one_part_with_one_op(self) -> None:
        result = bench_kernels.bench_kernels(["device=cpu", "parts=ops", "ops=silu_mul"])
        assert list(result["parts"]) == ["ops"]
        assert all(row["timing"]["us"] > 0 for row in result["parts"]["ops"].values())
        assert result["failed"] == {}
        text = markdown(result)
        assert text.startswith("**no GPU was used")
        assert "silu_mul" in text
        assert "not reached" not in text  # on a CPU the reason is the missing GPU
        assert text.count("  - qwen3-8b: cycle") == 5
        assert "  - qwen3-8b" not in markdown(result, brief=True)

    def test_on_the_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        settings = ["device=cpu", "parts=ops", "ops=silu_mul"]
        bench("kernels", RoundOptions(repeats=1), HeadBenchArguments(), settings)
        printed = capsys.readouterr().out
        assert "| silu_mul R=" in printed
        assert "heads: " in printed
