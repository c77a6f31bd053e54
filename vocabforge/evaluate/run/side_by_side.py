"""Answer questions with several requests decoded side by side, to measure speed under load."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...decode.engine import Decoder
from ...decode.request import Generation, Request
from ...decode.work import check_request
from ..benchmarks import Question
from ..results.answers import AnsweredTurn
from ..results.settings import EvaluationRun
from .prompts import system_of
from .request import Asking, TurnFailed, turn_failed, turn_seed

_WARMUP_TOKENS = 8


@dataclass
class Load:
    """Tokens generated at a number of requests, and the seconds in which any was in progress.

    Includes turns of questions that were not finished before an interruption. Seconds in which passes were captured
    are left out.
    """

    concurrency: int
    new_tokens: int = 0
    seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        """Return the load as a window of the journal; see ``servers/generator.py``."""
        return {**vars(self), "speculation": None, "foreign_tokens": 0, "server": {}}


class _Conversation:
    def __init__(self, question: Question, asking: Asking) -> None:
        self.question = question
        self.builder = asking.conversation(system_of(question, asking.settings.system))
        self.turns: list[AnsweredTurn] = []
        self.prompt: Sequence[int] = ()


def answer_together(
    questions: Sequence[Question], decoder: Decoder, asking: Asking, run: EvaluationRun, load: Load
) -> Iterator[tuple[Question, list[AnsweredTurn] | TurnFailed]]:
    """Yield each question with its turns, or its failure, as it ends; add times and tokens to ``load``.

    All first turns are answered in one batch, then all second turns, and so on. The time of a turn is that of its
    passes, without the wait for a free row.
    """
    open_ones = [_Conversation(question, asking) for question in questions]
    while open_ones:
        batch, asked = [], []
        for conversation in open_ones:
            try:
                batch.append(_request(conversation, decoder, asking, run))
                asked.append(conversation)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 (any error caused by a prompt is its failure)
                yield conversation.question, turn_failed(len(conversation.turns), error)
        results = [Generation() for _ in batch]
        open_ones = []
        for number in _ended(decoder, batch, results, asking, load):
            conversation = asked[number]
            result = results[number]
            turn = asking.turn(conversation.prompt, result, result.prefill_s + result.decode_s)
            conversation.turns.append(turn)
            load.new_tokens += turn.new_tokens
            if len(conversation.turns) == len(conversation.question.turns):
                yield conversation.question, conversation.turns
            else:
                conversation.builder.answer(turn.token_ids or (), turn.text)
                open_ones.append(conversation)


def _request(conversation: _Conversation, decoder: Decoder, asking: Asking, run: EvaluationRun) -> Request:
    index, settings = len(conversation.turns), asking.settings
    conversation.prompt = conversation.builder.ask(conversation.question.turns[index])
    seed = turn_seed(run.seed, conversation.question.question_id, index)
    sampling = replace(settings.sampling_of(run), seed=seed)
    request = Request(conversation.prompt, settings.max_new_tokens, asking.stop_ids, sampling)
    check_request(request, decoder.context, decoder.target.config.vocab_size)
    return request


def _ended(
    decoder: Decoder, requests: Sequence[Request], results: Sequence[Generation], asking: Asking, load: Load
) -> Iterator[int]:
    """Yield the numbers of requests as they end; count only the decoder's own time."""
    stream = decoder.stream_batch(requests, results)
    while True:
        asking.synchronise()
        began, captured = time.perf_counter(), decoder.recording_s
        number, _ = next(stream, (None, None))
        asking.synchronise()
        load.seconds += time.perf_counter() - began - (decoder.recording_s - captured)
        if number is None:
            return
        if results[number].done:
            yield number


def warm_up(questions: Sequence[Question], decoder: Decoder, asking: Asking, run: EvaluationRun) -> None:
    """Answer the first questions with a few tokens, unmeasured."""
    short = replace(asking, settings=replace(asking.settings, max_new_tokens=_WARMUP_TOKENS))
    for _ in answer_together(questions[: run.concurrency], decoder, short, run, Load(run.concurrency)):
        pass
