"""Small evaluations with answer and detail rows, written as artefacts, for the tests of their comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.evaluate.results_sample import sample_results
from vocabforge.core.artifact import write_artifact
from vocabforge.core.files import atomic_write_json
from vocabforge.evaluate.results.schema import MethodResults, Results, Settings
from vocabforge.evaluate.results.settings import run_files

CATEGORIES = ("writing", "math", "qa", "rag")
LENGTH = 24


@dataclass
class Made:
    """An evaluation to write.

    Attributes:
        methods: name -> accepted lengths, cycled; the first is plain decoding.
        speeds: name -> tokens/s; 100 times the first accepted length where absent.
        machine: factor on all speeds. jitter: relative noise of the times.
        other_at: question id -> position from which the outputs of the run are other ones.
        left_out: questions that the run could not answer.
        settings: changes to the settings. facts: changes to target, benchmark, environment and run_facts by section.
        scramble: seed of the answers' easiness in this run; another one for other random numbers.
    """

    methods: Mapping[str, Sequence[int]] = field(
        default_factory=lambda: {"plain": (1,), "eagle3": (3, 2), "ngram": (2, 1)}
    )
    speeds: Mapping[str, float] = field(default_factory=dict)
    questions: int = 40
    machine: float = 1.0
    jitter: float = 0.05
    other_at: Mapping[int, int] = field(default_factory=dict)
    left_out: Sequence[int] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scramble: int = 0


def results_of(made: Made) -> Results:
    """``results.json`` of an evaluation; the summaries are samples, the rest fits the rows."""
    base = sample_results(methods=len(made.methods), failures=0, categories=dict.fromkeys(CATEGORIES, 10))
    settings = Settings(
        **{
            **base.settings.model_dump(),
            "repeats": 1,
            "seeds": [0],
            "max_new_tokens": LENGTH,
            **made.settings,
        }
    )
    runs = len(settings.seeds) * settings.repeats
    greedy = settings.sampling["temperature"] == 0
    answers, details = (run_files(kind, list(made.methods), runs) for kind in ("answers", "details"))
    methods = [
        MethodResults(
            name=name,
            description="for tests",
            head=None,
            vocabulary=None,
            answers=answers[name],
            details=details[name],
            summary=row.summary if greedy else row.summary.model_copy(update={"outputs": None}),
        )
        for name, row in zip(made.methods, base.methods, strict=True)
    ]
    facts = {
        name: dict(made.facts.get(name, {})) for name in ("target", "benchmark", "environment", "run_facts")
    }
    return base.model_copy(
        update={
            "target": base.target.model_copy(update=facts["target"]),
            "benchmark": base.benchmark.model_copy(
                update={"questions": made.questions, "of": made.questions, **facts["benchmark"]}
            ),
            "environment": {**base.environment, **facts["environment"]},
            "run_facts": {**base.run_facts, **facts["run_facts"]},
            "settings": settings,
            "methods": methods,
            "answered": made.questions - len(made.left_out),
        }
    )


def write_run(folder: Path, made: Made) -> Path:
    """The artefact of an evaluation, as the command leaves it less its page."""
    results = results_of(made)
    runs = len(results.settings.seeds) * results.settings.repeats
    with write_artifact(folder, "evaluation", {"of": made.scramble}) as place:
        for method in results.methods:
            for run in range(runs):
                answers, details = _rows(made, method.name, run)
                _write(place / method.answers[run], answers)
                _write(place / method.details[run], details)
        atomic_write_json(place / "results.json", results.model_dump(mode="json"))
    return folder


def _write(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _rows(made: Made, method: str, run: int) -> tuple[list[dict], list[dict]]:
    pattern = made.methods[method]
    # Easiness belongs to the question and to the random numbers, noise to the clock.
    clock = Random(f"{made.machine} {method} {run} {made.scramble}")
    answers, details = [], []
    for number in range(1, made.questions + 1):
        if number in made.left_out:
            continue
        ease = Random(f"{number} {made.scramble} {run}").choice((0, 0, 1))
        lengths: list[int] = []
        while sum(lengths) < LENGTH:
            step = pattern[len(lengths) % len(pattern)] + (ease if len(pattern) > 1 else 0)
            lengths.append(min(step, LENGTH - sum(lengths)))
        tokens = [7 * number + place for place in range(LENGTH)]
        for place in range(made.other_at.get(number, LENGTH), LENGTH):
            tokens[place] += 1
        speed = made.speeds.get(method, 100.0 * pattern[0]) * made.machine
        seconds = LENGTH / (speed * (1 + made.jitter * clock.uniform(-1, 1)) * (1 + 0.1 * ease))
        shared = {"question_id": number, "category": CATEGORIES[number % len(CATEGORIES)]}
        choice = {
            "index": 0,
            "turns": ["text"],
            "decoding_steps": [len(lengths)],
            "new_tokens": [LENGTH],
            "wall_time": [seconds],
            "accept_lengths": lengths,
        }
        answers.append({**shared, "answer_id": "id", "model_id": method, "choices": [choice], "tstamp": 1.0})
        detail = {
            "index": 0,
            "prompt_tokens": [5],
            "token_ids": [tokens],
            "accept_lengths": [lengths],
            "prefill_s": [0.001],
            "decode_s": [seconds],
            "timings": [{"verify": seconds}],
            "target_forwards": [len(lengths) + 1],
            "drafted": [0],
            "drafted_by_depth": [[]],
            "accepted_by_depth": [[]],
            "finish": ["length"],
            "counts": [{}],
        }
        details.append({**shared, "choices": [detail]})
    return answers, details
