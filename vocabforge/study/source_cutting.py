"""Plain text cleaned, and cut into passages at the ends of sentences."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence

_GUTENBERG = re.compile(r"\*\*\* ?START OF[^\n]*\*\*\*(.*?)\*\*\* ?END OF", re.DOTALL)
_AOZORA = "青空文庫"
_AOZORA_HEAD = re.compile(r"\A.*?-{20,}.*?-{20,}", re.DOTALL)
_AOZORA_END = re.compile(r"\n底本：.*\Z", re.DOTALL)
_AOZORA_MARKS = re.compile(r"《[^》\n]*》|［＃[^］\n]*］|｜")
_SPACES = re.compile(r"[ \t\u00a0\u3000]+")
_BLANK = re.compile(r"\n{3,}")
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+|[。！？．｡]+[」』”’）]*\s*|[।։؟۔]+\s*|\n\n")
_ARTICLE = 4  # a line of so many passages is a text of its own


def weight(text: str) -> int:
    """Length in UTF-8 bytes: in every script about as many a token, and in English as many as characters."""
    return len(text.encode("utf-8", "replace"))


def clean(text: str) -> str:
    """The text alone: without what digital libraries put around and into it, without runs of spaces."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (body := _GUTENBERG.search(text)) is not None:
        text = body[1]
    if _AOZORA in text:  # the readings in brackets are marks there, in other books brackets are titles
        text = _AOZORA_END.sub("", _AOZORA_HEAD.sub("", text))
        text = _AOZORA_MARKS.sub("", text)
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    return _BLANK.sub("\n\n", "\n".join(lines)).strip()


def passages(text: str, size: int) -> Iterator[str]:
    """Passages of about ``size`` (see :func:`weight`) that follow each other, each ending with a sentence if it can.

    A line as long as several passages is taken for an article: no passage holds the end of one and the beginning of
    another.
    """
    for block in _blocks(clean(text).split("\n"), _ARTICLE * size):
        yield from joined(sentences(block, size // 2), size)


def _blocks(lines: Sequence[str], limit: int) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        if weight(line) <= limit:
            held.append(line)
            continue
        yield "\n".join(held)
        yield line
        held = []
    yield "\n".join(held)


def sentences(text: str, limit: int) -> Iterator[str]:
    """Sentences with the space behind them; one longer than ``limit`` is cut between words, or anywhere without these.

    Joined they are the text.
    """
    start = 0
    for stop in [*(end.end() for end in _END.finditer(text)), len(text)]:
        yield from _short(text[start:stop], limit)
        start = stop


def _short(text: str, limit: int) -> Iterator[str]:
    while weight(text) > limit:
        most = len(text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")) or 1
        space = max(text.rfind(" ", 1, most), text.rfind("\n", 1, most))
        at = space + 1 if space > 0 else most
        yield text[:at]
        text = text[at:]
    if text:
        yield text


def joined(pieces: Iterable[str], size: int) -> Iterator[str]:
    """Consecutive pieces joined to passages of about ``size``, all about alike: no short rest stays behind."""
    pieces = list(pieces)
    total = sum(map(weight, pieces))
    count = max(1, round(total / size))
    held: list[str] = []
    seen = done = 0
    for piece in pieces:
        held.append(piece)
        seen += weight(piece)
        if seen * count >= (done + 1) * total:
            if passage := "".join(held).strip():
                yield passage
            held, done = [], max(done + 1, seen * count // total)


def parted(text: str, chance: random.Random) -> tuple[str, str] | None:
    """(beginning, rest) of a passage: between a fifth and two fifths, to the end of a sentence, else of a word.

    None where the passage is too short to have both.
    """
    least = max(1, int(len(text) * chance.uniform(0.2, 0.4)))
    most = max(least, len(text) // 2)
    end = _END.search(text, least, most + 1)
    if end is not None and end.end() < len(text):
        at = end.end()
    else:
        space = text.find(" ", least, most + 1)
        at = space if space > 0 else least
    beginning, rest = text[:at].strip(), text[at:].strip()
    return (beginning, rest) if beginning and rest else None
