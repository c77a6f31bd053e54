"""Training texts that share a long run of words with what is held out."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

# Scripts that put no space between words: Thai and Lao, Tibetan, Burmese, Khmer, Japanese, Chinese.
_UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_CHARACTERS = 2  # so many characters of them stand for a word
_SHORT = 3  # a text is told by its whole from a third of the length on
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word is ever multiplied away


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
        self._codes = _Codes()
        none = np.empty(0, dtype=np.uint64)
        self._sets = {
            name: np.sort(np.concatenate([none, *(self._hashes(texts) for texts in talks)]))
            for name, talks in sets.items()
        }
        self._all = np.sort(np.concatenate([none, *self._sets.values()]))

    def met(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Names of the sets that the texts of a conversation share a run of words with."""
        hashes = self._hashes(texts)
        shared = hashes[_among(hashes, self._all)]
        if not len(shared):
            return ()
        return tuple(name for name, own in self._sets.items() if _among(shared, own).any())

    def _hashes(self, texts: Sequence[str]) -> Hashes:
        """A number for every run of a conversation, and for every short text."""
        length, found = self._length, []
        words: list[str] = []
        characters: list[str] = []
        for text in texts:
            mine, theirs = _units(text)
            words += mine
            characters += theirs
            short = len(mine) < length and len(theirs) < _CHARACTERS * length
            if short and _SHORT * (_CHARACTERS * len(mine) + len(theirs)) >= _CHARACTERS * length:
                whole = "\0".join([*mine, "", *theirs])
                found.append(np.array([_code(whole)], dtype=np.uint64))
        found.append(_rolling(self._codes.of(words), length))
        found.append(_rolling(self._codes.of(characters), _CHARACTERS * length))
        return np.concatenate(found)


class _Codes(dict[str, int]):
    """A number for every word, drawn by a hash that depends on nothing but the word."""

    def __missing__(self, word: str) -> int:
        self[word] = found = _code(word)
        return found

    def of(self, words: Sequence[str]) -> Hashes:
        return np.fromiter(map(self.__getitem__, words), dtype=np.uint64, count=len(words))


def _among(hashes: Hashes, sorted_hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Which of the hashes are among the others."""
    if not len(sorted_hashes):
        return np.zeros(len(hashes), dtype=np.bool_)
    places = np.minimum(np.searchsorted(sorted_hashes, hashes), len(sorted_hashes) - 1)
    return np.asarray(sorted_hashes[places] == hashes)


def _code(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def _rolling(codes: Hashes, length: int) -> Hashes:
    """sum_i code_{j+i} B^(length-1-i) mod 2^64 for every run of ``length`` codes (n - length + 1,)."""
    runs = len(codes) - length + 1
    if runs < 1:
        return codes[:0]
    found = np.zeros(runs, dtype=np.uint64)
    for at in range(length):
        found *= _BASE
        found += codes[at : at + runs]
    return found


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
