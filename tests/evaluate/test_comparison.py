"""Evaluations beside each other: what is compared, what is refused, and when a difference is called one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tests.evaluate.comparison_support import Made, results_of, write_run
from tests.evaluate.eval_fakes import ROWS, FakeGenerator, FakeMethod, make_benchmark, make_tokenizer
from vocabforge.core.errors import MismatchError, UsageError
from vocabforge.evaluate.comparison.compare import RunComparison, compare_runs, ratio_of
from vocabforge.evaluate.comparison.report import comparison_table, headline, render_comparison
from vocabforge.evaluate.comparison.runs import EvaluationRun, open_runs
from vocabforge.evaluate.evaluation import Evaluation, Provenance, evaluate_methods
from vocabforge.evaluate.results.intervals import columns_of_mean, verdict_of
from vocabforge.evaluate.results.schema import Figure
from vocabforge.evaluate.results.settings import RunSettings
from vocabforge.evaluate.run.environment import describe_environment

Compare = Callable[..., RunComparison]
SAMPLED: dict[str, Any] = {"sampling": {"temperature": 0.7, "top_p": 1.0}, "seeds": [0]}
OTHER_MACHINE = {"environment": {"gpu": "Another one", "torch": "2.12.0"}}


@pytest.fixture
def all_draws() -> None:
    """Keeps the number of draws that users get."""


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Enough to tell what differs from what does not; tests that measure an interval ask for ``all_draws``."""
    if "all_draws" not in request.fixturenames:
        monkeypatch.setattr("vocabforge.evaluate.results.intervals.RESAMPLES", 200)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Evaluations called A, B, ..., each written once, and compared."""
    known: dict[str, Path] = {}

    def compare(*made: Made, **options: Any) -> RunComparison:
        given = []
        for label, one in zip("ABCDEF", made, strict=False):
            key = f"{label} {one}"
            if key not in known:
                known[key] = write_run(tmp_path_factory.mktemp("run") / label, one)
            given.append(f"{label}={known[key]}")
        return compare_runs(open_runs(given), **options)

    return compare


def refused(*made: Made) -> list[str]:
    """The table that says why evaluations cannot be compared, line by line; nothing is read for it."""
    runs = [
        EvaluationRun(label, Path(label), results_of(one), label)
        for label, one in zip("ABC", made, strict=False)
    ]
    with pytest.raises(MismatchError, match="cannot be compared") as caught:
        compare_runs(runs)
    return str(caught.value.got).splitlines()


def figures(comparison: RunComparison, name: str, group: str = "overall") -> dict[str, float | None]:
    """Method -> value of a figure."""
    return {row.name: row.figures[group][name].value for row in comparison.methods}


def ratios(comparison: RunComparison, method: str, group: str = "overall") -> dict[str, Figure]:
    return next(row.ratios for row in comparison.methods if row.name == method)[group]


def verdicts(comparison: RunComparison, method: str, group: str = "overall") -> list[str]:
    """Of accepted length and speed-up."""
    return [verdict_of(found) for found in ratios(comparison, method, group).values()]


def noted(comparison: RunComparison, words: str) -> bool:
    return any(words in line for line in comparison.notes)


def test_figures_are_those_that_the_evaluations_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another way to the same numbers: values, deviations and intervals of ``summary.py``."""
    monkeypatch.setattr("vocabforge.evaluate.reports.evaluation.render_report", lambda *given: "")
    written = {}
    for label, name, lengths, repeats in (("A", "chain", (3, 1, 2), 2), ("B", "tree", (4, 2), 1)):
        written[label] = evaluate_methods(
            tmp_path / label,
            Evaluation(
                make_benchmark(ROWS),
                [FakeMethod("plain", FakeGenerator()), FakeMethod(name, FakeGenerator(lengths))],
                make_tokenizer(tmp_path / "tokenizer"),
                RunSettings(32, warmup=0, repeats=repeats),
                Provenance("tiny", describe_environment(device="cpu", dtype="float32"), "ab" * 32, "cd" * 32),
            ),
        )
    found = compare_runs(open_runs([str(tmp_path / "A"), str(tmp_path / "B")]))
    rows = {row.name: row for row in found.methods}
    for label, results in written.items():
        for method in results.methods:
            groups = {"overall": method.summary.overall, **method.summary.tasks}
            assert set(rows[f"{label}:{method.name}"].figures) == set(groups) == set(found.groups)
            for group, wanted in groups.items():
                for name, mine in rows[f"{label}:{method.name}"].figures[group].items():
                    assert mine.model_dump() == pytest.approx(getattr(wanted, name).model_dump())
    assert verdicts(found, "B:tree")[0] == "better"
    assert RunComparison.model_validate_json(found.model_dump_json()) == found


