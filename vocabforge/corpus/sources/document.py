"""Documents, and how they are cut and drawn from files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...core.errors import UsageError
from ..chat.conversation import INTERNAL, Message, is_empty, key_name
from .bytes import Problems, file_size

if TYPE_CHECKING:
    from ..tokenizer.cuts import CutRule

TextUnit = Literal["file", "line", "paragraph"]


@dataclass(frozen=True)
class SourceOptions:
    """How files are cut into documents, and which of them are kept.

    Attributes:
        text_field: JSON field (Parquet column) of the text or the conversation; None finds the usual ones.
        text_unit: a text file is one document, or one a line, or one a paragraph (blank lines part them).
        separator: documents of a text file are parted by this literal instead, newlines around it dropped.
        strict: the first unreadable line is an error instead of being counted and skipped.
        sample: each document is kept with this probability, None for all. The draw depends on nothing but ``seed``,
            the file's name and size and the document's place in it.
    """

    text_field: str | None = None
    text_unit: TextUnit = "file"
    separator: str | None = None
    strict: bool = False
    sample: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.separator == "":
            raise UsageError(
                "the separator of documents is empty", expected='a literal such as "<|endoftext|>"'
            )
        if self.sample is not None and not 0 < self.sample <= 1:
            raise UsageError(
                "the share of documents to sample is out of range",
                got=self.sample,
                expected="above 0, at most 1",
            )


@dataclass(frozen=True)
class Document:
    """One text or one conversation (a row can hold both), and where it stands.

    Attributes:
        text: the text, or a piece of it.
        line: line, row, or, behind the start of a split file, place in words; of a piece, its document's.
        begins: False for a piece that continues the document before it, behind a safe cut.
        tools: the row's tool list as it stands there.
        variables: the row's own names for the chat template.
    """

    text: str | None
    messages: list[Message] | None
    source: Path
    line: int | str
    begins: bool = True
    tools: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    def plain_text(self) -> str:
        """The text; for a conversation its contents, one under the other."""
        if self.text is not None:
            return self.text
        return "\n".join(str(message["content"]) for message in self.messages or ())

    def beside_contents(self, *, answers: bool = True) -> Counter[str]:
        """What the conversation holds beside the contents of its turns: ``KEY in turns``, and of the row ``KEY in
        rows``; without ``answers`` turns of the assistant do not count.
        """
        found = Counter(
            f"{key_name(message, key)} in turns"
            for message in self.messages or ()
            if answers or message["role"] != "assistant"
            for key, value in message.items()
            if key not in (*INTERNAL, "role", "content") and not is_empty(value)
        )
        if not is_empty(self.tools):
            found["tools in rows"] += 1
        if self.variables:
            found["chat_template_kwargs in rows"] += 1
        return found


@dataclass(frozen=True)
class ReadContext:
    """What every reader is given beside the file: ``cut`` lets a text file that is one document be read in pieces;
    without it texts above ``whole_limit`` bytes are refused.
    """

    options: SourceOptions
    problems: Problems
    on_bytes: Callable[[int], None] | None = None
    cut: CutRule | None = None
    whole_limit: int | None = None


class Sampler:
    """Draws documents of one source by a hash of seed, source (name and stored bytes) and place."""

    def __init__(self, options: SourceOptions, name: str, size: int) -> None:
        self._share = options.sample
        self._hash = hashlib.blake2b(digest_size=8)
        self._hash.update(f"{options.seed}\0{name}\0{size}\0".encode("utf-8", "surrogatepass"))

    @classmethod
    def of_file(cls, options: SourceOptions, path: Path) -> Sampler:
        """The sampler of a file (whose size is asked for only when it matters)."""
        return cls(options, path.name, file_size(path) if options.sample is not None else 0)

    def keeps(self, place: int | str) -> bool:
        """Whether the document at this place (byte, row, or number within its source) is kept."""
        if self._share is None:
            return True
        digest = self._hash.copy()
        digest.update(str(place).encode())
        return int.from_bytes(digest.digest(), "little") < self._share * 2**64
