"""Our figures are those that the public scorers compute from our answer files.

The two scorers are written anew here from the description of their arithmetic (docs/formats.md, "Answer rows"), with
plain loops over JSON lines, and share nothing with the package. The answers are of a real target and real proposers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.decode.build_support import grid_methods
from tests.worlds import byte_tokenizer, tiny_target
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.decode.request import SamplingParams
from vocabforge.evaluate.benchmarks import Benchmark, Question
from vocabforge.evaluate.evaluation import Evaluation, Provenance, evaluate_methods
from vocabforge.evaluate.results.settings import RunSettings
from vocabforge.evaluate.run.environment import describe_environment

MT_BENCH = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
TASKS = ["mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag", "overall"]
QUESTIONS = [
    Question(97, "math", ("1 + 1 = ", "and twice that?")),
    Question(81, "writing", ("Once upon a time", "Go on.")),
    Question(160, "translation", ("Guten Morgen",)),
    Question(240, "summarization", ("a b a b a b a b a b a b",)),
    Question(320, "qa", ("Who? Who? Who?",)),
    Question(400, "math_reasoning", ("3, 2, 1, ",)),
    Question(401, "math_reasoning", ("9, 7, 5, ",)),
    Question(480, "rag", ("The sky is blue. What is blue?",)),
]
TOO_LONG = Question(481, "rag", ("The sky is blue. " * 20,))  # no method has room for it
METHODS = ["plain", "n-gram", "itself"]
CLOSE = 1e-12  # sums in another order


@cache
def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def of_task(rows: list[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    if task == "overall":
        return rows
    return [row for row in rows if row["category"] in (MT_BENCH if task == "mt_bench" else [task])]


def mean(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def deviation(values: list[float]) -> float:
    middle, total = mean(values), 0.0
    for value in values:
        total += (value - middle) ** 2
    return (total / (len(values) - 1)) ** 0.5


@dataclass
class Score:
    accept_lengths: list[int]
    speed: float
    base_speed: float

    @property
    def speedup(self) -> float:
        return self.speed / self.base_speed


def score(file: Path, base: Path, task: str, count_tokens: Callable[[str], int] | None) -> Score:
    """One file against that of plain decoding; ``count_tokens``: Spec-Bench counts the latter's tokens again."""
    speeds, base_speeds, accept_lengths = [], [], []
    for row in of_task(rows_of(file), task):
        choice = row["choices"][0]
        speeds.append(sum(choice["new_tokens"]) / sum(choice["wall_time"]))
        accept_lengths.extend(choice["accept_lengths"])
    for row in of_task(rows_of(base), task):
        choice = row["choices"][0]
        tokens = sum(choice["new_tokens"])
        if count_tokens is not None:
            tokens = 0
            for turn in choice["turns"]:
                tokens += count_tokens(turn) - 1
        base_speeds.append(tokens / sum(choice["wall_time"]))
    return Score(accept_lengths, mean(speeds), mean(base_speeds))


@dataclass
class Made:
    folder: Path
    runs: int
    summaries: dict[str, dict[str, Any]]
    count_tokens: Callable[[str], int]

    def file(self, kind: str, method: str, run: int) -> Path:
        """Where readers of the format look: one run has no folder of its own."""
        below = f"run_{run + 1}/" if self.runs > 1 else ""
        return self.folder / kind / f"{below}{method}.jsonl"

    def scores(self, method: str, task: str, *, recount: bool) -> list[Score]:
        count = self.count_tokens if recount else None
        return [
            score(self.file("answers", method, run), self.file("answers", "plain", run), task, count)
            for run in range(self.runs)
        ]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_target(tmp_path_factory.mktemp("scored") / "target", vocab_size=261, num_hidden_layers=2)
    byte_tokenizer(folder)
    return folder


