"""The timing protocol of the kernels' benchmark, and the checks before anything is timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from bench import timing as bench_kernels_timing
from bench.cases.types import OpCase, close, normal
from bench.ops import check_case, measure_case
from bench.parts import KernelOptions
from bench.table import markdown
from bench.timing import DeviceCeilings, Protocol, time_calls

CPU = torch.device("cpu")
QUICK = Protocol(CPU, seconds=1.0, least=1, most=2, most_copies=3)
CEILINGS = DeviceCeilings(copy=1e9, matmul=1e10, node=1e-6)


def doubling(**changes: Any) -> OpCase:
    """An op that doubles; ``changes`` break it."""

    def make(random: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
        return {"x": normal((4, 8), random, dtype)}

    case = OpCase(
        name="doubling",
        op="double",
        sizes={"n": 32},
        make=make,
        run=lambda inputs, backend: inputs["x"] * 2,
        reference=lambda inputs: inputs["x"] + inputs["x"],
        floor_bytes=128.0,
        baselines={"add": lambda inputs: inputs["x"] + inputs["x"]},
    )
    return replace(case, **changes)


def measured(case: OpCase, *, plain: bool = True) -> dict[str, Any]:
    options = KernelOptions("cpu", backend="reference", measure=1.0, ceilings=CEILINGS)
    return measure_case(case, options, plain=plain)


def shown(row: dict[str, Any]) -> str:
    return markdown({"ceilings": CEILINGS.to_dict(), "parts": {"ops": {"a": row}}, "open": {}})


class TestTiming:
    def test_calls_take_turns_and_all_are_counted(self) -> None:
        order: list[int] = []
        timing = time_calls([lambda n=n: order.append(n) for n in range(3)], QUICK)  # type: ignore[misc]
        assert order[:3] == [0, 1, 0]  # two to warm up, one to know how long it takes
        order = order[3:]
        assert order == [0, 1, 2] * (len(order) // 3)
        assert (timing.calls, timing.method) == (3, "clock")
        assert timing.low <= timing.seconds <= timing.high
        assert timing.repeats in (QUICK.least, QUICK.most)

    @pytest.mark.parametrize(("replay_us", "turns"), [(50.0, 5), (900.0, 1), (1e-3, 64)])
    def test_a_graph_holds_as_many_turns_as_its_own_time_asks_for(
        self, monkeypatch: pytest.MonkeyPatch, replay_us: float, turns: int
    ) -> None:
        """Not the time of calls made one by one, most of which is spent in starting them."""
        made: list[int] = []

        class Recorded:
            def __init__(self, call: Any, device: torch.device) -> None:
                self.replay = call

        def queued(action: Any, device: torch.device, busy: float = 0.0) -> float:
            made.clear()
            action()
            return len(made) / 2 * replay_us * 1e-6

        monkeypatch.setattr(bench_kernels_timing, "Replay", Recorded)
        monkeypatch.setattr(bench_kernels_timing, "_queued", queued)
        monkeypatch.setattr(bench_kernels_timing, "_events", lambda action, device: 1e-3)
        monkeypatch.setattr(Protocol, "synchronize", lambda self: None)
        protocol = Protocol(torch.device("cuda"), least=1, most=1)
        timing = time_calls([lambda n=n: made.append(n) for n in range(2)], protocol)  # type: ignore[misc]
        assert (timing.method, timing.calls) == ("graph", 2 * turns)
        assert timing.seconds == pytest.approx(replay_us * 1e-6 / 2)


class TestCheck:
    def problem(self, case: OpCase) -> str | None:
        found = check_case(case, CPU, torch.bfloat16, "reference", 1)
        return found["problem"] or found["graph"]

    def test_a_right_op_passes(self) -> None:
        assert self.problem(doubling()) is None

    def test_an_output_that_is_not_written_is_found(self) -> None:
        def run(inputs: Any, backend: str) -> torch.Tensor:
            out = torch.empty_like(inputs["x"])
            out[:3] = inputs["x"][:3] * 2
            return out

        assert "NaN" in str(self.problem(doubling(run=run)))

    def test_bits_that_change_between_runs_are_found(self) -> None:
        calls: list[int] = []

        def run(inputs: Any, backend: str) -> torch.Tensor:
            calls.append(1)
            return inputs["x"] * 2 + (1e-2 if len(calls) == 2 else 0.0)

        assert self.problem(doubling(run=run)) == "the same inputs gave other bits"

    def test_a_replay_that_does_nothing_is_found(self) -> None:
        kept: dict[int, torch.Tensor] = {}

        def run(inputs: Any, backend: str) -> torch.Tensor:
            return kept.setdefault(inputs["x"].data_ptr(), inputs["x"] * 2)

        assert "replay" in str(self.problem(doubling(run=run)))

    def test_inputs_that_are_written_to_are_put_back(self) -> None:
        def run(inputs: Any, backend: str) -> torch.Tensor:
            return inputs["x"].mul_(2)

        found = doubling(run=run, reference=lambda inputs: inputs["x"].mul_(2), mutates=("x",))
        assert self.problem(found) is None
        assert self.problem(replace(found, mutates=())) is not None

    @pytest.mark.parametrize(
        ("ours", "theirs", "told"),
        [
            ([1.0, float("nan")], [1.0, 2.0], "NaN"),
            ([1.0, float("-inf")], [1.0, 2.0], "infinities"),
            ([1.0, float("inf")], [1.0, float("-inf")], "infinities"),
            ([1.0, 2.1], [1.0, 2.0], "relative error"),
            ([1.0, float("-inf")], [1.0, float("-inf")], None),
        ],
    )
    def test_close(self, ours: list[float], theirs: list[float], told: str | None) -> None:
        found = close((torch.tensor(ours),), (torch.tensor(theirs),), 1e-3)
        assert found is None if told is None else told in str(found)


class TestMeasuring:
    def test_a_row_holds_times_floor_and_baselines(self) -> None:
        row = measured(doubling())
        assert row["problems"] == {}
        assert row["floor_us"] == pytest.approx(0.128)
        assert row["share"] == pytest.approx(row["floor_us"] / row["timing"]["us"])
        assert set(row["baselines"]) == {"reference", "add"}
        ratio = row["baselines"]["add"]["us"] / row["timing"]["us"]
        assert row["baselines"]["add"]["ratio"] == pytest.approx(ratio)
        assert (row["copies"], row["cold"]) == (2, False)

    def test_a_wrong_op_is_not_timed(self) -> None:
        wrong = doubling(run=lambda inputs, backend: inputs["x"], dtypes=(torch.bfloat16, torch.float16))
        row = measured(wrong)
        assert set(row["problems"]) == {"bfloat16", "float16"}
        assert "timing" not in row
        assert "wrong: bfloat16" in shown(row)

    def test_a_baseline_that_fails_says_why(self) -> None:
        def failing(inputs: Any) -> None:
            raise RuntimeError("out of memory\nmore")

        row = measured(doubling(baselines={"bad": failing}))
        assert row["baselines"]["bad"] == {"problem": "out of memory"}
        assert "bad -" in shown(row)
