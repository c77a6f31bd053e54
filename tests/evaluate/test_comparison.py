"""Evaluations beside each other: what is compared, what is refused, and when a difference is called one."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluate.comparison_support import LENGTH, Made, results_of, write_run
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.evaluate.comparison.compare import compare_runs
from vocabforge.evaluate.comparison.figures import difference, share_difference, verdict_of
from vocabforge.evaluate.comparison.results import RunComparison
from vocabforge.evaluate.comparison.runs import EvaluationRun, open_runs
from vocabforge.evaluate.results.intervals import columns_of_mean
from vocabforge.evaluate.results.schema import Figure

Compare = Callable[..., RunComparison]
SAMPLED: dict[str, Any] = {"sampling": {"temperature": 0.7, "top_p": 1.0}, "seeds": [0]}


@pytest.fixture
def all_draws() -> None:
    """Keeps the number of draws that users get."""


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Enough to tell what differs from what does not; tests that measure an interval ask for ``all_draws``."""
    if "all_draws" not in request.fixturenames:
        monkeypatch.setattr("vocabforge.evaluate.results.intervals.RESAMPLES", 200)


def refused(*made: Made) -> list[str]:
    """The table that says why evaluations cannot be compared, line by line; nothing is read for it."""
    runs = [
        EvaluationRun(label, Path(label), results_of(one), label)
        for label, one in zip("ABC", made, strict=False)
    ]
    with pytest.raises(MismatchError, match="cannot be compared") as caught:
        compare_runs(runs)
    return str(caught.value.got).splitlines()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Made], Path]:
    """Writes each evaluation once."""
    known: dict[str, Path] = {}

    def write(label: str, made: Made) -> Path:
        key = f"{label} {made}"
        if key not in known:
            known[key] = write_run(tmp_path_factory.mktemp("run") / label, made)
        return known[key]

    return write


@pytest.fixture
def compared(written: Callable[[str, Made], Path]) -> Callable[..., RunComparison]:
    """Evaluations called A, B, ... and compared."""

    def compare(*made: Made, **options: Any) -> RunComparison:
        given = [f"{label}={written(label, one)}" for label, one in zip("ABCDEF", made, strict=False)]
        return compare_runs(open_runs(given), **options)

    return compare


def verdicts(comparison: RunComparison, method: str, group: str = "overall") -> dict[str, str]:
    return {
        row.figure: row.verdict
        for row in comparison.differences
        if (row.method, row.group) == (method, group)
    }


def test_figures_are_those_of_the_rows_and_each_speed_up_is_over_its_own_plain_decoding(
    compared: Compare,
) -> None:
    slow = Made(machine=0.5)
    found = compared(Made(jitter=0.0), replace(slow, jitter=0.0))
    assert (found.questions, found.reference, found.greedy) == (40, "A:eagle3", True)
    assert [row.name for row in found.methods] == [
        f"{run}:{one}" for run in "AB" for one in ("plain", "eagle3", "ngram")
    ]
    rows = [
        json.loads(line)
        for line in (Path(found.runs[0].folder) / "answers/eagle3.jsonl").read_text().splitlines()
    ]
    lengths = [length for row in rows for length in row["choices"][0]["accept_lengths"]]
    of = {row.name: row.figures["overall"] for row in found.methods}
    assert of["A:eagle3"]["accepted_length"].value == pytest.approx(sum(lengths) / len(lengths))
    assert of["A:eagle3"]["forwards_per_token"].value == pytest.approx((len(lengths) + 40) / (40 * LENGTH))
    speeds = [LENGTH / row["choices"][0]["wall_time"][0] for row in rows]
    assert of["A:eagle3"]["tokens_per_s"].value == pytest.approx(np.mean(speeds))
    assert of["B:eagle3"]["tokens_per_s"].value == pytest.approx(np.mean(speeds) / 2)
    assert (
        of["B:eagle3"]["speedup"].value
        == pytest.approx(of["A:eagle3"]["speedup"].value)
        == pytest.approx(3.0)
    )
    assert found.groups == {"overall": 40, "mt_bench": 20, "qa": 10, "rag": 10}
    assert RunComparison.model_validate_json(found.model_dump_json()) == found


