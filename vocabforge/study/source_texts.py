"""Sources that are plain text: stories, books, verses, archives of files. Their beginnings, or all, become prompts."""

from __future__ import annotations

import fnmatch
import html
import random
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from ..core.errors import DataError
from ..corpus.document import SourceOptions
from ..corpus.reading import BOM, DOCUMENT_LIMIT, ByteSpan, unreadable
from ..corpus.sources import iter_documents
from .source_cutting import clean, joined, parted, passages, sentences
from .source_languages import language_of
from .source_quotes import quoted
from .source_types import Reading, Talk, pair

STORY_END = "<|endoftext|>"
_BEGINNING = 4 / 3  # of a passage a quarter or so is the prompt's
_QUOTED = 1 / 2  # a passage that is quoted stands in the prompt and in the answer, and both in one row
_CONTINUE = (
    "Continue this text in {language}:\n\n{beginning}",
    "Continue this text:\n\n{beginning}",
    "Go on in {language}:\n\n{beginning}",
    "What comes next?\n\n{beginning}",
)
_STORY = (
    "Write a short story that begins: {first}",
    "Tell me a story that starts with this sentence: {first}",
    "Continue this story:\n\n{beginning}",
    "How does this story go on?\n\n{beginning}",
    "Write a short story with the words {words}.",
)
_SENTENCE = re.compile(r".+?[.!?][\"'”’]?(?=\s|$)", re.DOTALL)
_WORD = re.compile(r"[a-z]{5,}")
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
    """Text files of a zip archive that ``members`` name (all without it), each cut into passages.

    The language is told by names as those of the Universal Declaration of Human Rights have: ``deu``, ``cmn_hans``.

    Raises:
        DataError: the archive cannot be read, or no file is of the members' names.
    """
    number = found = 0
    for name, content in _members(reading):
        found += 1
        language = language_of(PurePosixPath(name).stem) or reading.source.language
        for passage in passages(content, _length(reading)):
            yield from _continued(reading, number, passage, language)
            number += 1
    if not found:
        raise DataError(
            "the archive holds no text file of these names",
            got=reading.problems.summary(),
            expected=", ".join(reading.source.members) or "files ending in .txt",
            source=reading.path,
        )


def _members(reading: Reading) -> Iterator[tuple[str, str]]:
    """(name, text) of the archive's chosen files, by name."""
    try:
        with zipfile.ZipFile(reading.path) as packed:
            for info in sorted(packed.infolist(), key=lambda one: one.filename):
                if not _is_wanted(info.filename, reading.source.members):
                    continue
                if info.file_size > DOCUMENT_LIMIT:
                    reading.problems.add("the file is too long", reading.path, info.filename)
                    continue
                with packed.open(info) as member:  # its header may lie about its length
                    content = member.read(DOCUMENT_LIMIT + 1)
                try:
                    yield info.filename, content.removeprefix(BOM).decode("utf-8")
                except UnicodeDecodeError:
                    reading.problems.add("the file is not UTF-8", reading.path, info.filename)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DataError(
            "the archive is damaged or of an unknown kind",
            got=error,
            expected="a zip archive",
            source=reading.path,
            remedy="fetch it again",
        ) from error
    except OSError as error:
        raise unreadable(reading.path, error) from error


def _is_wanted(name: str, members: tuple[str, ...]) -> bool:
    path = PurePosixPath(name)
    if path.suffix != ".txt":
        return False
    return not members or any(
        fnmatch.fnmatchcase(one, glob) for glob in members for one in (path.name, path.stem, name)
    )


def stories(reading: Reading) -> Iterator[Talk]:
    """Stories of a text file, parted by ``<|endoftext|>``, asked for in several ways; one that breaks off is left
    out."""
    options = SourceOptions(separator=STORY_END)
    documents = iter_documents([reading.path], options, problems=reading.problems)
    for number, document in enumerate(documents):
        story = clean(document.text or "")
        first = _SENTENCE.match(story)
        if first is None or story[-1] not in ".!?\"'”’":
            reading.problems.add("the story breaks off", document.source, document.line)
            continue
        yield Talk(_asked(story, first[0], reading.chance(number)), reading.source.language)


def _asked(story: str, first: str, chance: random.Random) -> list[dict[str, str]]:
    """The conversation of a story."""
    template = chance.choice(_STORY)
    parts = parted(story, chance)
    words = sorted(set(_WORD.findall(story)))
    if "{beginning}" in template and parts is not None:
        return pair(template.format(beginning=parts[0]), parts[1])
    if "{words}" in template and len(words) >= 3:
        return pair(template.format(words="{}, {} and {}".format(*chance.sample(words, 3))), story)
    return pair(_STORY[0].format(first=first), story)
