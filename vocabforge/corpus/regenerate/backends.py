"""Backends of ``regenerate`` (servers, or a target in this process), and the job that they run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ...core.console import say
from ...core.errors import DataError, VocabForgeError
from ...core.progress import ProgressBar, human_rate
from ..chat.conversation import read_tools
from ..chat.template import mentions
from ..sources.bytes import Problems
from ..sources.document import Document, SourceOptions
from ..sources.sources import iter_documents
from ..tokenizer.tokenizer import TextTokenizer
from .local import LocalTarget, Prompt
from .log import AnswerLog
from .pool import PoolOptions, ServerPool
from .rows import ChatCompletion, GenerationSettings, Walk, conversation_of
from .server import SENT, ChatServer

_SHOWN = 5
_SHOWN_TEXT = 48  # characters of the latest answer shown with the bar
_ALL_REFUSED = 20
_CHUNK_BATCHES = 16
_SENT = (*SENT, "tools", "chat_template_kwargs")


@dataclass(frozen=True)
class RegenerateJob:
    """Inputs to answer, and options for rows.

    Attributes:
        first_turn_only: answer the first turn and end the conversation there.
        keep_empty: keep rows with an answer without text or tool calls.
        drop_failed: drop rows with a failed request instead of raising at the end.
        tokenizer: tokenizer of a target in this process.
    """

    inputs: Sequence[Path | str]
    sources: SourceOptions
    generation: GenerationSettings
    first_turn_only: bool = False
    keep_empty: bool = False
    drop_failed: bool = False
    tokenizer: TextTokenizer | None = None

    def conversations(self, problems: Problems | None = None) -> Iterator[Document]:
        """Yield all conversations in order; skipped rows are reported only through ``problems``."""
        problems = Problems(strict=self.sources.strict, shown=0) if problems is None else problems
        for document in iter_documents(self.inputs, self.sources, problems=problems):
            try:
                conversation = conversation_of(document)
            except DataError as error:
                problems.take(error, document.source, document.line)
                continue
            problems.unread(self._unread(document), document.source, document.line)
            yield conversation

    def _unread(self, document: Document) -> Counter[str]:
        """Return the parts of a conversation's questions that the target does not read."""
        beside = document.beside_contents(answers=False)
        if self.tokenizer is None:
            return Counter({key: n for key, n in beside.items() if key.rpartition(" in ")[0] not in _SENT})
        template = self.tokenizer.template_for(read_tools(document.tools))
        left = {key: n for key, n in beside.items() if not mentions(template, key.rpartition(" in ")[0])}
        left.pop("chat_template_kwargs in rows", None)
        for key in document.variables:
            if not mentions(template, key):
                left[f"{key} of chat_template_kwargs in rows"] = 1
        return Counter(left)

    def walk(self, conversation: Document) -> Walk:
        """Return the walk of a conversation before its first answer."""
        return Walk(conversation, self.generation, self.first_turn_only, self.keep_empty)


class RegenerateRun:
    """Log of answers, progress bar (which starts with the logged answers), and number of failures."""

    def __init__(self, log: AnswerLog, bar: ProgressBar) -> None:
        self.log = log
        self.failed = 0
        self._bar = bar
        self._counted = len(log)
        self._tokens, self._began = 0, time.monotonic()

    def count(self, answer: ChatCompletion) -> None:
        """Count a new answer for the tokens per second."""
        self._tokens += answer.completion_tokens or 0

    def settle(self, walk: Walk, answer: ChatCompletion | None, reason: str = "") -> None:
        """Add the answer to a walk's request, or record that there is none, and advance the bar."""
        turns, note = walk.open_turns, None
        if answer is not None:
            walk.add(answer)
            turns -= walk.open_turns
            note = self._note(answer)
        else:
            self.failed += 1
            if self.failed <= _SHOWN:
                say(f"No answer for {walk.place}: {reason}")
            elif self.failed == _SHOWN + 1:
                say("More requests failed; only their number is reported.")
        before = min(self._counted, turns)
        self._counted -= before
        failed = f"{self.failed:,} without answer" if self.failed else ""
        self._bar.update(turns - before, " | ".join(filter(None, (failed, note))) or None)

    def _note(self, answer: ChatCompletion) -> str:
        rate = human_rate(self._tokens / max(time.monotonic() - self._began, 1e-9), "tokens")
        text = " ".join(str(answer.message.get("content") or "").split())
        return f"{rate} | {text[:_SHOWN_TEXT]}{'…' if len(text) > _SHOWN_TEXT else ''}"


Backend = Callable[[RegenerateJob, RegenerateRun], None]
"""Answers every request of the job that is not in the log, and adds the answers to the log."""


def server_backend(servers: Sequence[ChatServer], options: PoolOptions) -> Backend:
    """Return a backend that queries servers; see :class:`~vocabforge.corpus.regenerate.pool.ServerPool`."""

    def run(work: RegenerateJob, run: RegenerateRun) -> None:
        walks = map(work.walk, work.conversations())
        waiting: dict[str, list[Walk]] = {}  # equal prompts are sent once
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
                    continue  # all of these are already answered
                outcome = pool.next()
                if outcome.answer is not None:
                    answered = True
                    run.log.add(outcome.request.key, outcome.answer)
                    run.count(outcome.answer)
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
    """Return a backend that answers turn by turn and batches prompts of similar length.

    Args:
        batch_size: requests that are decoded side by side, on all workers of a cluster together.
    """

    def run(work: RegenerateJob, run: RegenerateRun) -> None:
        walks = map(work.walk, work.conversations())
        while chunk := list(islice(walks, _CHUNK_BATCHES * batch_size)):
            while chunk:
                chunk = _next_turn(target, chunk, run)

    return run


def _next_turn(target: LocalTarget, walks: Sequence[Walk], run: RegenerateRun) -> list[Walk]:
    """Answer the next request of every walk; return the walks that may have another request."""
    waiting: dict[str, list[Walk]] = {}  # equal prompts are answered once
    asked: dict[str, Prompt] = {}
    for walk in walks:
        if (request := walk.request()) is not None:
            waiting.setdefault(request.key, []).append(walk)
            if request.key not in asked:
                asked[request.key] = target.prompt(request)
    known = {key: run.log.get(key) for key in asked}
    todo = [prompt for key, prompt in asked.items() if known[key] is None and prompt.reason is None]
    going_on: list[Walk] = []
    for key, prompt in asked.items():
        if known[key] is not None or prompt.reason is not None:
            for walk in waiting[key]:
                run.settle(walk, known[key], prompt.reason or "")
            going_on += waiting[key] if known[key] is not None else []
    for prompt, answer in target.answer(sorted(todo, key=lambda prompt: len(prompt.ids))):
        run.log.add(prompt.request.key, answer)
        run.count(answer)
        for walk in waiting[prompt.request.key]:
            run.settle(walk, answer)
        going_on += waiting[prompt.request.key]
    return going_on