def make(target: Path, folder: Path, settings: RunSettings) -> Made:
    from transformers import AutoTokenizer

    methods = grid_methods(target, [f"itself={target}"], proposer=("n-gram",), control="fixed")
    evaluation = Evaluation(
        Benchmark("tiny", None, "0" * 64, settings.max_new_tokens, (*QUESTIONS, TOO_LONG)),
        methods,
        load_tokenizer(target),
        settings,
        Provenance("tiny", describe_environment(device="cpu", dtype="float32")),
    )
    with pytest.MonkeyPatch.context() as patch:  # drawing the charts takes longer than the run
        patch.setattr("vocabforge.evaluate.reports.evaluation.render_report", lambda *given: "")
        evaluate_methods(folder / "out", evaluation)
    results = json.loads((folder / "out" / "results.json").read_text("utf-8"))
    assert results["answered"] == len(QUESTIONS)
    assert [failure["question_id"] for failure in results["failures"]] == [TOO_LONG.question_id]
    assert [method["name"] for method in results["methods"]] == METHODS
    upstream = AutoTokenizer.from_pretrained(target)
    return Made(
        folder / "out",
        len(settings.runs),
        {method["name"]: method["summary"] for method in results["methods"]},
        lambda text: len(upstream(text).input_ids),
    )


@pytest.fixture(scope="module")
def single(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Greedy, one run."""
    settings = RunSettings(10, warmup=1, prompt_format="raw")
    return make(target, tmp_path_factory.mktemp("single"), settings)


@pytest.fixture(scope="module")
def several(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Sampled, three seeds."""
    settings = RunSettings(5, SamplingParams(0.9), warmup=0, prompt_format="raw", seeds=(3, 4, 5))
    return make(target, tmp_path_factory.mktemp("several"), settings)


def group(summary: dict[str, Any], task: str) -> dict[str, Any]:
    if task == "overall":
        return summary["overall"]
    return summary["tasks"][task] if task in summary["tasks"] else summary["categories"][task]


def test_the_run_is_worth_scoring(single: Made, several: Made) -> None:
    lengths = [single.scores(name, "overall", recount=False)[0].accept_lengths for name in METHODS]
    assert set(lengths[0]) == {1}
    assert len(set(lengths[1])) > 1
    assert min(lengths[2]) > 1
    plain = single.scores("plain", "overall", recount=True)[0]
    assert abs(plain.speedup - 1) > 0.05  # the two countings differ
    runs = several.scores("itself", "overall", recount=False)
    assert runs[0].accept_lengths != runs[1].accept_lengths


@pytest.mark.parametrize("task", [*TASKS, "writing", "math"])
@pytest.mark.parametrize("method", METHODS)
def test_one_run_has_the_scorers_figures(single: Made, method: str, task: str) -> None:
    figures = group(single.summaries[method], task)
    (recounted,) = single.scores(method, task, recount=True)
    (recorded,) = single.scores(method, task, recount=False)
    assert figures["accepted_length"]["value"] == pytest.approx(mean(recounted.accept_lengths), rel=CLOSE)
    assert figures["tokens_per_s"]["value"] == pytest.approx(recounted.speed, rel=CLOSE)
    assert figures["speedup_retokenised"]["value"] == pytest.approx(recounted.speedup, rel=CLOSE)
    assert figures["speedup"]["value"] == pytest.approx(recorded.speedup, rel=CLOSE)
    assert figures["tokens_per_s"]["sd"] is None
    assert figures["questions"] == len(of_task(rows_of(single.file("answers", method, 0)), task))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_several_runs_have_the_mean_reports_figures(several: Made, method: str, task: str) -> None:
    figures = group(several.summaries[method], task)
    recounted = several.scores(method, task, recount=True)
    recorded = several.scores(method, task, recount=False)
    pooled = [length for one in recorded for length in one.accept_lengths]
    assert figures["accepted_length"]["value"] == pytest.approx(mean(pooled), rel=CLOSE)
    for ours, theirs in (
        (figures["tokens_per_s"], [one.speed for one in recounted]),
        (figures["speedup_retokenised"], [one.speedup for one in recounted]),
        (figures["speedup"], [one.speedup for one in recorded]),
    ):
        assert ours["value"] == pytest.approx(mean(theirs), rel=CLOSE)
        assert ours["sd"] == pytest.approx(deviation(theirs), rel=1e-9, abs=1e-12)
