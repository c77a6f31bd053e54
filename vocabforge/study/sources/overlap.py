"""Training texts that share a long run of words with what is held out."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

# Scripts that put no space between words: Thai and Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_CHARACTERS = 2  # so many characters of them stand for a word
_SHORT = 3  # a text is told by its whole from a third of the length on


class HeldoutOverlap:
    """Finds runs of words that held-out texts have, too, in other texts.

    A word is a run of letters, digits and marks, case-folded; punctuation and space are nothing. Of scripts without
    spaces between words each character is a unit, and twice as many in a row are asked for; words and such characters
    are looked at apart, each as if the others were not there. The texts of one conversation are one run, so that a
    passage is also found where it is parted into question and answer. A text that is shorter than ``length`` in both
    is found, from a third of it on, where another's text is the same words altogether: most questions are short.

    Args:
        sets: held-out conversations, each as its texts, by the name of their set.
        length: words in a row.
    """

    def __init__(self, sets: Mapping[str, Iterable[Sequence[str]]], length: int) -> None:
        self._length = length
        self._sets = {
            name: {run for texts in talks for run in self._runs(texts)} for name, talks in sets.items()
        }

    def met(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Names of the sets that the texts of a conversation share a run of words with."""
        runs = set(self._runs(texts))
        return tuple(name for name, own in self._sets.items() if not own.isdisjoint(runs))

    def _runs(self, texts: Sequence[str]) -> Iterator[int]:
        """A 64-bit hash of every run of a conversation, and of every short text."""
        length = self._length
        words: list[str] = []
        characters: list[str] = []
        for text in texts:
            mine, theirs = _units(text)
            words += mine
            characters += theirs
            short = len(mine) < length and len(theirs) < _CHARACTERS * length
            if short and _SHORT * (_CHARACTERS * len(mine) + len(theirs)) >= _CHARACTERS * length:
                yield hash(("", *mine, "", *theirs))
        for units, size in ((words, length), (characters, _CHARACTERS * length)):
            yield from (hash(tuple(units[at : at + size])) for at in range(len(units) - size + 1))


def _units(text: str) -> tuple[list[str], list[str]]:
    """(words, characters of scripts without spaces) of a text, in order."""
    folded = unicodedata.normalize("NFC", text).casefold()
    word, character = _patterns()
    characters = character.findall(folded)
    return word.findall(character.sub(" ", folded) if characters else folded), characters


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A word, and a character that is one; ``\\w`` alone would cut words at the vowel signs of many scripts."""
    marks = "".join(chr(code) for code in range(0x300, 0x10000) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(f"[\\w{marks}]+"), re.compile(f"[{_UNSPACED}]")
