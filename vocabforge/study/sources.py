"""Sources of the study: files of several kinds, read as conversations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import DataError
from ..core.extension import resolve
from ..corpus.chat import ChatOptions, render_chats
from ..corpus.reading import Problems
from ..corpus.tokenizer import TextTokenizer
from ..evaluate.benchmarks import spread
from .config_data import SourceConfig
from .source_types import Reading, Talk

_HERE = "vocabforge.study"
# kind -> reader; adding one is a file, a row, and its name in ``config.SourceKind``.
KINDS = {
    "chats": f"{_HERE}.source_chats:chats",
    "alpaca": f"{_HERE}.source_chats:chats",  # the corpus reader knows instructions as it knows turns
    "sums": f"{_HERE}.source_chats:sums",
    "code": f"{_HERE}.source_chats:code",
    "stories": f"{_HERE}.source_texts:stories",
    "text": f"{_HERE}.source_texts:text",
    "verses": f"{_HERE}.source_texts:verses",
    "archive": f"{_HERE}.source_texts:archive",
    "sample": f"{_HERE}.source_sample:sample",
}
_SPECIAL = re.compile(r"<\|[a-z_]+\|>")
_HALF = re.compile("[\ud800-\udfff]")
_PLAIN = {"role", "content", "loss_weight"}


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
    plain = talk.tools in (None, "", "[]", []) and all(
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