def test_a_difference_is_called_one_only_where_the_interval_excludes_one(compared: Compare) -> None:
    better = Made(methods={"plain": (1,), "eagle3": (4, 3)}, speeds={"eagle3": 300.0})
    found = compared(Made(), better)
    assert (found.questions, found.reference) == (40, "A:eagle3")
    assert found.groups == {"overall": 40, "mt_bench": 20, "qa": 10, "rag": 10}
    assert verdicts(found, "B:eagle3") == ["better", "no difference shown"]
    assert verdicts(found, "A:ngram") == ["worse", "worse"]
    assert verdicts(found, "B:eagle3", "qa")[0] == "better"
    ratio = ratios(found, "B:eagle3")["accepted_length"]
    values = figures(found, "accepted_length")
    assert ratio.value == pytest.approx(values["B:eagle3"] / values["A:eagle3"])
    assert 1 < ratio.low < ratio.value < ratio.high
    assert not any(row.ratios for row in found.methods if row.baseline or row.name == found.reference)


@pytest.mark.usefixtures("all_draws")
def test_pairing_removes_what_questions_have_of_their_own_and_unpaired_draws_are_independent() -> None:
    random = np.random.default_rng(5)
    hard = random.normal(100, 20, size=(200, 1))
    first, second = (columns_of_mean(hard + random.normal(0, 1, size=(200, runs))) for runs in (1, 3))
    widths = {}
    for paired in (True, False):
        found = ratio_of(first, second, "tokens_per_s", paired=paired)
        assert found.value == pytest.approx(first[..., 0].mean() / second[..., 0].mean())
        assert found.low is not None
        assert found.high is not None
        widths[paired] = 100 * (found.high - found.low)
    # Standard errors of the two: sqrt(1 + 1/3) and 20 sqrt(2), over sqrt(200), of 100; an interval is 2 x 1.96 of them.
    assert widths[True] == pytest.approx(3.92 * np.sqrt(4 / 3 / 200), rel=0.15)
    assert widths[False] == pytest.approx(3.92 * 20 * np.sqrt(2 / 200), rel=0.15)


@pytest.mark.usefixtures("all_draws")
def test_where_nothing_differs_a_difference_is_shown_about_once_in_twenty() -> None:
    random = np.random.default_rng(11)
    shown = 0
    for _ in range(200):
        hard = random.normal(100, 20, size=(60, 1))
        sides = [columns_of_mean(hard + random.normal(0, 5, size=(60, 1))) for _ in range(2)]
        shown += verdict_of(ratio_of(*sides, "tokens_per_s", paired=True)) != "no difference shown"
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
        facts={"target": {"fingerprint": "99" * 32, "dtype": "float32"}},
        settings={"max_new_tokens": 99, "system": "Be short. " * 20},
    )
    table = refused(Made(), Made(), other)
    assert table[1].split() == ["A", "B", "C"]
    facts = ["target", "target dtype", "system message", "max new tokens"]
    assert [line.strip().split("  ")[0] for line in table[2:]] == facts
    assert max(map(len, table)) < 200, "a long message is shortened"


def test_a_target_without_a_hash_is_known_by_its_name(compared: Compare) -> None:
    found = compared(Made(), Made(facts={"target": {"fingerprint": None, "tokenizer": None}}))
    assert noted(found, "by name alone")
    assert noted(found, "tokenizer")
    (line,) = refused(Made(), Made(facts={"target": {"name": "other", "fingerprint": None}}))[2:]
    assert line.split() == ["target", "llama-3-8b-instruct", "other"]


def test_other_seeds_are_compared_unpaired_and_it_is_said(compared: Compare) -> None:
    first = Made(settings={**SAMPLED, "seeds": [0, 1]})
    found = compared(first, Made(settings={**SAMPLED, "seeds": [2]}, scramble=1))
    assert noted(found, "not paired")
    values = figures(found, "accepted_length")
    # Pooled over all steps of both runs, not the mean of the runs' means.
    assert ratios(found, "A:ngram")["accepted_length"].value == pytest.approx(
        values["A:ngram"] / values["A:eagle3"], rel=1e-9
    )
    assert not noted(compared(first, replace(first, scramble=1)), "not paired")


