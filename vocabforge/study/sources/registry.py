"""Sources of the study: files of several kinds, read as conversations."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import DataError, UsageError
from ...core.registry import resolve
from ...corpus.chat.conversation import Message
from ...corpus.chat.render import ChatOptions, render_chats
from ...corpus.sources.bytes import Problems
from ...corpus.sources.sources import SourceOptions, iter_documents
from ...corpus.tokenizer.tokenizer import TextTokenizer
from ...demo.texts.families import FAMILIES
from ...demo.texts.writer import HELDOUT, TRAIN, SampleSizes, sample_questions, write_sample
from ...evaluate.benchmarks import spread
from ...evaluate.benchmarks.rows import iter_rows
from ..config import SourceConfig


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


CODE = "code"
_SUMS_MARKS = re.compile(r"<<[^<>\n]*>>")  # GSM8K's notes for a calculator, such as <<48/2=24>>
_TASKS = (
    "{text}",
    "{text}\nWrite it in Python.",
    "{text}\nYour code should pass this test:\n{test}",
    "You are an expert Python programmer, and here is your task: {text}",
)


def chats(reading: Reading) -> Iterator[Talk]:
    """Conversations in any row format that the corpus reader knows; of preferences the chosen answer.

    What stands behind the last answer is left out; rows without an answer are skipped and counted.
    """
    documents = iter_documents([reading.path], SourceOptions(), problems=reading.problems)
    for document in documents:
        messages = _answered(document.messages or [])
        if messages:
            yield Talk(messages, reading.source.language, document.tools)
        else:
            reading.problems.add("nobody asks, or nobody answers", document.source, document.line)


def sums(reading: Reading) -> Iterator[Talk]:
    """Sums in words with worked answers: GSM8K, without its notes for a calculator."""
    for talk in chats(reading):
        bare = [{**one, "content": _SUMS_MARKS.sub("", str(one["content"]))} for one in talk.messages]
        yield Talk(bare, talk.category, talk.tools)


def _answered(messages: list[Message]) -> list[Message]:
    """The conversation up to its last answer; nothing where a turn of either side is empty, or one side is missing."""
    last = max((at for at, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
    kept = messages[: last + 1]
    said = all(
        str(one["content"]).strip() or one.get("tool_calls")
        for one in kept
        if one["role"] in ("user", "assistant")
    )
    return kept if said and any(one["role"] == "user" for one in kept) else []


def code(reading: Reading) -> Iterator[Talk]:
    """Tasks with a program: MBPP's rows (``text``, ``code``)."""
    for number, (place, row) in enumerate(iter_rows(reading.path)):
        chance = reading.chance(number)
        found = _task(row, chance)
        if found is None:
            reading.problems.add("the row holds no task with its program", reading.path, place)
        else:
            yield Talk(pair(*found), CODE)


def _task(row: Mapping[str, Any], chance: random.Random) -> tuple[str, str] | None:
    """A task asked for in words, and its program."""
    text, program = row.get("text"), row.get("code")
    if not isinstance(text, str) or not isinstance(program, str) or not (text.strip() and program.strip()):
        return None
    text, program = text.strip(), program.replace("\r\n", "\n").strip("\n").expandtabs(4)
    tests = row.get("test_list")
    test = str(tests[0]) if isinstance(tests, list) and tests else ""
    template = chance.choice(_TASKS if test else _TASKS[:2])
    answer = f"```python\n{program}\n```" if chance.random() < 0.5 else program
    return template.format(text=text, test=test), answer


_RARE = {"coding": CODE, "translation": "translation"}
_RARE_SEED = 1  # the questions of seed 0 are the benchmark ``sample``


def sample(reading: Reading) -> Iterator[Talk]:
    """Conversations that ``corpus.sample_writer`` makes, by the source's role.

    ``train`` and ``heldout`` are its two splits; ``rare`` are conversations on code and translations of another seed.
    """
    wanted = reading.source.documents
    if reading.source.role == "rare":
        yield from _rare(wanted or 24)
        return
    split, sizes = HELDOUT, SampleSizes()
    if reading.source.role == "train":
        split, sizes = TRAIN, SampleSizes(train=wanted or sizes.train)
    elif wanted is not None:
        sizes = SampleSizes(train=1, heldout=wanted)
    with tempfile.TemporaryDirectory() as folder:
        path = write_sample(Path(folder), 0, sizes)[split]
        for document in iter_documents([path], SourceOptions(strict=True)):
            yield Talk(list(document.messages or []), reading.source.language)


