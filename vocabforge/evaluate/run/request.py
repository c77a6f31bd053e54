"""Ask one method one question: its turns, timed as in Spec-Bench, or the reason of a failure."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...core.errors import VocabForgeError
from ..benchmarks import Question
from ..results.answers import AnsweredTurn
from ..results.settings import EvaluationRun, RunSettings
from .prompts import PromptBuilder, check_system, system_of

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ...decode.build.methods import Method
    from ...decode.request import Generation

# Turns during which passes were captured are asked again; adaptive control may use new shapes each time.
_MOST_TRIES = 8


class MustStop(VocabForgeError):
    """No further question can be answered; the current question is asked again when the run is resumed."""


class TurnFailed(NamedTuple):
    """A turn that could not be answered. Holds strings only: an exception would keep tensors alive."""

    turn: int
    kind: str
    reason: str


@dataclass(frozen=True)
class Asking:
    """How questions are asked."""

    tokenizer: TextTokenizer
    settings: RunSettings
    synchronise: Callable[[], None]
    by_method: ClassVar[bool] = False  # finish all questions of a method before the next method

    def identity(self, questions: Sequence[Question]) -> dict[str, Any]:
        """Return what determines the prompts in addition to the settings.

        Raises:
            UsageError: no prompt would include the system message.
        """
        tokenizer, settings = self.tokenizer, self.settings
        check_system(tokenizer, settings.prompt_format, settings.system, questions)
        return {
            "tokenizer": tokenizer.fingerprint,
            "stop_ids": list(tokenizer.eos_ids),
            "chat_template_sha256": short_digest(tokenizer.chat_template),
        }

    def ask(self, question: Question, method: Method, run: EvaluationRun) -> list[AnsweredTurn] | TurnFailed:
        """Answer all turns of a question with a method, feeding back its own earlier answers.

        Returns:
            The turns, or the failure that any error caused that does not end the process.

        Raises:
            MemoryError: the machine lacks memory.
            MustStop: no further question can be answered.
        """
        settings, generator, stop_ids = self.settings, method.generator, self.stop_ids
        limit, sampling = settings.max_new_tokens, settings.sampling_of(run)
        system = system_of(question, settings.system)
        conversation = self.conversation(system)
        turns: list[AnsweredTurn] = []
        for index, text in enumerate(question.turns):
            try:
                prompt = conversation.ask(text)
                if (reserve := getattr(generator, "reserve", None)) is not None:
                    reserve(len(prompt) + limit)
                for _ in range(_MOST_TRIES):
                    before = getattr(generator, "recordings", 0)
                    self.synchronise()
                    start = time.perf_counter()
                    generation = generator.generate(
                        prompt,
                        max_new_tokens=limit,
                        stop_ids=stop_ids,
                        sampling=replace(sampling, seed=turn_seed(run.seed, question.question_id, index)),
                    )
                    self.synchronise()
                    wall_time = time.perf_counter() - start
                    if getattr(generator, "recordings", 0) == before:
                        break
                turn = self.turn(prompt, generation, wall_time)
                conversation.answer(turn.token_ids or (), turn.text)
                turns.append(turn)
            except (MemoryError, MustStop):  # caused by the machine, not by the prompt
                raise
            except Exception as error:  # noqa: BLE001 (any error caused by a prompt is its failure)
                return turn_failed(index, error)
        return turns

    @property
    def stop_ids(self) -> Collection[int]:
        """Return the tokens that end an answer."""
        return self.tokenizer.eos_ids

    def conversation(self, system: str | None) -> PromptBuilder:
        """Return the builder of a question's prompts."""
        return PromptBuilder(self.tokenizer, self.settings.prompt_format, system)

    def turn(self, prompt: Sequence[Any], generation: Generation, wall_time: float) -> AnsweredTurn:
        """Return the generated turn, up to the first stop token."""
        token_ids = until_stop(generation.token_ids, self.tokenizer.eos_ids)
        said = self.tokenizer.decode(list(token_ids)).strip()
        return AnsweredTurn(said, token_ids, len(prompt), wall_time, generation)


def short_digest(value: Any) -> str:
    """Return the hash of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def until_stop(token_ids: Sequence[int], stop_ids: Collection[int]) -> tuple[int, ...]:
    """Return the tokens up to and including the first stop token."""
    for index, token in enumerate(token_ids):
        if token in stop_ids:
            return tuple(token_ids[: index + 1])
    return tuple(token_ids)


def turn_seed(seed: int, question_id: int, turn: int) -> int:
    """Return a separate seed for each turn, the same for every method."""
    return (seed * 1_000_003 + question_id * 1_009 + turn) % 2**63


def turn_failed(turn: int, error: Exception) -> TurnFailed:
    """Return the failure of a turn that an error caused."""
    return TurnFailed(turn, type(error).__name__, _reason(error))


def _reason(error: Exception) -> str:
    """Return the error's message, with its place in the code unless it is a user error."""
    if isinstance(error, VocabForgeError):
        return error.render()
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})"
    return f"{str(error).strip() or type(error).__name__}{where}"