def test_times_of_another_machine_are_shown_and_not_compared(compared: Compare) -> None:
    found = compared(Made(), Made(facts=OTHER_MACHINE, machine=2.0))
    for group in found.groups:
        assert verdicts(found, "B:eagle3", group)[1] == "not compared"
        assert ratios(found, "B:eagle3", group)["speedup"] == Figure()
        assert ratios(found, "B:eagle3", group)["accepted_length"].value is not None
    assert figures(found, "tokens_per_s")["B:plain"] > 150
    assert noted(found, "different machines (gpu: A card with 24 GB / Another one; torch: ")
    assert not noted(found, "equally fast")
    assert "B:eagle3, B:ngram are not compared in speed" in headline(found)


def test_what_differs_on_one_machine_is_noted(compared: Compare) -> None:
    found = compared(
        Made(facts={"run_facts": {"passes": "captured"}}),
        Made(facts={"run_facts": {"passes": "as they are"}}, machine=0.9, other_at={7: 5, 9: 2}),
    )
    (line,) = (line for line in found.notes if "not equally fast" in line)
    assert "-10." in line or "-9." in line
    assert noted(found, "passes: captured / as they are")
    assert noted(
        found, "B:plain differs from A:plain in 2 of 40 questions, first at question 7, turn 1, token 6"
    )
    assert noted(found, "A:ngram is not plain decoding"), "a fault of a method"
    assert verdicts(found, "B:eagle3")[1] == "no difference shown"
    same = compared(Made(), Made())
    assert not any(noted(same, words) for words in ("equally fast", "passes", "differs from", "machines"))


def test_figures_count_only_what_every_run_answered(compared: Compare) -> None:
    whole = compared(Made(questions=38), Made(questions=38))
    found = compared(Made(questions=40, left_out=[39]), Made(questions=40, left_out=[40]))
    assert (found.questions, found.groups["overall"]) == (38, 38)
    assert noted(found, "2 of 40 questions")
    assert figures(whole, "accepted_length") == figures(found, "accepted_length")
    with pytest.raises(MismatchError, match="no question"):
        compared(Made(questions=2, left_out=[1]), Made(questions=2, left_out=[2]))


def test_one_question_gives_no_verdict(compared: Compare) -> None:
    found = compared(Made(questions=1), Made(questions=1))
    assert ratios(found, "B:eagle3")["accepted_length"] == Figure(value=1.0)
    assert verdicts(found, "B:eagle3") == ["not compared"] * 2
    stopped = compared(Made(), Made(speeds={"plain": math.inf}))  # its clock showed nothing
    assert ratios(stopped, "B:eagle3")["speedup"] == Figure()


def test_the_reference(compared: Compare) -> None:
    made = (Made(methods={"plain": (1,), "slow": (2,), "fast": (3,)}), Made())
    assert compared(*made).reference == "A:fast"
    plain = compared(*made, reference="B:plain")
    assert verdicts(plain, "B:eagle3")[0] == "better"
    assert {row.name for row in plain.methods if row.ratios} == {"A:slow", "A:fast", "B:eagle3", "B:ngram"}
    with pytest.raises(UsageError) as caught:
        compared(*made, reference="A:slwo")
    assert "did you mean A:slow?" in str(caught.value)
    assert compared(Made(methods={"plain": (1,)}), Made()).reference == "A:plain"


def test_the_table_and_the_page_show_the_ratios(compared: Compare) -> None:
    found = compared(
        Made(),
        Made(methods={"plain": (1,), "eagle3": (3, 3), "<b>&": (2,)}),
        Made(facts={"environment": {"processor": "Another one"}}),
    )
    console = Console(width=160, highlight=False)
    with console.capture() as capture:
        console.print(comparison_table(found))
    text, ratio = capture.get(), ratios(found, "B:eagle3")["accepted_length"]
    assert re.search(r"A:plain +overall", text)
    assert re.search(r"B:eagle3 +overall +[\d.]+ ▲", text)
    assert f"×{ratio.value:.2f} [{ratio.low:.2f}–{ratio.high:.2f}]" in text
    assert re.search(r"A:ngram +rag +[\d.]+ ▼ +[\d.]+ ▼", text)
    assert headline(found) == (
        "Against A:eagle3, by speed-up over each run's own plain decoding: A:ngram, B:<b>& are slower; B:eagle3 is "
        "not shown to differ in speed; C:eagle3, C:ngram are not compared in speed."
    )
    page = render_comparison(found)
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", page), "it loads something"
    assert "<script" not in page
    assert "<b>&" not in page.replace("&lt;b&gt;&amp;", "")
    assert f"×{ratio.value:.2f} [" in page
    assert all(f"{one.command}</pre>" in page for one in found.runs)
    for note in found.notes:
        assert f"{note[:1].upper()}{note[1:]}".split(" (")[0].split("<")[0].split("&")[0] in page