def _rare(count: int) -> Iterator[Talk]:
    """Conversations of the rare families by turns."""
    each = -(-count // len(_RARE))
    made = sample_questions(_RARE_SEED, each)
    assert len(made) == each * len(FAMILIES)
    kinds = [[one for one in made if one.category == name] for name in _RARE]
    for conversation in [one for row in zip(*kinds, strict=True) for one in row][:count]:
        yield Talk(conversation.messages(), _RARE[conversation.category])


_HERE = "vocabforge.study.sources"
# kind -> reader; adding one is a file, a row, and its name in ``config.SourceKind``.
KINDS = {
    "chats": f"{_HERE}.registry:chats",
    "alpaca": f"{_HERE}.registry:chats",  # the corpus reader knows instructions as it knows turns
    "sums": f"{_HERE}.registry:sums",
    "code": f"{_HERE}.registry:code",
    "stories": f"{_HERE}.texts:stories",
    "text": f"{_HERE}.texts:text",
    "verses": f"{_HERE}.texts:verses",
    "archive": f"{_HERE}.texts:archive",
    "sample": f"{_HERE}.registry:sample",
}
_SPECIAL = re.compile(r"<\|[a-z_]+\|>")
_HALF = re.compile("[\ud800-\udfff]")
_PLAIN = {"role", "content", "loss_weight"}
NO_TOOLS: tuple[Any, ...] = (None, "", "[]", [])


@dataclass(frozen=True)
class SourceTexts:
    """What a source gave.

    Attributes:
        source: as it is configured.
        talks: its conversations.
        of: conversations that it has, before ``documents``.
        skipped: what could not be read or rendered, by cause.
    """

    source: SourceConfig
    talks: list[Talk]
    of: int
    skipped: dict[str, int]


def read_source(
    source: SourceConfig, root: Path | None, size: int, tokenizer: TextTokenizer | None = None
) -> SourceTexts:
    """Read a source.

    Args:
        source: see there. Of more conversations than ``documents`` evenly spread ones are kept.
        root: folder of the files.
        size: plain text is cut into answers of about this length.
        tokenizer: conversations with tools, thinking and the like that its template does not render are skipped; None
            skips all of these.

    Raises:
        DataError: the file is missing or damaged, or gives no conversation.
        UsageError: no file is named.
    """
    problems = Problems(shown=0)
    read: Callable[[Reading], Iterator[Talk]] = resolve(KINDS, source.kind, "kind of source")
    reading = Reading(source, root, size, problems)
    found = []
    for number, talk in enumerate(read(reading)):
        cause = _unfit(talk, tokenizer)
        if cause is None:
            found.append(talk)
        else:
            problems.add(cause, source.path or Path(source.name), number)
    if not found:
        raise DataError(
            f"the source {source.name} gives no conversation",
            got=problems.summary() or "an empty file",
            source=source.path,
            remedy="check its kind and its members",
        )
    kept = found if source.documents is None else spread(found, source.documents)
    return SourceTexts(source, kept, len(found), dict(problems.kinds))


def _unfit(talk: Talk, tokenizer: TextTokenizer | None) -> str | None:
    """Why a conversation cannot be used, None where it can.

    Only what a chat template may refuse is rendered: everything that is more than texts of user and assistant.
    """
    whole = "\n".join(talk.texts)
    if _SPECIAL.search(whole):
        return "the text holds a special token"
    if _HALF.search(whole):
        return "the text holds half a character"
    plain = talk.tools in NO_TOOLS and all(
        message.keys() <= _PLAIN and message["role"] in ("system", "user", "assistant")
        for message in talk.messages
    )
    if plain:
        return None
    if tokenizer is None:
        return "tools or thinking, which the small tokenizer's template does not know"
    try:
        for _ in render_chats(tokenizer, talk.messages, ChatOptions(), tools=talk.tools):
            pass
    except DataError:
        return "the chat template does not render it"
    return None
