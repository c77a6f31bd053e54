"""The timing protocol of the kernels' benchmark, the checks before anything is timed, and the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from bench import timing
from bench.cases import OP_BENCHES
from bench.cases.types import OpCase, close, normal
from bench.figures import CEILINGS, figures
from bench.ops import measure_case, problem_of
from bench.table import markdown
from bench.timing import Protocol, time_calls

CPU = torch.device("cpu")
QUICK = Protocol(CPU, seconds=1.0, least=1, most=2, most_copies=3)
LIMITS = {"copy": 1e9, "product": 1e10, "node_us": 1.0}


def doubling(**changes: Any) -> OpCase:
    """An op that doubles; ``changes`` break it."""

    def make(random: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
        return {"x": normal((4, 8), random, dtype)}

    case = OpCase(
        name="doubling",
        make=make,
        run=lambda inputs, backend: inputs["x"] * 2,
        reference=lambda inputs: inputs["x"] + inputs["x"],
        floor_bytes=128.0,
        plain=lambda inputs: inputs["x"] + inputs["x"],
    )
    return replace(case, **changes)


def measured(case: OpCase) -> dict[str, Any]:
    return measure_case(case, QUICK, "reference")


def shown(row: dict[str, Any]) -> str:
    return markdown({"ceilings": {"ceilings": LIMITS}, "ops": {"doubling": row}})


class TestTiming:
    def test_calls_take_turns_and_all_are_counted(self) -> None:
        order: list[int] = []
        found = time_calls([lambda n=n: order.append(n) for n in range(3)], QUICK)  # type: ignore[misc]
        assert order[:3] == [0, 1, 0]  # two to warm up, one to know how long it takes
        order = order[3:]
        assert order == [0, 1, 2] * (len(order) // 3)
        assert found["calls"] == 3
        assert found["low_us"] <= found["us"] <= found["high_us"]

    @pytest.mark.parametrize(("replay_us", "turns"), [(50.0, 5), (900.0, 1), (1e-3, 64)])
    def test_a_graph_holds_as_many_turns_as_its_own_time_asks_for(
        self, monkeypatch: pytest.MonkeyPatch, replay_us: float, turns: int
    ) -> None:
        """Not the time of calls made one by one, most of which is spent in starting them."""
        self.gpu(monkeypatch, replay_us)
        found = time_calls([lambda: self.made.append(1)] * 2, self.PROTOCOL)
        assert found["calls"] == 2 * turns
        assert found["us"] == pytest.approx(replay_us / 2)

    PROTOCOL = Protocol(torch.device("cuda"), least=1, most=1)
    made: list[int]

    def gpu(self, monkeypatch: pytest.MonkeyPatch, replay_us: float) -> None:
        """Pretend that a replay of two calls takes ``replay_us``, and that plain calls take a millisecond."""
        self.made = []

        class Recorded:
            def __init__(self, call: Any, device: torch.device) -> None:
                self.replay = call

        def queued(action: Any, device: torch.device, busy: float = 0.0) -> float:
            self.made.clear()
            action()
            return len(self.made) / 2 * replay_us * 1e-6

        monkeypatch.setattr(timing, "Replay", Recorded)
        monkeypatch.setattr(timing, "_queued", queued)
        monkeypatch.setattr(timing, "_events", lambda action, device: 1e-3)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


class TestCheck:
    def problem(self, case: OpCase) -> str | None:
        return problem_of(case, CPU, torch.bfloat16, "reference")

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
    def test_a_row_is_shown_beside_its_floor_and_the_plain_form(self) -> None:
        row = measured(doubling())
        assert (row.get("problem"), row["bytes"], row["cold"]) == (None, 128.0, False)
        row |= {"us": 0.5, "low_us": 0.4, "high_us": 0.75, "plain": 1.0}
        cells = [cell.strip() for cell in shown(row).splitlines()[-1].split("|")[1:-1]]
        assert cells == ["doubling", "0.50", "0.40-0.75", "0.13", "26% (in cache)", "0", "2.00"]

    def test_a_wrong_op_is_not_timed(self) -> None:
        wrong = doubling(run=lambda inputs, backend: inputs["x"], dtypes=(torch.bfloat16, torch.float16))
        row = measured(wrong)
        assert [part.split(": ")[0] for part in row["problem"].split("; ")] == ["bfloat16", "float16"]
        assert "us" not in row
        assert "wrong: bfloat16" in shown(row)

    def test_a_plain_form_that_fails_says_why(self) -> None:
        def failing(inputs: Any) -> None:
            raise RuntimeError("out of memory\nmore")

        row = measured(doubling(plain=failing))
        assert row["plain"] == "out of memory"
        assert "| out of memory |" in shown(row)

    def test_a_head_is_compared_with_the_static_one_of_its_sizes(self) -> None:
        row = {"low_us": 1.0, "high_us": 1.0, "bytes": 1.0, "flops": 1.0, "cold": True}
        sizes = {"V=9 N=1": 4.0, "V=9 N=10": 8.0}
        rows = {f"head static 5 {each}": row | {"us": us} for each, us in sizes.items()}
        rows |= {f"head full {each}": row | {"us": 16.0} for each in sizes}
        last = {
            line.split("|")[1].strip(): line.split("|")[-2].strip()
            for line in markdown({"heads": rows}).splitlines()
            if "head full" in line
        }
        assert last == {"head full V=9 N=1": "4.00", "head full V=9 N=10": "2.00"}


class TestFigures:
    def test_real_sizes_are_all_there_with_the_goals_first(self) -> None:
        found = figures("cuda", small=False)
        names = [one.name for one in found]
        assert len(names) == len(set(names))
        assert names[0] == CEILINGS
        for rows in (1, 10, 60):
            for vocab in (128_256, 151_936):
                assert f"head static 32,768 V={vocab} N={rows}" in names
                assert f"indexed_logits N={rows} V={vocab} k=2048 own" in names
        goals = [one.goal for one in found]
        assert goals == sorted(goals, reverse=True)
        assert {one.part for one in found if one.goal} == {CEILINGS, "cycle", "heads", "ops"}
        assert {name.split()[0] for name in names} >= {*OP_BENCHES, "head", "cycle"}

    def test_a_pattern_chooses(self) -> None:
        chosen = {one.name for one in figures("cuda", False, r"^silu_mul.*i=14336|^cycle llama3-8b, plain")}
        assert chosen == {CEILINGS, "cycle llama3-8b, plain"} | {
            f"silu_mul R={rows} i=14336" for rows in (1, 10, 60)
        }
        assert figures("cuda", False, "of nobody") == []
