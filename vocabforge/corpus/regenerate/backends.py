"""Backends of ``regenerate``: servers, or a target in this process, and the work that they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ...core.console import say
from ...core.errors import DataError, VocabForgeError
from ...core.progress import ProgressBar
from ..sources.bytes import Problems
from ..sources.document import SourceOptions
from ..sources.sources import iter_documents
from .local import LocalTarget, Prompt
from .log import AnswerLog
from .pool import PoolOptions, ServerPool
from .rows import ChatCompletion, GenerationSettings, PromptConversation, Walk, conversation_of
from .server import ChatServer

_SHOWN = 5
_ALL_REFUSED = 20
_CHUNK_BATCHES = 16


@dataclass(frozen=True)
class RegenerateJob:
    """What is to be answered, and how rows are treated.

    Attributes:
        first_turn_only: answer the first turn and end the conversation there.
        keep_empty: keep rows with an answer without text or tool calls.
        drop_failed: leave out rows with a request that found no answer, instead of stopping at the end.
    """

    inputs: Sequence[Path | str]
    sources: SourceOptions
    generation: GenerationSettings
    first_turn_only: bool = False
    keep_empty: bool = False
    drop_failed: bool = False

    def conversations(self, problems: Problems | None = None) -> Iterator[PromptConversation]:
        """All conversations in order; what is skipped is said only if ``problems`` says it."""
        problems = Problems(strict=self.sources.strict, shown=0) if problems is None else problems
        for document in iter_documents(self.inputs, self.sources, problems=problems):
            try:
                conversation = conversation_of(document)
            except DataError as error:
                problems.take(error, document.source, document.line)
                continue
            yield conversation

    def walk(self, conversation: PromptConversation) -> Walk:
        """The conversation before its first answer."""
        return Walk(conversation, self.generation, self.first_turn_only, self.keep_empty)


class RegenerateRun:
    """The log of answers, the bar (which starts with those in the log), and the number of failures."""

    def __init__(self, log: AnswerLog, bar: ProgressBar) -> None:
        self.log = log
        self.failed = 0
        self._bar = bar
        self._counted = len(log)

    def settle(self, walk: Walk, answer: ChatCompletion | None, reason: str = "") -> None:
        """Give a walk the answer to its request, or note that there is none; the bar moves by what is done."""
        turns = walk.open_turns
        if answer is not None:
            walk.add(answer)
            turns -= walk.open_turns
        else:
            self.failed += 1
            if self.failed <= _SHOWN:
                say(f"No answer for {walk.conversation.source}: {reason}")
            elif self.failed == _SHOWN + 1:
                say("More requests failed; only their number is reported.")
        before = min(self._counted, turns)
        self._counted -= before
        self._bar.update(turns - before, f"{self.failed:,} without answer" if self.failed else None)


Backend = Callable[[RegenerateJob, RegenerateRun], None]
"""Answers every request of the work that the log lacks, and adds the answers to it."""


def server_backend(servers: Sequence[ChatServer], options: PoolOptions) -> Backend:
    """Ask servers; see :class:`~vocabforge.corpus.regenerate.pool.ServerPool`."""

    def run(work: RegenerateJob, run: RegenerateRun) -> None:
        walks = map(work.walk, work.conversations())
        waiting: dict[str, list[Walk]] = {}  # equal prompts are asked once
        refused, answered = 0, False
        with ServerPool(servers, options) as pool:

            def advance(walk: Walk) -> None:
                while (request := walk.request()) is not None:
                    if (answer := run.log.get(request.key)) is not None:
                        run.settle(walk, answer)
                    elif request.key in waiting:
                        waiting[request.key].append(walk)
                        return
                    else:
                        waiting[request.key] = [walk]
                        pool.submit(request)
                        return

            while True:
                taken = list(islice(walks, max(pool.room, 0)))
                for walk in taken:
                    advance(walk)
                if not pool.under_way:
                    if not taken:
                        break
                    continue  # all of these were answered before: read on
                outcome = pool.next()
                if outcome.answer is not None:
                    answered = True
                    run.log.add(outcome.request.key, outcome.answer)
                else:
                    refused += 1
                if refused >= _ALL_REFUSED and not answered:
                    raise VocabForgeError(
                        "the servers refuse every request",
                        got=outcome.reason,
                        remedy="check --model, --max-tokens and the other settings of requests",
                    )
                for walk in waiting.pop(outcome.request.key):
                    run.settle(walk, outcome.answer, outcome.reason)
                    if outcome.answer is not None:
                        advance(walk)

    return run


def local_backend(target: LocalTarget, batch_size: int) -> Backend:
    """Answer in this process, turn by turn through chunks of conversations, in batches of like length.

    A batch is a function of the input alone: after a resume, a batch that was kept in part is answered whole
    again, since neighbours in a batch can decide near ties.
    """

    def run(work: RegenerateJob, run: RegenerateRun) -> None:
        walks = map(work.walk, work.conversations())
        while chunk := list(islice(walks, _CHUNK_BATCHES * batch_size)):
            while True:
                asked: dict[str, Prompt] = {}
                pending: list[tuple[Walk, str]] = []
                for walk in chunk:
                    if (request := walk.request()) is not None:
                        pending.append((walk, request.key))
                        if request.key not in asked:
                            asked[request.key] = target.prompt(request)
                if not pending:
                    break
                _answer_all(target, list(asked.values()), batch_size, run)
                chunk = []
                for walk, key in pending:
                    answer = run.log.get(key)
                    run.settle(walk, answer, asked[key].reason or "")
                    chunk += [walk] if answer is not None else []

    return run


def _answer_all(target: LocalTarget, prompts: Sequence[Prompt], batch_size: int, run: RegenerateRun) -> None:
    possible = sorted((p for p in prompts if p.reason is None), key=lambda prompt: len(prompt.ids))
    for start in range(0, len(possible), batch_size):
        batch = possible[start : start + batch_size]
        if all(run.log.get(prompt.request.key) is not None for prompt in batch):
            continue
        for prompt, answer in zip(batch, target.answer(batch), strict=True):
            run.log.add(prompt.request.key, answer)
