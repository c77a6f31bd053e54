"""The Spec-Bench protocol over several methods side by side.

A question runs through all runs and, within each, through all methods before the next question begins, the
order of methods turned by one from run to run and from question to question, so that a noisy machine treats the
methods alike. Before anything is measured, the first question runs three times per method as warm-up. Batch 1;
the time of a turn covers prefill and decode with the device synchronised; tokens after a stop token are not
counted. What is measured is kept in a journal at once: the same command goes on where a run was interrupted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import DataError, VocabForgeError
from ..core.progress import say
from .answers import write_rows
from .asking import Asking
from .benchmarks import Question
from .journal import Journal, Key, open_journal
from .names import run_files
from .prompts import Conversation, check_system, system_of
from .results import FailureRow
from .settings import Run
from .tour import Tour

if TYPE_CHECKING:
    from ..decode.build import Method


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        failures: questions that are left out, in the order in which they were asked.
        resumed: how often the run was interrupted and went on.
    """

    failures: list[FailureRow]
    resumed: int


def run_methods(
    questions: Sequence[Question],
    methods: Sequence[Method],
    asking: Asking,
    folder: Path,
    journal: Path,
    *,
    identity: Mapping[str, Any],
    model_ids: Mapping[str, str],
    fresh: bool = False,
) -> Outcome:
    """Answer every question with every method in every run; write ``answers/`` and ``details/`` below ``folder``.

    Args:
        questions: their ids differ.
        methods: the first is the baseline (plain decoding).
        asking: how they are asked.
        journal: folder of what is measured so far; an interrupted run goes on from there. It stays until
            ``Journal.remove`` is called, unless nothing was answered.
        identity: everything that decides the figures beside questions, methods' descriptions, tokenizer and
            settings; a journal of another identity is refused.
        model_ids: ``model_id`` of the answer rows by method name.
        fresh: drop what an interrupted run left.

    Raises:
        UsageError: the journal is another run's, or no prompt would show the system message.
        DataError: no question could be answered at all.
        VocabForgeError: the device failed, or the disk is full; the journal stays.
    """
    settings = asking.settings
    check_system(asking.tokenizer, settings.prompt_format, settings.system, questions)
    own = _identity(questions, methods, asking, model_ids)
    with open_journal(journal, {**own, **identity}, fresh=fresh) as kept:
        tour = Tour(questions, methods, asking, kept, model_ids)
        tour.go()
        failures = [FailureRow(**found) for found in kept.failures.values()]
        if len(failures) == len(questions):
            kept.forget()
            raise DataError(
                "not one question could be answered",
                got=failures[0].reason,
                source=f"question {failures[0].question_id}, turn {failures[0].turn + 1}, {failures[0].method}",
            )
        _write_files(folder, questions, methods, settings.runs, kept)
        if failures:
            say(f"{len(failures)} of {len(questions)} questions were left out; first: {failures[0].reason}")
        return Outcome(failures, kept.resumed)


def _identity(
    questions: Sequence[Question], methods: Sequence[Method], asking: Asking, model_ids: Mapping[str, str]
) -> dict[str, Any]:
    """What decides the rows, as far as it can be told from what is run."""
    tokenizer, settings = asking.tokenizer, asking.settings
    asked = [[one.question_id, one.category, one.system, list(one.turns)] for one in questions]
    return {
        "questions": len(questions),
        "questions_sha256": _digest(asked),
        "methods": {one.name: [model_ids[one.name], one.description, one.head] for one in methods},
        "order": [one.name for one in methods],
        "settings": settings.to_dict(),
        "tokenizer": tokenizer.fingerprint,
        "stop_ids": list(tokenizer.eos_ids),
        "chat_template_sha256": _digest(tokenizer.chat_template),
        # A template may write the date into the prompt.
        "first_prompt_sha256": _first_prompt(questions[0], asking),
    }


def _first_prompt(question: Question, asking: Asking) -> str | None:
    settings = asking.settings
    system = system_of(question, settings.system)
    try:
        ids = Conversation(asking.tokenizer, settings.prompt_format, system).ask(question.turns[0])
    except VocabForgeError:
        return None  # its own turn meets the same failure and records it
    return _digest(ids)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _write_files(
    folder: Path, questions: Sequence[Question], methods: Sequence[Method], runs: Sequence[Run], kept: Journal
) -> None:
    """Both row files of every method and run, sorted by question id."""
    ids = sorted(one.question_id for one in questions if one.question_id not in kept.failures)
    names = [method.name for method in methods]
    for kind in ("answers", "details"):
        for name, files in run_files(kind, names, len(runs)).items():
            for run, file in zip(runs, files):
                rows = (kept.get(Key(run.number, number, name)) for number in ids)
                write_rows(folder / file, (row.answer if kind == "answers" else row.detail for row in rows))