def test_a_difference_is_called_one_only_where_the_interval_excludes_zero(compared: Compare) -> None:
    better = Made(methods={"plain": (1,), "eagle3": (4, 3)}, speeds={"eagle3": 300.0})
    found = compared(Made(), better)
    said = verdicts(found, "B:eagle3")
    assert said["accepted_length"] == said["forwards_per_token"] == "better"
    assert said["speedup"] == "no difference shown"
    assert set(verdicts(found, "A:ngram").values()) == {"worse"}
    row = found.differences_of("overall")["B:eagle3", "accepted_length"]
    assert row.paired
    assert row.difference is not None
    assert row.difference.low is not None
    assert 0 < row.difference.low < row.difference.value < row.difference.high
    values = {row.name: row.figures["overall"]["accepted_length"].value for row in found.methods}
    assert row.difference.value == pytest.approx(values["B:eagle3"] - values["A:eagle3"])
    assert row.relative == pytest.approx(values["B:eagle3"] / values["A:eagle3"] - 1)
    assert found.differences_of("qa")["B:eagle3", "accepted_length"].verdict == "better"


@pytest.mark.parametrize(
    ("figure", "low", "high", "said"),
    [
        ("accepted_length", 0.1, 0.2, "better"),
        ("accepted_length", -0.2, -0.1, "worse"),
        ("forwards_per_token", -0.2, -0.1, "better"),
        ("forwards_per_token", 0.1, 0.2, "worse"),
        ("speedup", -0.1, 0.2, "no difference shown"),
        ("speedup", 0.0, 0.2, "no difference shown"),
        ("speedup", -0.2, 0.0, "no difference shown"),
        ("speedup", None, None, "not judged"),
    ],
)
def test_verdicts(figure: str, low: float | None, high: float | None, said: str) -> None:
    value = None if low is None or high is None else (low + high) / 2
    assert verdict_of(figure, Figure(value=value, low=low, high=high)) == said


def _columns(speeds: np.ndarray) -> dict[str, np.ndarray]:
    return {"tokens_per_s": columns_of_mean(speeds)}


@pytest.mark.usefixtures("all_draws")
def test_pairing_removes_what_questions_have_of_their_own_and_unpaired_draws_are_independent() -> None:
    random = np.random.default_rng(5)
    hard = random.normal(100, 20, size=(200, 1))
    first, second = (_columns(hard + random.normal(0, 1, size=(200, runs))) for runs in (1, 3))
    widths = {}
    for paired in (True, False):
        found = difference(first, second, "tokens_per_s", paired=paired)
        assert found.value == pytest.approx(
            first["tokens_per_s"][..., 0].mean() - second["tokens_per_s"][..., 0].mean()
        )
        assert found.low is not None
        assert found.high is not None
        widths[paired] = found.high - found.low
    # Standard errors of the two: sqrt(1 + 1/3) and 20 sqrt(2), over sqrt(200); an interval is 2 x 1.96 of them.
    assert widths[True] == pytest.approx(3.92 * np.sqrt(4 / 3 / 200), rel=0.15)
    assert widths[False] == pytest.approx(3.92 * 20 * np.sqrt(2 / 200), rel=0.15)


@pytest.mark.usefixtures("all_draws")
def test_where_nothing_differs_a_difference_is_shown_about_once_in_twenty() -> None:
    random = np.random.default_rng(11)
    shown = 0
    for _ in range(200):
        hard = random.normal(100, 20, size=(60, 1))
        sides = [_columns(hard + random.normal(0, 5, size=(60, 1))) for _ in range(2)]
        shown += (
            verdict_of("tokens_per_s", difference(*sides, "tokens_per_s", paired=True))
            != "no difference shown"
        )
    assert 2 <= shown <= 22, "of 200; 10 are expected"


