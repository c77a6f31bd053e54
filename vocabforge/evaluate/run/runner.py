"""The Spec-Bench protocol over several methods side by side.

A question runs through all runs and, within each, through all methods before the next question begins. The order of
methods is rotated by one from run to run and from question to question, so that a noisy machine treats the methods
alike. Categories take turns, so that every stretch of a run is like the whole. Before anything is measured, the first
question runs three times per method as warm-up. Batch 1; the time of a turn covers prefill and decode with the device
synchronised; tokens after a stop token are not counted. Every answer is appended to a journal at once, so the same
command resumes an interrupted run.
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
from .journal import EvaluationJournal, Kept, Key
from .prompts import longest_conversation, system_of
from .request import Asking, TurnFailed, short_digest
from .settings import Run, run_files

if TYPE_CHECKING:
    from ...decode.build.methods import Method

_WARMUP_QUESTIONS = 5  # tried by a method that cannot answer the first


def run_methods(
    questions: Sequence[Question],
    methods: Sequence[Method],
    asking: Asking,
    folder: Path,
    kept: EvaluationJournal,
    model_ids: Mapping[str, str],
) -> list[FailureRow]:
    """Answer every question with every method in every run; write ``answers/`` and ``details/`` below ``folder``.

    Args:
        methods: plain decoding first.
        kept: what is measured so far, of :func:`run_identity`.

    Returns:
        questions that are left out, in the order in which they were asked.

    Raises:
        DataError: no question could be answered at all.
        VocabForgeError: the device failed, or the disk is full; the journal stays.
    """
    loop = _Loop(questions, methods, asking, kept, model_ids)
    total, left = len(questions) * loop.share, loop.left(questions)
    done, ahead = total - len(left), turns_of(left)
    turns = sum(len(one.turns) for one in questions) * loop.share
    if kept.taken_over or kept.failures:
        again = "; the warm-up is repeated" if done < total and asking.settings.warmup else ""
        say(f"Resuming: {done:,} of {total:,} answers are in {kept.folder}{again}")
    try:
        warm_ups = {"warm-up": len({name for name, _ in ahead}) if asking.by_method else 1}
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
                if done < total:
                    with bar.aside("warm-up"):
                        loop.reserve()
                        loop.warm_up(methods)
                for index, question in enumerate(loop.questions):
                    loop.answer(index, question, bar)
    except BaseException:
        if kept:
            say(f"The answers so far are in {kept.folder}: run the same command again to resume")
        raise
    failures = [FailureRow(**found) for found in kept.failures.values()]
    if len(failures) == len(questions):
        kept.forget()
        raise DataError(
            "not one question could be answered",
            got=failures[0].reason,
            source=f"question {failures[0].question_id}, turn {failures[0].turn + 1}, {failures[0].method}",
        )
    ids = sorted(one.question_id for one in questions if one.question_id not in kept.failures)
    names, settings = [method.name for method in methods], asking.settings
    for part, kind in enumerate(("answers", "details")):
        for level in settings.concurrency:
            runs = settings.runs_at(level)
            for name, files in run_files(settings.folder_of(kind, level), names, len(runs)).items():
                for run, file in zip(runs, files):
                    write_rows(
                        folder / file, (kept.get(Key(run.number, number, name))[part] for number in ids)
                    )
    if failures:
        say(f"{len(failures)} of {len(questions)} questions were left out; first: {failures[0].reason}")
    return failures


def run_identity(
    questions: Sequence[Question], methods: Sequence[Method], asking: Asking, model_ids: Mapping[str, str]
) -> dict[str, Any]:
    """What decides the rows, as far as it can be told from what is run; the journal's identity.

    Raises:
        UsageError: no prompt would show the system message.
    """
    asked = [[one.question_id, one.category, one.system, list(one.turns)] for one in questions]
    return {
        "questions": len(questions),
        "questions_sha256": short_digest(asked),
        "methods": {one.name: [model_ids[one.name], one.description, one.head] for one in methods},
        "order": [one.name for one in methods],
        "settings": asking.settings.to_dict(),
        **asking.identity(questions),
    }


class _Loop:
    """All questions through all runs and methods, except those that the journal has already."""

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
        self.share = len(self.runs) * len(methods)  # rows of one question

    def left(self, questions: Sequence[Question]) -> list[tuple[Question, Method, Run]]:
        """Rows that are still to be made."""
        return [
            (question, method, run)
            for run in self.runs
            for method in self.methods
            for question in self._todo(questions, method, run)
        ]

    def _todo(self, questions: Sequence[Question], method: Method, run: Run) -> list[Question]:
        return [
            one
            for one in questions
            if one.question_id not in self.kept.failures and self._key(one, method, run) not in self.kept
        ]

    @staticmethod
    def _key(question: Question, method: Method, run: Run) -> Key:
        return Key(run.number, question.question_id, method.name)

    def reserve(self) -> None:
        """Memory for the longest conversation, so that none grows while it is timed."""
        able = [reserve for one in self.methods if (reserve := getattr(one.generator, "reserve", None))]
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
                continue  # its own turn meets the same failure and records it
            longest = max(longest, positions)
        for reserve in able:
            try:
                reserve(longest)
            except Exception as error:  # noqa: BLE001 (shorter prompts may fit; each turn reserves again)
                say(f"No room for the longest conversation ({longest:,} tokens): {error}")

    def warm_up(self, methods: Sequence[Method]) -> None:
        """Unmeasured runs of the first question; of the next one for a method that cannot answer it."""
        for method in methods:
            for question in self.questions[:_WARMUP_QUESTIONS]:
                try:
                    for _ in range(self.asking.settings.warmup):
                        self.asking.ask(question, method, self.runs[0])
                    break
                except TurnFailed:
                    continue  # the measured run meets the same failure and records it

    def answer(self, index: int, question: Question, bar: ProgressBar) -> None:
        """One question through all runs and methods, up to the first failure, which is recorded, too."""
        for run in self.runs:
            if question.question_id in self.kept.failures:
                break
            turned = (index + run.number) % len(self.methods)
            for method in [*self.methods[turned:], *self.methods[:turned]]:
                if self._key(question, method, run) in self.kept:
                    continue
                outcome = self._ask(question, method, run)
                self._record(question, outcome, method, run, bar)
                if isinstance(outcome, FailureRow):
                    self._check_device(outcome)
                    break

    def answer_by_method(self, bar: ProgressBar) -> None:
        """All questions with one method before the next one, side by side where a run says so.

        A server is started for its own questions, and a load on it is one group of questions.
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

    def _answer_window(
        self, method: Method, run: Run, questions: Sequence[Question], bar: ProgressBar
    ) -> None:
        generator: Any = method.generator
        window = None
        try:
            with generator.window(run.concurrency) as window:
                work = partial(self._ask, method=method, run=run)
                for question, outcome in _side_by_side(questions, work, run.concurrency):
                    self._record(question, outcome, method, run, bar)
        finally:
            if window is not None and window.answered:
                found = {"method": method.name, "run": run.number, **window.row(generator.facts)}
                self.kept.add_window(found)

    def _ask(self, question: Question, method: Method, run: Run) -> list[AnsweredTurn] | FailureRow:
        try:
            return self.asking.ask(question, method, run)
        except TurnFailed as failed:
            return FailureRow(
                question_id=question.question_id,
                category=question.category,
                method=method.name,
                run=run.number,
                turn=failed.turn,
                kind=failed.kind,
                reason=failed.reason,
            )

    def _record(
        self,
        question: Question,
        outcome: list[AnsweredTurn] | FailureRow,
        method: Method,
        run: Run,
        bar: ProgressBar,
    ) -> None:
        """Add the answers to the journal, or why there are none."""
        if isinstance(outcome, FailureRow):
            for kind, turns in turns_of(self.left([question])).items():
                bar.skip(turns, kind)
            self.kept.fail(outcome.model_dump())
            bar.update(note=f"{len(self.kept.failures)} left out")
            return
        model_id, answer_id = self.model_ids[method.name], uuid.uuid4().hex
        answer = answer_row(question, outcome, model_id=model_id, answer_id=answer_id, tstamp=time.time())
        self.kept.add(self._key(question, method, run), Kept(answer, detail_row(question, outcome)))
        bar.update(len(question.turns), kind=_kind(method, run))

    def _check_device(self, failure: FailureRow) -> None:
        """A device that a failure left unusable would make every later question fail as well."""
        try:
            self.asking.synchronise()
        except Exception as error:
            raise VocabForgeError(
                f"the device does not answer any more since question {failure.question_id} ({failure.method})",
                got=failure.reason,
                remedy="run the same command again: it continues with the next question",
            ) from error


