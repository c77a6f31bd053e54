"""Sources that are plain text: stories, books, verses, archives, turned into conversations."""

from __future__ import annotations

import html
import random
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from ...core.errors import DataError
from ...corpus.sources.bytes import BOM, ByteSpan
from ...corpus.sources.document import SourceOptions
from ...corpus.sources.sources import iter_documents
from .registry import Reading, Talk, pair

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
_LONG_WORD = re.compile(r"[^\W\d_]{4,}")
_MOST = 12  # letters of a word: in scripts without spaces a word may be a line


def quoted(passage: str, limit: int, chance: random.Random) -> tuple[str, str]:
    """A question about a passage, and its answer, which stands in it: what a small target learns to look up.

    Much of what large models write that is rare (names, numbers, words of other languages) stands in their prompts.

    Args:
        limit: a sentence is cut beyond it; see :func:`sentences`.
        chance: chooses what is asked, and how.
    """
    parts = [one for each in sentences(passage, limit) if (one := each.strip())] or [passage]
    kind = chance.choices(("whole", "first", "last", "about"), (3, 2, 1, 4))[0]
    if kind == "about":  # a word that stands in one sentence only; of a passage without one, the whole
        found = [(word, part) for part in parts for word in _LONG_WORD.findall(part)]
        alone = [(word, part) for word, part in found if sum(word in one for one in parts) == 1]
        if alone:
            word, part = chance.choice(alone)
            return chance.choice(_ABOUT).format(passage=passage, word=word[:_MOST]), part
    templates, answer = {"first": (_FIRST, parts[0]), "last": (_LAST, parts[-1])}.get(kind, (_WHOLE, passage))
    return chance.choice(templates).format(passage=passage), answer


STORY_END = "<|endoftext|>"
_BEGINNING = 4 / 3  # of a passage a quarter or so is the prompt's
_QUOTED = 1 / 2  # a passage that is quoted stands in the prompt and in the answer, and both in one row
_CONTINUE = (
    "Continue this text in {language}:\n\n{beginning}",
    "Continue this text:\n\n{beginning}",
    "Go on in {language}:\n\n{beginning}",
    "What comes next?\n\n{beginning}",
)
_CHAPTER = re.compile(r"<div\b[^>]*\btype=\"chapter\"")
_VERSE = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")


def text(reading: Reading) -> Iterator[Talk]:
    """Plain text, and rows with a ``text``, cut into passages."""
    documents = iter_documents([reading.path], SourceOptions(), problems=reading.problems)
    whole = (document.text for document in documents if document.text)
    cut = (part for one in whole for part in passages(one, _length(reading)))
    for number, passage in enumerate(cut):
        yield from _continued(reading, number, passage, reading.source.language)


def _length(reading: Reading) -> int:
    """Of a passage."""
    return round((_QUOTED if reading.source.task == "quote" else _BEGINNING) * reading.size)


def _continued(reading: Reading, number: int, passage: str, language: str) -> Iterator[Talk]:
    """A passage as the answer to its beginning, or quoted; none where it is too short."""
    chance = reading.chance(number)
    if reading.source.task == "quote" and len(passage) > reading.size // 16:
        yield Talk(pair(*quoted(passage, _length(reading), chance)), language)
        return
    parts = parted(passage, chance) if len(passage) > reading.size // 8 else None
    if parts is None:
        reading.problems.add("the passage is too short", reading.path, number)
        return
    prompt = chance.choice(_CONTINUE).format(language=language, beginning=parts[0])
    yield Talk(pair(prompt, parts[1]), language)


def verses(reading: Reading) -> Iterator[Talk]:
    """Verses (``<seg>``) of an XML file, joined to passages; none runs from one chapter into the next."""
    content = b"".join(block for _, block in ByteSpan(reading.path).blocks()).decode("utf-8", "replace")
    number = 0
    for chapter in _CHAPTER.split(content):
        lines = (html.unescape(_TAG.sub("", one)) for one in _VERSE.findall(chapter))
        pieces = (
            piece for line in lines if (bare := " ".join(line.split())) for piece in _pieces(bare, reading)
        )
        for passage in joined(pieces, _length(reading)):
            yield from _continued(reading, number, passage, reading.source.language)
            number += 1


def _pieces(verse: str, reading: Reading) -> Iterator[str]:
    return sentences(verse + " ", max(1, reading.size // 2))


def archive(reading: Reading) -> Iterator[Talk]:
    """Text files of a zip archive, each cut into passages: all of them, or those that ``members`` names.

    Raises:
        DataError: the archive cannot be read, or no file is of the members' names.
    """
    members, number, found = reading.source.members, 0, 0
    try:
        with zipfile.ZipFile(reading.path) as packed:
            for name in sorted(packed.namelist()):
                stem = PurePosixPath(name).stem
                if not name.endswith(".txt") or (members and stem not in members):
                    continue
                found += 1
                try:
                    content = packed.read(name).removeprefix(BOM).decode("utf-8")
                except UnicodeDecodeError:
                    reading.problems.add("the file is not UTF-8", reading.path, name)
                    continue
                for passage in passages(content, _length(reading)):
                    yield from _continued(
                        reading, number, passage, members.get(stem, reading.source.language)
                    )
                    number += 1
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise DataError(
            "the archive is missing or damaged", got=error, expected="a zip archive", source=reading.path
        ) from error
    if not found:
        raise DataError(
            "the archive holds no text file of these names",
            expected=", ".join(members) or "files ending in .txt",
            source=reading.path,
        )


def stories(reading: Reading) -> Iterator[Talk]:
    """Stories of a text file, parted by ``<|endoftext|>``, each the answer to its beginning; one that breaks off is
    left out."""
    options = SourceOptions(separator=STORY_END)
    documents = iter_documents([reading.path], options, problems=reading.problems)
    for number, document in enumerate(documents):
        story = clean(document.text or "")
        if story and story[-1] in ".!?\"'”’":
            yield from _continued(reading, number, story, reading.source.language)
        else:
            reading.problems.add("the story breaks off", document.source, document.line)