REFUSED = {
    "target": Made(facts={"target": {"fingerprint": "99" * 32}}),
    "tokenizer and template": Made(facts={"target": {"tokenizer": "99" * 32}}),
    "target dtype": Made(facts={"target": {"dtype": "float32"}}),
    "questions asked": Made(facts={"benchmark": {"asked": "99" * 32}}),
    "prompt format": Made(settings={"prompt_format": "raw"}),
    "system message": Made(settings={"system": "Be short."}),
    "max new tokens": Made(settings={"max_new_tokens": 99}),
    "temperature": Made(settings=SAMPLED),
    "top p": Made(settings={"sampling": {"temperature": 0.0, "top_p": 0.9, "top_k": 0}}),
    "repetition penalty": Made(
        settings={"sampling": {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.1}}
    ),
}


@pytest.mark.parametrize("fact", REFUSED)
def test_what_decides_the_figures_must_be_the_same(fact: str) -> None:
    table = refused(Made(), REFUSED[fact])
    assert table[1].split() == ["A", "B"]
    assert [line.strip().split("  ")[0] for line in table[2:]] == [fact]


def test_all_reasons_are_given_at_once_for_all_runs() -> None:
    other = Made(
        facts={"target": {"name": "qwen", "fingerprint": "99" * 32, "dtype": "float32"}},
        settings={"max_new_tokens": 99, "system": "Be short. " * 20},
    )
    table = refused(Made(), Made(), other)
    assert table[1].split() == ["A", "B", "C"]
    facts = ["target", "target dtype", "system message", "max new tokens"]
    assert [line.strip().split("  ")[0] for line in table[2:]] == facts
    assert "abababababab" in table[2]
    assert "qwen (999999999999)" in table[2]
    assert max(map(len, table)) < 200, "a long message is shortened"


def test_a_transform_that_a_run_did_not_know_is_one_that_it_did_without(compared: Compare) -> None:
    known = {"sampling": {"temperature": 0, "top_p": 1.0, "repetition_penalty": 1.0}}
    assert compared(Made(), Made(settings=known)).questions == 40


def test_a_target_without_a_hash_is_known_by_its_name(compared: Compare) -> None:
    nameless = {"target": {"fingerprint": None, "tokenizer": None}}
    found = compared(Made(), Made(facts=nameless))
    assert any("by name alone" in line for line in found.warnings)
    assert any("tokenizer" in line for line in found.warnings)
    (line,) = refused(Made(), Made(facts={"target": {"name": "other", "fingerprint": None}}))[2:]
    assert line.split() == ["target", "llama-3-8b-instruct", "other"]


def test_other_seeds_are_compared_unpaired_and_it_is_said(compared: Compare) -> None:
    first = Made(settings={**SAMPLED, "seeds": [0, 1]})
    other = Made(settings={**SAMPLED, "seeds": [2]}, scramble=1)
    found = compared(first, other)
    rows = found.differences_of("overall")
    assert not rows["B:eagle3", "accepted_length"].paired
    assert rows["A:ngram", "accepted_length"].paired, "of the same run"
    values = {row.name: row.figures["overall"]["accepted_length"].value for row in found.methods}
    # Pooled over all steps of both runs, not the mean of the runs' means.
    assert rows["A:ngram", "accepted_length"].difference.value == pytest.approx(
        values["A:ngram"] - values["A:eagle3"], rel=1e-9
    )
    assert any("not paired" in line for line in found.warnings)
    assert found.outputs == []
    same = compared(first, replace(first, scramble=1))
    assert same.differences_of("overall")["B:eagle3", "accepted_length"].paired
    assert not any("not paired" in line for line in same.warnings)


OTHER_MACHINE = {"environment": {"gpu": "Another one", "torch": "2.12.0"}}


