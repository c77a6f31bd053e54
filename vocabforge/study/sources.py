"""Sources of the study, read as conversations: files that hold some, plain texts, and the built-in sample."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..corpus.chat.conversation import Message
from ..corpus.chat.render import ChatOptions, render_chats
from ..corpus.sources.bytes import Problems
from ..corpus.sources.sources import SourceOptions, iter_documents
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..demo.texts.writer import HELDOUT, TRAIN, SampleSizes, sample_questions, write_sample
from ..evaluate.benchmarks import spread
from .config import SourceConfig, StudyDataConfig

PASSAGE = 1200  # UTF-8 bytes: in every script about as many a token
OVERLAP = 24  # words in a row that no training conversation shares with a held-out one
_LEAST = 60  # characters of a passage
_SHORTEST = 8  # words of a text that is held out as a whole
_ASK = "Continue this text:\n\n{}"
_END = re.compile(r"[.!?…]+[\"'”’»)\]]*\s+|[。！？]+[」』”]*\s*|\n\s*\n")  # of a sentence
_SPECIAL = re.compile(r"<\|[a-z_]+\|>")
_PLAIN = {"role", "content", "loss_weight"}
# A character of a script without spaces between words (Thai, Japanese, Chinese) counts as a word.
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|\w+")
_RARE = ("coding", "translation")  # families of the sample
_RARE_SEED = 1  # the questions of seed 0 are the benchmark ``sample``


@dataclass(frozen=True)
class Talk:
    """One conversation, which ends with an answer, the category of its question, and its row's tool list."""

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


@dataclass(frozen=True)
class SourceTexts:
    """What a source gave: its conversations, and how many were skipped, by cause."""

    source: SourceConfig
    talks: list[Talk]
    skipped: dict[str, int]


def read_source(
    source: SourceConfig, data: StudyDataConfig, tokenizer: TextTokenizer | None = None
) -> SourceTexts:
    """Read a source; of more conversations than ``documents`` evenly spread ones are taken.

    Raises:
        DataError: the file is missing or damaged, or gives no conversation.
    """
    problems, found = Problems(shown=0), []
    talks = _sample(source) if source.path is None else _read(source, data.file(source.path), problems)
    for number, talk in enumerate(talks):
        if (cause := _unfit(talk, tokenizer)) is None:
            found.append(talk)
        else:
            problems.add(cause, source.path or Path(source.name), number)
    if not found:
        raise DataError(
            f"the source {source.name} gives no conversation",
            got=problems.summary() or "an empty file",
            expected="conversations or plain text",
            source=source.path,
            remedy="name another file",
        )
    kept = found if source.documents is None else spread(found, source.documents)
    return SourceTexts(source, kept, dict(problems.kinds))


def _read(source: SourceConfig, path: Path, problems: Problems) -> Iterator[Talk]:
    for document in iter_documents([path], SourceOptions(), problems=problems):
        if document.messages is None:
            for text in _SPECIAL.split(document.text or ""):
                for passage in passages(text):
                    if len(passage) >= _LEAST:
                        yield _continued(passage, source.language)
        elif messages := _answered(document.messages):
            yield Talk(messages, source.language, document.tools or None)
        else:
            problems.add("nobody asks, or nobody answers", document.source, document.line)


def _answered(messages: list[Message]) -> list[Message]:
    """The conversation up to its last answer; nothing if a turn is empty, or nobody asks."""
    last = max((at for at, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
    kept = messages[: last + 1]
    said = [one for one in kept if one["role"] in ("user", "assistant")]
    whole = all(str(one["content"]).strip() or one.get("tool_calls") for one in said)
    return kept if whole and any(one["role"] == "user" for one in said) else []


def passages(text: str) -> Iterator[str]:
    """Passages of at most :data:`PASSAGE` bytes that follow each other, cut behind sentences or words."""
    data, at = text.replace("\r\n", "\n").encode("utf-8", "replace"), 0
    while len(data) - at > PASSAGE // 4:
        head = data[at : at + PASSAGE].decode("utf-8", "ignore")
        if at + PASSAGE < len(data):
            head = head[: _cut(head, len(head) // 2, len(head))]
        at += len(head.encode("utf-8", "replace"))
        yield head.strip()


def _cut(text: str, least: int, most: int) -> int:
    """The last end of a sentence within these places, else of a word, else the last place."""
    ends = [found.end() for found in _END.finditer(text) if least <= found.end() <= most]
    return ends[-1] if ends else text.rfind(" ", least, most) + 1 or most


def _continued(passage: str, language: str) -> Talk:
    at = _cut(passage, len(passage) // 4, len(passage) // 2)
    ask = _ASK.format(passage[:at].strip())
    messages: list[Message] = [
        {"role": "user", "content": ask},
        {"role": "assistant", "content": passage[at:].strip()},
    ]
    return Talk(messages, language)


def _sample(source: SourceConfig) -> Iterator[Talk]:
    """The demo's conversations: its two splits, or for rare questions code and translations of another seed."""
    count = source.documents or 240
    if source.role == "rare":
        made = sample_questions(_RARE_SEED, -(-count // len(_RARE)))
        yield from (Talk(one.messages(), one.category) for one in made if one.category in _RARE)
        return
    with tempfile.TemporaryDirectory() as folder:
        files = write_sample(Path(folder), 0, SampleSizes(train=count, heldout=count))
        path = files[TRAIN if source.role == "train" else HELDOUT]
        for document in iter_documents([path], SourceOptions(strict=True)):
            yield Talk(list(document.messages or []), source.language)


def _unfit(talk: Talk, tokenizer: TextTokenizer | None) -> str | None:
    """Why a conversation cannot be used; None if it can."""
    if any(_SPECIAL.search(text) for text in talk.texts):
        return "the text holds a special token"
    roles = ("system", "user", "assistant")
    if not talk.tools and all(one.keys() <= _PLAIN and one["role"] in roles for one in talk.messages):
        return None
    if tokenizer is None:
        return "tools or thinking, which the small tokenizer's template does not know"
    try:
        for _ in render_chats(tokenizer, talk.messages, ChatOptions(), tools=talk.tools):
            pass
    except DataError:
        return "the chat template does not render it"
    return None


def runs(texts: Sequence[str]) -> Iterator[int]:
    """Hashes of every :data:`OVERLAP` words in a row of a conversation, and of every shorter text.

    A training conversation that shares one with a held-out conversation is left out.
    """
    words = [_WORD.findall(text.casefold()) for text in texts]
    yield from (hash(tuple(one)) for one in words if _SHORTEST <= len(one) < OVERLAP)
    joined = [word for one in words for word in one]
    yield from (hash(tuple(joined[at : at + OVERLAP])) for at in range(len(joined) - OVERLAP + 1))
