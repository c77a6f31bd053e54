"""Stop strings: a request ends at the token that completes one, regardless of token boundaries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.errors import UsageError

if TYPE_CHECKING:
    from ..corpus.tokenizer.tokenizer import TextTokenizer

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # how tokenizers decode bytes that do not form a complete character


class StopStrings:
    """Rule that ends the output at the first token after which its text contains one of the strings.

    Each token costs one decoding of the few tokens since the second-to-last point with complete text: a
    character may span several tokens, and decoders treat the first token of a text differently.

    The string that ends first in the text applies; if several end together, the longest. ``before`` are the
    last tokens of the prompt, whose text the output continues: some decoders strip the first space of a text.

    Raises:
        UsageError: no string is given, or one is empty or has a replacement character (U+FFFD).
    """

    def __init__(self, tokenizer: TextTokenizer, strings: Sequence[str], before: Sequence[int] = ()) -> None:
        wrong = [string for string in strings if not string or INCOMPLETE in string]
        if wrong or not strings or isinstance(strings, str):
            raise UsageError(
                "a stop string is text that the output can hold",
                got=repr(wrong[0] if wrong else strings),
                expected="one or more strings of at least one character, none of them U+FFFD",
            )
        self._tokenizer, self._strings = tokenizer, tuple(strings)
        self._reach = max(map(len, strings)) - 1  # characters before a token that may belong to a stop string
        self._ids, self._before = list(before), len(before)
        self._base = tokenizer.decode(self._ids) if before else ""
        self._stopped = False
        self._tail = ""  # the last characters of the whole text so far
        # The text is complete before each of these two tokens; `_known` is the text between them.
        self._start, self._whole = 0, self._before
        self._known = self._base

    def kept(self, token_ids: Sequence[int], fresh: int) -> int | None:
        """Return how many generated tokens to keep, the completing one included; None to continue.

        The last ``fresh`` of the ``token_ids`` are new since the last call.
        """
        for token in token_ids[len(token_ids) - fresh :]:
            self._ids.append(token)
            if self._completes():
                self._stopped = True
                break
        self.__dict__.pop("text", None)
        return len(self._ids) - self._before if self._stopped else None

    def _completes(self) -> bool:
        decoded = self._tokenizer.decode(self._ids[self._start :])
        text = self._tail + decoded[len(self._known) :]
        if any(string in text for string in self._strings):
            return True
        if not decoded.endswith(INCOMPLETE):
            self._advance(decoded)
        return False

    def _advance(self, decoded: str) -> None:
        self._tail = (self._tail + decoded[len(self._known) :])[-self._reach :] if self._reach else ""
        since = self._tokenizer.decode(self._ids[self._whole :])
        # If the first token has no text (a special token), the next would be decoded as the first.
        if since:
            self._start, self._known = self._whole, since
        else:
            self._known = decoded
        self._whole = len(self._ids)

    @cached_property
    def text(self) -> str:
        """Text of the output, without the stop string and anything after it."""
        text = self._tokenizer.decode(self._ids)[len(self._base) :]
        if not self._stopped:
            return text
        starts = [(text.find(string), len(string)) for string in self._strings]
        ends = [(start + length, start) for start, length in starts if start >= 0]
        return text[: min(ends)[1]] if ends else text

    @property
    def settled(self) -> str:
        """The part of ``text`` that is final: no later token changes it or makes it part of a stop string."""
        text = self.text
        if self._stopped:
            return text
        text = text.rstrip(INCOMPLETE)
        begun = [
            length
            for string in self._strings
            for length in range(1, min(len(string), len(text) + 1))
            if text.endswith(string[:length])
        ]
        return text[: len(text) - max(begun, default=0)]
