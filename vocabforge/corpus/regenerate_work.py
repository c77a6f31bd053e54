"""One run of ``regenerate``: what is to be answered, and what a backend is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import DataError
from ..core.progress import ProgressBar, say
from .document import SourceOptions
from .reading import Problems
from .regenerate_log import AnswerLog
from .regenerate_rows import Answer, Conversation, Generation, Policy, Request, Walk, conversation_of
from .sources import iter_documents

_SHOWN = 5


@dataclass(frozen=True)
class Work:
    """What is to be answered, and how rows are treated.

    Attributes:
        inputs: files, folders, globs, Hub data sets.
        sources: how they are read.
        generation: what decides an answer.
        policy: what becomes of rows.
        drop_failed: leave out rows with a request that found no answer, instead of stopping at the end.
    """

    inputs: Sequence[Path | str]
    sources: SourceOptions
    generation: Generation
    policy: Policy = field(default_factory=Policy)
    drop_failed: bool = False

    def conversations(self, problems: Problems | None = None) -> Iterator[Conversation]:
        """All conversations in order; what is skipped is said only if ``problems`` says it."""
        problems = Problems(strict=self.sources.strict, shown=0) if problems is None else problems
        for document in iter_documents(self.inputs, self.sources, problems=problems):
            try:
                conversation = conversation_of(document)
            except DataError as error:
                problems.take(error, document.source, document.line)
                continue
            yield conversation

    def walk(self, conversation: Conversation) -> Walk:
        """The conversation before its first answer."""
        return Walk(conversation, self.generation, self.policy)


class Run:
    """What a backend is given beside the work: the log of answers, the bar, and a place for failures.

    Args:
        log: of answers; those of an earlier run are in it.
        bar: counts answers, and starts with those in the log.
    """

    def __init__(self, log: AnswerLog, bar: ProgressBar) -> None:
        self.log = log
        self.failed = 0
        self._bar = bar
        self._counted = len(log)

    def keep(self, request: Request, answer: Answer) -> None:
        """Put an answer into the log."""
        self.log.add(request.key, answer)

    def settle(self, walk: Walk, answer: Answer | None, reason: str = "") -> None:
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
                say("More requests found no answer; only their number is reported.")
        before = min(self._counted, turns)
        self._counted -= before
        self._bar.update(turns - before, f"{self.failed:,} without answer" if self.failed else None)