def in_turns(questions: Sequence[Question]) -> list[Question]:
    """The categories in proportion from the first question on, each in its own order.

    Answers of one category are alike in length: a tenth of the questions tells how long all of them take.
    """
    sizes, seen = Counter(one.category for one in questions), Counter[str]()
    places = []
    for one in questions:
        seen[one.category] += 1
        places.append((seen[one.category] - 0.5) / sizes[one.category])
    return [questions[at] for at in sorted(range(len(questions)), key=places.__getitem__)]


def turns_of(rows: Sequence[tuple[Question, Method, Run]]) -> Counter[tuple[str, int]]:
    """Turns by what decides how long one takes."""
    found = Counter[tuple[str, int]]()
    for question, method, run in rows:
        found[_kind(method, run)] += len(question.turns)
    return found


def _kind(method: Method, run: Run) -> tuple[str, int]:
    return method.name, run.concurrency


def _side_by_side(
    questions: Sequence[Question], work: Callable[[Question], Any], count: int
) -> Iterator[tuple[Question, Any]]:
    """Each question with its result as soon as it is there, ``count`` under way at once."""
    if count == 1:
        for question in questions:
            yield question, work(question)
        return
    # Its threads are daemons: an interrupted command does not wait for answers that take minutes.
    with ThreadPool(min(count, len(questions))) as pool:
        yield from pool.imap_unordered(lambda question: (question, work(question)), questions)
