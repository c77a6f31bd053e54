"""Documents, and options for splitting and sampling files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import UsageError
from ...core.values import TextUnit
from ..chat.conversation import INTERNAL, Message, is_empty, key_name
from .bytes import Problems, file_size

if TYPE_CHECKING:
    from ..tokenizer.cuts import CutRule


@dataclass(frozen=True)
class SourceOptions:
    """Options for splitting files into documents and sampling them.

    Attributes:
        text_field: JSON field (Parquet column) of the text or conversation; None tries the usual fields.
        text_unit: documents in a text file: the whole file, lines, or paragraphs (separated by blank lines).
        separator: literal that separates documents, instead of ``text_unit``; newlines around it are dropped.
        strict: raise at the first unreadable line instead of counting and skipping it.
        sample: probability of keeping each document, None for all. The draw depends only on ``seed``, the
            file's name and size, and the document's place in the file.
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
        if self.separator is not None and self.text_unit != "file":
            raise UsageError(
                "--separator and --text-unit exclude each other",
                got=f"--text-unit {self.text_unit}",
                expected="one of them",
                remedy="leave --text-unit out: the separator parts documents",
            )
        if self.sample is not None and not 0 < self.sample <= 1:
            raise UsageError(
                "the share of documents to sample is out of range",
                got=self.sample,
                expected="above 0, at most 1",
            )


@dataclass(frozen=True)
class Document:
    """Text or conversation (a row can hold both) with its location.

    Attributes:
        text: the text, or a piece of it.
        line: number of the line or row, or a description of the place in a later part of a split file; a
            piece has that of its document.
        begins: False for a piece that continues the previous document after a safe cut.
        tools: the row's tool list, unchanged.
        variables: the row's variables for the chat template.
    """

    text: str | None
    messages: list[Message] | None
    source: Path
    line: int | str
    begins: bool = True
    tools: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    def plain_text(self) -> str:
        """Return the text, or the contents of a conversation joined by newlines."""
        if self.text is not None:
            return self.text
        return "\n".join(str(message["content"]) for message in self.messages or ())

    def beside_contents(self, *, answers: bool = True) -> Counter[str]:
        """Count keys other than the contents of turns, as ``KEY in turns`` and ``KEY in rows``.

        Without ``answers``, turns of the assistant are ignored.
        """
        counts = Counter(
            f"{key_name(message, key)} in turns"
            for message in self.messages or ()
            if answers or message["role"] != "assistant"
            for key, value in message.items()
            if key not in (*INTERNAL, "role", "content") and not is_empty(value)
        )
        if not is_empty(self.tools):
            counts["tools in rows"] += 1
        if self.variables:
            counts["chat_template_kwargs in rows"] += 1
        return counts


@dataclass(frozen=True)
class ReadContext:
    """Common arguments of all readers.

    With ``cut``, a text file that is one document can be read in pieces; without it, texts above
    ``whole_limit`` bytes are rejected.
    """

    options: SourceOptions
    problems: Problems
    on_bytes: Callable[[int], None] | None = None
    cut: CutRule | None = None
    whole_limit: int | None = None


class Sampler:
    """Sampler of documents of one source, by a hash of seed, source (name and stored bytes) and place."""

    def __init__(self, options: SourceOptions, name: str, size: int) -> None:
        self._share = options.sample
        self._hash = hashlib.blake2b(digest_size=8)
        self._hash.update(f"{options.seed}\0{name}\0{size}\0".encode("utf-8", "surrogatepass"))

    @classmethod
    def of_file(cls, options: SourceOptions, path: Path) -> Sampler:
        """Return the sampler of a file; the file size is read only if sampling is on."""
        return cls(options, path.name, file_size(path) if options.sample is not None else 0)

    def keeps(self, place: int | str) -> bool:
        """Return whether the document at this place (byte, row, or number within its source) is kept."""
        if self._share is None:
            return True
        digest = self._hash.copy()
        digest.update(str(place).encode())
        return int.from_bytes(digest.digest(), "little") < self._share * 2**64
