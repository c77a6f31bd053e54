"""What every reader of a study's sources is given, and what it gives."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..corpus.conversation import Message
from ..corpus.reading import Problems
from .config_data import SourceConfig


@dataclass(frozen=True)
class Talk:
    """One conversation of a source.

    Attributes:
        messages: as the corpus reader writes them (``corpus.conversation``); the last one is the assistant's.
        category: of the question that its prompts make: a language, or ``code``.
        tools: tool list of the row, as it stands there.
    """

    messages: list[Message]
    category: str
    tools: Any = None

    @property
    def prompts(self) -> list[str]:
        """What the user says, turn by turn."""
        return [str(message["content"]) for message in self.messages if message["role"] == "user"]

    @property
    def texts(self) -> list[str]:
        """All that is said, thinking included."""
        parts = ((message.get("reasoning_content"), message["content"]) for message in self.messages)
        return [str(part) for pair in parts for part in pair if part]

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class Reading:
    """What a reader is given.

    Attributes:
        source: as it is configured.
        root: folder of the files; None where there is none.
        size: answers cut from plain text have about this length; see ``source_cutting.weight``.
        problems: counts what is skipped.
    """

    source: SourceConfig
    root: Path | None
    size: int
    problems: Problems

    @property
    def path(self) -> Path:
        """The source's file.

        Raises:
            UsageError: no file is named, or no folder.
        """
        if self.source.path is None or self.root is None:
            raise UsageError(
                f"the source {self.source.name} of kind {self.source.kind} has no file",
                got=f"path: {self.source.path}, data.root: {self.root}",
                expected="both, for every kind but sample",
                remedy="set data.root to the folder of the data, or take the size that needs none",
            )
        return self.root / self.source.path

    def chance(self, number: int) -> random.Random:
        """The dice of a document: they depend on the source's name and the document's number in it."""
        return random.Random(f"{self.source.name}/{number}")


def pair(prompt: str, answer: str) -> list[Message]:
    """A conversation of one question and one answer."""
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
