"""The Spec-Bench protocol over several methods side by side.

The first question runs three times per method as warm-up; every question then runs through all methods
before the next one begins, so that a noisy machine treats the methods alike. Batch 1; the time of a turn
covers prefill and decode with the device synchronised; tokens after a stop token are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import DataError, VocabForgeError
from ..core.progress import ProgressBar, say
from .answers import RowFile, Turn, answer_row, detail_row, new_answer_id
from .benchmarks import Question
from .names import file_names
from .prompts import Conversation
from .settings import RunSettings as RunSettings

if TYPE_CHECKING:
    from ..corpus.tokenizer import TextTokenizer
    from ..decode.build import Method

_NOTED_METHODS = 3


@dataclass(frozen=True)
class Failure:
    """A question that one method could not answer; it is left out of every method's answers."""

    question_id: int
    category: str
    method: str
    turn: int
    reason: str


class _TurnFailed(Exception):
    def __init__(self, turn: int, cause: VocabForgeError) -> None:
        super().__init__(str(cause))
        self.turn, self.cause = turn, cause


@dataclass
class _Running:
    """Pooled figures of one method so far, for the progress note."""

    tokens: int = 0
    seconds: float = 0.0
    steps: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.tokens += len(turn.token_ids)
            self.seconds += turn.wall_time
            self.steps[0] += len(turn.generation.accept_lengths)
            self.steps[1] += sum(turn.generation.accept_lengths)


def until_stop(token_ids: Sequence[int], stop_ids: Collection[int]) -> tuple[int, ...]:
    """The tokens up to and with the first stop token; later ones do not count."""
    for index, token in enumerate(token_ids):
        if token in stop_ids:
            return tuple(token_ids[: index + 1])
    return tuple(token_ids)


def turn_seed(seed: int, question_id: int, turn: int) -> int:
    """A seed of its own for each turn, the same for every method."""
    return (seed * 1_000_003 + question_id * 1_009 + turn) % 2**63


def answer_question(
    question: Question,
    method: Method,
    tokenizer: TextTokenizer,
    settings: RunSettings,
    synchronise: Callable[[], None],
) -> list[Turn]:
    """All turns of one question with one method, its own earlier answers fed back."""
    conversation = Conversation(tokenizer, settings.prompt_format)
    turns: list[Turn] = []
    for index, text in enumerate(question.turns):
        prompt = conversation.ask(text)
        synchronise()
        start = time.perf_counter()
        try:
            generation = method.generator.generate(
                prompt,
                max_new_tokens=settings.max_new_tokens,
                stop_ids=tokenizer.eos_ids,
                sampling=replace(
                    settings.sampling, seed=turn_seed(settings.sampling.seed, question.question_id, index)
                ),
            )
        except VocabForgeError as error:
            raise _TurnFailed(index, error) from error
        synchronise()
        wall_time = time.perf_counter() - start
        token_ids = until_stop(generation.token_ids, tokenizer.eos_ids)
        answer = tokenizer.decode(list(token_ids)).strip()
        conversation.answer(token_ids, answer)
        turns.append(Turn(answer, token_ids, len(prompt), wall_time, generation))
    return turns


def run_methods(
    questions: Sequence[Question],
    methods: Sequence[Method],
    tokenizer: TextTokenizer,
    settings: RunSettings,
    folder: Path,
    *,
    model_ids: Mapping[str, str],
    synchronise: Callable[[], None] = lambda: None,
) -> list[Failure]:
    """Answer every question with every method; write ``answers/`` and ``details/`` below ``folder``.

    Args:
        methods: the first is the baseline (plain decoding).
        model_ids: ``model_id`` of the answer rows by method name.
        synchronise: waits for the device; called before and after each timed call.

    Returns:
        The questions that could not be answered, which the answer files leave out for all methods.

    Raises:
        DataError: no question could be answered at all.
    """
    writer = _Writer(folder, model_ids)
    running = {method.name: _Running() for method in methods}
    failures: list[Failure] = []
    with ProgressBar(f"Evaluating {len(methods)} methods", len(questions), "questions") as bar:
        bar.update(note="warm-up")
        _warm_up(questions[0], methods, tokenizer, settings, synchronise)
        for question in questions:
            made = _answer_all(question, methods, tokenizer, settings, synchronise)
            if isinstance(made, Failure):
                failures.append(made)
            else:
                writer.append(question, made)
                for name, turns in made.items():
                    running[name].add(turns)
            bar.update(1, note=_note(running, failures))
    if len(failures) == len(questions):
        raise DataError(
            "not one question could be answered",
            got=failures[0].reason,
            source=f"question {failures[0].question_id}, turn {failures[0].turn + 1}, {failures[0].method}",
        )
    writer.finish()
    if failures:
        say(f"{len(failures)} of {len(questions)} questions were left out; first: {failures[0].reason}")
    return failures


class _Writer:
    """The two row files of every method."""

    def __init__(self, folder: Path, model_ids: Mapping[str, str]) -> None:
        self._model_ids = model_ids
        files = file_names(list(model_ids))
        self._answers = {name: RowFile(folder / "answers" / file) for name, file in files.items()}
        self._details = {name: RowFile(folder / "details" / file) for name, file in files.items()}

    def append(self, question: Question, made: Mapping[str, Sequence[Turn]]) -> None:
        for name, turns in made.items():
            row = answer_row(
                question,
                turns,
                model_id=self._model_ids[name],
                answer_id=new_answer_id(),
                tstamp=time.time(),
            )
            self._answers[name].append(row)
            self._details[name].append(detail_row(question, turns))

    def finish(self) -> None:
        for file in (*self._answers.values(), *self._details.values()):
            file.finish()


def _answer_all(
    question: Question,
    methods: Sequence[Method],
    tokenizer: TextTokenizer,
    settings: RunSettings,
    synchronise: Callable[[], None],
) -> dict[str, list[Turn]] | Failure:
    """One question through all methods, or why the first method that failed did so."""
    made: dict[str, list[Turn]] = {}
    for method in methods:
        try:
            made[method.name] = answer_question(question, method, tokenizer, settings, synchronise)
        except _TurnFailed as failed:
            reason = failed.cause.render()
            return Failure(question.question_id, question.category, method.name, failed.turn, reason)
    return made


def _warm_up(
    question: Question,
    methods: Sequence[Method],
    tokenizer: TextTokenizer,
    settings: RunSettings,
    synchronise: Callable[[], None],
) -> None:
    for method in methods:
        for _ in range(settings.warmup):
            try:
                answer_question(question, method, tokenizer, settings, synchronise)
            except _TurnFailed:
                # The measured run meets the same failure and records it.
                break


def _note(running: Mapping[str, _Running], failures: Sequence[Failure]) -> str:
    """Running accepted length and speed-up of the first methods after the baseline."""
    baseline, *others = running.items()
    base = baseline[1]
    parts = []
    for name, figures in others[:_NOTED_METHODS]:
        if not figures.steps[0] or not base.tokens:
            continue
        speedup = (figures.tokens / figures.seconds) / (base.tokens / base.seconds)
        parts.append(f"{name} {figures.steps[1] / figures.steps[0]:.2f} tokens/step {speedup:.2f}x")
    if failures:
        parts.append(f"{len(failures)} left out")
    return ", ".join(parts)
