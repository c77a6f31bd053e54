"""The Spec-Bench protocol with several methods interleaved.

Each question is asked in all runs and, within each run, with all methods before the next question begins. The
order of methods rotates by one from run to run and from question to question, so that machine noise affects
all methods alike. Categories alternate, so that every part of a run is representative. Before measuring, each
method answers the first question three times as warm-up. The batch size is 1; the time of a turn covers
prefill and decode with the device synchronised; tokens after a stop token are not counted. Every answer is
immediately appended to a journal, so the same command resumes an interrupted run.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.console import say
from ...core.errors import DataError, VocabForgeError
from ...core.progress import ProgressBar
from ..benchmarks import Question
from ..results.answers import AnsweredTurn, answer_row, detail_row, write_rows
from ..results.schema import FailureRow
from ..results.settings import EvaluationRun, run_files
from .journal import EvaluationJournal, Key
from .prompts import longest_conversation, system_of
from .request import Asking, TurnFailed, short_digest
from .side_by_side import Load, answer_together, warm_up

if TYPE_CHECKING:
    from ...decode.build.methods import Method

_WARMUP_QUESTIONS = 5  # tried if a method cannot answer the first question


def run_methods(
    questions: Sequence[Question],
    methods: Sequence[Method],
    asking: Asking,
    folder: Path,
    kept: EvaluationJournal,
    model_ids: Mapping[str, str],
) -> list[FailureRow]:
    """Answer every question with every method in every run; write ``answers/`` and ``details/``.

    Args:
        methods: plain decoding first.
        kept: journal of the rows so far, with the identity of :func:`run_identity`.

    Returns:
        Questions that are left out, in the order in which they were asked.

    Raises:
        DataError: no question could be answered.
        VocabForgeError: the device failed, or the disk is full; the journal is kept.
    """
    loop = _Loop(questions, methods, asking, kept, model_ids)
    total, left = len(questions) * loop.share, loop.left(questions)
    done, ahead = total - len(left), turns_of(left)
    turns = sum(len(question.turns) for question in questions) * loop.share
    if kept.taken_over or kept.failures:
        again = "; the warm-up is repeated" if done < total and asking.settings.warmup else ""
        say(f"Resuming: {done:,} of {total:,} answers are in {kept.folder}{again}")
    try:
        alone = 1 if any(count == 1 for _, count in ahead) else 0
        several = len({(method.name, run.number) for _, method, run in left if run.concurrency > 1})
        warm_ups = {"warm-up": len({name for name, _ in ahead}) if asking.by_method else alone + several}
        with ProgressBar(
            f"Evaluating {len(methods)} methods",
            turns,
            "turns",
            initial=turns - ahead.total(),
            kinds=ahead,
            asides=warm_ups,
        ) as bar:
            if asking.by_method:
                loop.answer_by_method(bar)
            else:
                if alone:
                    with bar.aside("warm-up"):
                        loop.reserve([method.generator for method in methods])
                        loop.warm_up(methods)
                for index, question in enumerate(loop.questions):
                    loop.answer(index, question, bar)
                loop.answer_side_by_side(bar)
    except BaseException:
        if kept:
            say(f"The answers so far are in {kept.folder}: run the same command again to resume")
        raise
    failures = list(kept.failures.values())
    if len(failures) == len(questions):
        kept.forget()
        raise DataError(
            "not one question could be answered",
            got=failures[0].reason,
            source=f"question {failures[0].question_id}, turn {failures[0].turn + 1}, {failures[0].method}",
        )
    ids = sorted(question.question_id for question in questions if question.question_id not in kept.failures)
    names, settings = [method.name for method in methods], asking.settings
    for part, kind in (("answer", "answers"), ("detail", "details")):
        for level in settings.concurrency:
            runs = settings.runs_at(level)
            for name, files in run_files(settings.folder_of(kind, level), names, len(runs)).items():
                for run, file in zip(runs, files):
                    write_rows(
                        folder / file, (kept.row(Key(run.number, number, name))[part] for number in ids)
                    )
    if failures:
        say(f"{len(failures)} of {len(questions)} questions were left out; first: {failures[0].reason}")
    return failures


def run_identity(
    questions: Sequence[Question], methods: Sequence[Method], asking: Asking, model_ids: Mapping[str, str]
) -> dict[str, Any]:
    """Return the journal's identity: everything known that determines the rows.

    Raises:
        UsageError: no prompt would include the system message.
    """
    asked = [
        [question.question_id, question.category, question.system, list(question.turns)]
        for question in questions
    ]
    return {
        "questions": len(questions),
        "questions_sha256": short_digest(asked),
        "methods": {
            method.name: [model_ids[method.name], method.description, method.head] for method in methods
        },
        "order": [method.name for method in methods],
        "settings": asking.settings.to_dict(),
        **asking.identity(questions),
    }


class _Loop:
    def __init__(
        self,
        questions: Sequence[Question],
        methods: Sequence[Method],
        asking: Asking,
        kept: EvaluationJournal,
        model_ids: Mapping[str, str],
    ) -> None:
        self.questions, self.methods, self.asking = in_turns(questions), methods, asking
        self.kept, self.model_ids = kept, model_ids
        self.runs = asking.settings.all_runs
        self.share = len(self.runs) * len(methods)  # rows per question

    def left(self, questions: Sequence[Question]) -> list[tuple[Question, Method, EvaluationRun]]:
        """Return the rows that are still missing."""
        return [
            (question, method, run)
            for run in self.runs
            for method in self.methods
            for question in self._todo(questions, method, run)
        ]

    def _todo(self, questions: Sequence[Question], method: Method, run: EvaluationRun) -> list[Question]:
        return [
            question
            for question in questions
            if question.question_id not in self.kept.failures
            and self._key(question, method, run) not in self.kept
        ]

    @staticmethod
    def _key(question: Question, method: Method, run: EvaluationRun) -> Key:
        return Key(run.number, question.question_id, method.name)

    def reserve(self, generators: Sequence[Any]) -> None:
        """Reserve memory for the longest conversation, so that caches do not grow during timing."""
        able = [reserve for generator in generators if (reserve := getattr(generator, "reserve", None))]
        if not able:
            return
        settings, longest = self.asking.settings, 0
        for question in self.questions:
            system = system_of(question, settings.system)
            try:
                positions = longest_conversation(
                    question, self.asking.tokenizer, settings.prompt_format, system, settings.max_new_tokens
                )
            except VocabForgeError:
                continue  # the measured turn will fail as well and record it
            longest = max(longest, positions)
        for reserve in able:
            try:
                reserve(longest)
            except Exception as error:  # noqa: BLE001 (shorter prompts may fit; each turn reserves again)
                say(f"No room for the longest conversation ({longest:,} tokens): {error}")

    def warm_up(self, methods: Sequence[Method]) -> None:
        """Run the first question unmeasured; use the next question for methods that cannot answer it."""
        for method in methods:
            for question in self.questions[:_WARMUP_QUESTIONS]:
                warmup = range(self.asking.settings.warmup)
                outcomes = (self.asking.ask(question, method, self.runs[0]) for _ in warmup)
                # The measured run will fail as well and record it.
                if not any(isinstance(outcome, TurnFailed) for outcome in outcomes):
                    break

    def answer(self, index: int, question: Question, bar: ProgressBar) -> None:
        """Ask a question alone in all runs with all methods, until a failure, which is recorded as well."""
        for run in self.runs:
            if run.concurrency > 1:
                continue
            if question.question_id in self.kept.failures:
                break
            turned = (index + run.number) % len(self.methods)
            for method in [*self.methods[turned:], *self.methods[:turned]]:
                if self._key(question, method, run) in self.kept:
                    continue
                outcome = self.asking.ask(question, method, run)
                self._record(question, outcome, method, run, bar)
                if isinstance(outcome, TurnFailed):
                    self._check_device(question, method, outcome)
                    break

    def answer_by_method(self, bar: ProgressBar) -> None:
        """Ask all questions with one method before the next, concurrently if the run is configured so.

        A server is started for its own questions, and each load level is one group of questions.
        """
        for method in self.methods:
            todo = [(run, self._todo(self.questions, method, run)) for run in self.runs]
            if not any(questions for _, questions in todo):
                continue
            generator: Any = method.generator
            with generator.serving(self.kept.server_of(method.name)):
                with bar.aside("warm-up"):
                    self.warm_up([method])
                bar.update(note=method.name)
                for run, questions in todo:
                    if questions:
                        self._answer_window(method, run, questions, bar)

    def answer_side_by_side(self, bar: ProgressBar) -> None:
        """Ask all questions with one method before the next, several at a time, for the runs under load."""
        for run in self.runs:
            for method in self.methods if run.concurrency > 1 else ():
                if todo := self._todo(self.questions, method, run):
                    self._answer_load(method, run, todo, bar)

    def _answer_load(
        self, method: Method, run: EvaluationRun, todo: Sequence[Question], bar: ProgressBar
    ) -> None:
        assert method.beside is not None
        decoder, load = method.beside(run.concurrency), Load(run.concurrency)
        with bar.aside("warm-up"):
            self.reserve([decoder])
            if self.asking.settings.warmup:
                warm_up(todo, decoder, self.asking, run)
        bar.update(note=f"{method.name}, {run.concurrency} requests")
        try:
            for question, outcome in answer_together(todo, decoder, self.asking, run, load):
                self._record(question, outcome, method, run, bar)
        finally:
            if load.new_tokens:
                self.kept.add_window({"method": method.name, "run": run.number, **load.row()})

    def _answer_window(
        self, method: Method, run: EvaluationRun, questions: Sequence[Question], bar: ProgressBar
    ) -> None:
        generator: Any = method.generator
        window = None
        try:
            with generator.window(run.concurrency) as window:
                work = partial(self.asking.ask, method=method, run=run)
                for question, outcome in _side_by_side(questions, work, run.concurrency):
                    self._record(question, outcome, method, run, bar)
        finally:
            if window is not None and window.answered:
                row = {"method": method.name, "run": run.number, **window.row(generator.facts)}
                self.kept.add_window(row)

    def _record(
        self,
        question: Question,
        outcome: list[AnsweredTurn] | TurnFailed,
        method: Method,
        run: EvaluationRun,
        bar: ProgressBar,
    ) -> None:
        if isinstance(outcome, TurnFailed):
            for kind, turns in turns_of(self.left([question])).items():
                bar.skip(turns, kind)
            self.kept.fail(
                FailureRow(
                    question_id=question.question_id,
                    category=question.category,
                    method=method.name,
                    run=run.number,
                    **outcome._asdict(),
                )
            )
            bar.update(note=f"{len(self.kept.failures)} left out")
            return
        model_id, answer_id = self.model_ids[method.name], uuid.uuid4().hex
        answer = answer_row(question, outcome, model_id=model_id, answer_id=answer_id, tstamp=time.time())
        key = self._key(question, method, run)
        self.kept.add(key, answer=answer, detail=detail_row(question, outcome))
        bar.update(len(question.turns), kind=_kind(method, run))

    def _check_device(self, question: Question, method: Method, failed: TurnFailed) -> None:
        """Raise if a failure left the device unusable, since every later question would fail as well."""
        try:
            self.asking.synchronise()
        except Exception as error:
            raise VocabForgeError(
                f"the device does not answer any more since question {question.question_id} ({method.name})",
                got=failed.reason,
                remedy="run the same command again: it continues with the next question",
            ) from error


def in_turns(questions: Sequence[Question]) -> list[Question]:
    """Interleave the categories in proportion, keeping the order within each.

    Answers of a category have similar lengths, so the first tenth predicts the total time.
    """
    sizes, seen = Counter(question.category for question in questions), Counter[str]()
    places = []
    for question in questions:
        seen[question.category] += 1
        places.append((seen[question.category] - 0.5) / sizes[question.category])
    return [questions[at] for at in sorted(range(len(questions)), key=places.__getitem__)]


def turns_of(rows: Sequence[tuple[Question, Method, EvaluationRun]]) -> Counter[tuple[str, int]]:
    """Count turns by the properties that determine their duration."""
    turns = Counter[tuple[str, int]]()
    for question, method, run in rows:
        turns[_kind(method, run)] += len(question.turns)
    return turns


def _kind(method: Method, run: EvaluationRun) -> tuple[str, int]:
    return method.name, run.concurrency


def _side_by_side(
    questions: Sequence[Question], work: Callable[[Question], Any], count: int
) -> Iterator[tuple[Question, Any]]:
    """Yield each question with its result as it completes, ``count`` at a time."""
    if count == 1:
        for question in questions:
            yield question, work(question)
        return
    # Daemon threads, so that an interrupted command does not wait minutes for answers.
    with ThreadPool(min(count, len(questions))) as pool:
        yield from pool.imap_unordered(lambda question: (question, work(question)), questions)
