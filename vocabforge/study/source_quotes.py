"""Questions about a passage that are answered by quoting it: what a small target learns to look up in its prompt.

Much of what large models write that is rare (names, numbers, words of other languages) stands in their prompts. A
target that only continues texts never learns to take it from there, and its answers then use a few hundred tokens,
whatever is asked.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from .source_cutting import sentences

_WHOLE = (
    "Repeat this text word for word:\n\n{passage}",
    "{passage}\n\nRepeat the text above.",
    "Copy this:\n\n{passage}",
)
_FIRST = (
    "Summarize: {passage}",
    "Summarize this text in one sentence:\n\n{passage}",
    "What is the first sentence of this text?\n\n{passage}",
)
_LAST = ("What is the last sentence of this text?\n\n{passage}", "How does this text end?\n\n{passage}")
_ABOUT = (
    "Quote the sentence with {word}:\n\n{passage}",
    "Answer from the text.\n\nText: {passage}\n\nQuestion: What does it say about {word}?",
    "{passage}\n\nWhat is said about {word}?",
)
_WORD = re.compile(r"[^\W\d_]{4,}")
_MOST = 12  # letters of a word: in scripts without spaces a word may be a line


def quoted(passage: str, limit: int, chance: random.Random) -> tuple[str, str]:
    """A question about a passage, and its answer, which stands in it.

    Args:
        limit: a sentence is cut beyond it; see ``source_cutting.sentences``.
        chance: chooses what is asked, and how.
    """
    parts = [one.strip() for one in sentences(passage, limit)]
    parts = [one for one in parts if one]
    ask: Callable[[str, Sequence[str], random.Random], tuple[str, str]]
    ask = chance.choices((_whole, _first, _last, _about), (3, 2, 1, 4))[0]
    return ask(passage, parts or [passage], chance)


def _whole(passage: str, parts: Sequence[str], chance: random.Random) -> tuple[str, str]:
    return chance.choice(_WHOLE).format(passage=passage), passage


def _first(passage: str, parts: Sequence[str], chance: random.Random) -> tuple[str, str]:
    return chance.choice(_FIRST).format(passage=passage), parts[0]


def _last(passage: str, parts: Sequence[str], chance: random.Random) -> tuple[str, str]:
    return chance.choice(_LAST).format(passage=passage), parts[-1]


def _about(passage: str, parts: Sequence[str], chance: random.Random) -> tuple[str, str]:
    """About a word that stands in one sentence only; of a passage without one, the whole."""
    found = [(word, part) for part in parts for word in _WORD.findall(part)]
    alone = [(word, part) for word, part in found if sum(word in one for one in parts) == 1]
    if not alone:
        return _whole(passage, parts, chance)
    word, part = chance.choice(alone)
    return chance.choice(_ABOUT).format(passage=passage, word=word[:_MOST]), part