def test_times_of_another_machine_are_shown_and_not_compared(compared: Compare) -> None:
    found = compared(Made(), Made(facts=OTHER_MACHINE, machine=2.0))
    said = verdicts(found, "B:eagle3")
    assert said == {
        "accepted_length": "no difference shown",
        "forwards_per_token": "no difference shown",
        "speedup": "not judged",
        "tokens_per_s": "not judged",
    }
    rows = found.differences_of("overall")
    assert rows["B:eagle3", "speedup"].difference is rows["B:eagle3", "tokens_per_s"].relative is None
    assert rows["B:eagle3", "accepted_length"].difference is not None
    assert len(found.differences_of("rag")) == 3 * 4
    assert {row.name: row.figures["overall"]["tokens_per_s"].value for row in found.methods}["B:plain"] > 150
    assert found.runs[1].drift is None
    assert [row.machine for row in found.runs] == [0, 1]
    assert any("different machines" in line and "Another one" in line for line in found.warnings)
    assert set(found.differing) == {"gpu", "torch"}


def test_times_of_another_machine_are_compared_where_asked_for(compared: Compare) -> None:
    found = compared(Made(), Made(facts=OTHER_MACHINE, machine=2.0), across_machines=True)
    assert found.runs[1].drift_verdict == "better"
    assert verdicts(found, "B:eagle3")["speedup"] == "no difference shown"
    row = found.differences_of("overall")["B:eagle3", "tokens_per_s"]
    assert row.relative == pytest.approx(1.0, abs=0.05)
    assert row.verdict == "not judged", "plain decoding is faster there, too"
    assert any("because you asked" in line for line in found.warnings)


def test_a_machine_that_was_not_equally_fast_is_reported(compared: Compare) -> None:
    found = compared(Made(), Made(machine=0.9))
    (line,) = (line for line in found.warnings if "not equally fast" in line)
    assert "-10." in line or "-9." in line
    run = found.runs[1]
    assert run.drift is not None
    assert run.drift.value == pytest.approx(
        run.plain_tokens_per_s.value - found.runs[0].plain_tokens_per_s.value
    )
    said = verdicts(found, "B:eagle3")
    assert (said["tokens_per_s"], said["speedup"]) == ("not judged", "no difference shown")
    assert verdicts(found, "A:ngram")["tokens_per_s"] == "worse", "in the reference's own run"
    assert "equally fast" in found.differences_of("rag")["B:eagle3", "tokens_per_s"].reason


def test_figures_count_only_what_every_run_answered(compared: Compare) -> None:
    whole = compared(Made(questions=38), Made(questions=38))
    found = compared(Made(questions=40, left_out=[39]), Made(questions=40, left_out=[40]))
    assert (found.questions, found.groups["overall"]) == (38, 38)
    assert any("2 of 40 questions" in line for line in found.warnings)
    lengths = [
        {row.name: row.figures["overall"]["accepted_length"] for row in one.methods} for one in (whole, found)
    ]
    assert lengths[0] == lengths[1]
    with pytest.raises(MismatchError, match="no question"):
        compared(Made(questions=2, left_out=[1]), Made(questions=2, left_out=[2]))


def test_one_question_gives_no_verdict(compared: Compare) -> None:
    found = compared(Made(questions=1), Made(questions=1))
    row = found.differences_of("overall")["B:eagle3", "accepted_length"]
    assert (row.verdict, row.reason) == ("not judged", "fewer than two questions")
    assert row.difference == Figure(value=0.0)
    stopped = compared(Made(), Made(speeds={"plain": math.inf}))  # its clock showed nothing
    row = stopped.differences_of("overall")["B:eagle3", "speedup"]
    assert (row.difference, row.verdict, row.reason) == (Figure(), "not judged", "nothing to divide by")


def test_greedy_outputs_of_two_runs_are_compared_by_token_id(compared: Compare) -> None:
    found = compared(Made(), Made(other_at={7: 5, 9: 2}), Made(methods={"plain": (1,), "own": (2,)}))
    by_name = {(row.first, row.second): row for row in found.outputs}
    assert set(by_name) == {
        *((f"A:{name}", f"B:{name}") for name in ("plain", "eagle3", "ngram")),
        ("A:plain", "C:plain"),
    }
    row = by_name["A:plain", "B:plain"]
    assert (row.identical, row.compared) == (38, 40)
    assert (row.question_id, row.turn, row.position) == (7, 0, 5)
    assert (row.expected, row.got) == (54, 55)
    assert by_name["A:plain", "C:plain"].identical == 40
    (line,) = (line for line in found.warnings if "differs from" in line)
    assert "B:plain" in line
    assert "first at question 7, turn 1, token 6" in line


def test_captured_passes_are_no_other_machine_but_are_told(compared: Compare) -> None:
    found = compared(
        Made(facts={"run_facts": {"passes": "captured"}}),
        Made(facts={"run_facts": {"passes": "as they are"}}),
    )
    assert found.differing["passes"] == {"A": "captured", "B": "as they are"}
    assert any(line.startswith("passes of A ran captured, those of B as they are") for line in found.warnings)
    assert found.runs[1].machine == found.runs[0].machine
    assert not any("passes" in line for line in compared(Made(), Made()).warnings)


def test_a_fault_of_a_method_is_repeated(compared: Compare) -> None:
    found = compared(Made(), Made())
    assert next(line for line in found.warnings if "fault" in line).startswith(
        "A:ngram is not plain decoding"
    )


def test_a_copy_of_a_run_is_noticed(tmp_path: Path) -> None:
    write_run(tmp_path / "A", Made())
    shutil.copytree(tmp_path / "A", tmp_path / "B")
    found = compare_runs(open_runs([str(tmp_path / "A"), str(tmp_path / "B")]))
    assert any("copy" in line for line in found.warnings)
    assert verdicts(found, "B:eagle3")["speedup"] == "no difference shown"


def test_the_reference(compared: Compare) -> None:
    made = (Made(methods={"plain": (1,), "slow": (2,), "fast": (3,)}), Made())
    assert compared(*made).reference == "A:fast"
    plain = compared(*made, reference="B:plain")
    assert plain.reference == "B:plain"
    assert verdicts(plain, "B:eagle3")["accepted_length"] == "better"
    assert {row.method for row in plain.differences} == {"A:slow", "A:fast", "B:eagle3", "B:ngram"}
    with pytest.raises(UsageError) as caught:
        compared(*made, reference="A:slwo")
    assert "did you mean A:slow?" in str(caught.value)
    alone = compared(Made(methods={"plain": (1,)}), Made())
    assert alone.reference == "A:plain"


def _answers(right: list[int], count: int = 40, runs: int = 1) -> np.ndarray:
    values = np.zeros((count, runs))
    values[right] = 1.0
    return values


def test_shares_of_right_answers() -> None:
    # Bonett and Price by hand: n = 40, 4 and 0 changed; centre 4/42, variance (4 + 2)/42 - centre^2.
    found = share_difference(_answers([0, 1, 2, 3]), _answers([]), paired=True)
    centre = 4 / 42
    half = 1.959964 * np.sqrt((6 / 42 - centre**2) / 42)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, centre - half, centre + half))
    assert verdict_of("quality", found) == "no difference shown"
    many = share_difference(_answers(list(range(12))), _answers([]), paired=True)
    assert verdict_of("quality", many) == "better"
    assert share_difference(_answers(list(range(12)), runs=3), _answers([]), paired=True) == many
    # Newcombe (1998), table II, first example: 56/70 and 48/80 give 0.0524 to 0.3339.
    found = share_difference(_answers(list(range(56)), 70), _answers(list(range(48)), 80), paired=False)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
