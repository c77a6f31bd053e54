"""Conversations as questions: the user's turns are asked, the model's own answers stand between them."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import DataError
from ...core.progress import say
from ...corpus.conversation import Message
from ...corpus.document import Document, SourceOptions
from ...corpus.reading import Problems
from ...corpus.sources import iter_documents
from .types import Question

CATEGORY = "chat"
_SYSTEM_ROLES = ("system", "developer")


def read_chats(path: Path) -> list[Question]:
    """Read ShareGPT, OpenAI messages, Alpaca and pairs of prompt and response, in JSON, JSON lines or Parquet.

    The user's turns become turns; a system message before the first of them is kept. Answers, tool lists, calls and
    results are left out. Rows without a user's text are skipped and said. The conversation's number from 0 is the
    question id.

    Raises:
        DataError: unreadable or damaged file, an unsupported kind of file, or no conversation in it.
        VocabForgeError: a package is missing that this kind of file needs.
    """
    questions: list[Question] = []
    problems = Problems()
    with_tools = 0
    for number, document in enumerate(iter_documents([path], SourceOptions(), problems=problems)):
        question = _question(number, document, problems)
        if question is not None:
            questions.append(question)
            with_tools += _uses_tools(document)
    if not questions:
        raise DataError(
            "the question file holds no conversation with a question",
            got=problems.summary(),
            expected='rows of {"conversations": [...]} or {"messages": [...]}',
            source=path,
        )
    if with_tools:
        say(
            f"{with_tools:,} of {len(questions):,} conversations of {path.name} use tools: "
            "only the user's turns are asked"
        )
    return questions


def _question(number: int, document: Document, problems: Problems) -> Question | None:
    if document.messages is None:
        problems.add("the row holds no conversation", document.source, document.line)
        return None
    turns = [str(message["content"]) for message in document.messages if message["role"] == "user"]
    if not turns or not all(turn.strip() for turn in turns):
        what = "a turn of the user holds no text" if turns else "the conversation has no turn of a user"
        problems.add(what, document.source, document.line)
        return None
    return Question(number, CATEGORY, tuple(turns), system=_system(document.messages))


def _system(messages: list[Message]) -> str | None:
    first = next(at for at, message in enumerate(messages) if message["role"] == "user")
    texts = [str(message["content"]) for message in messages[:first] if message["role"] in _SYSTEM_ROLES]
    return "\n\n".join(text for text in texts if text.strip()) or None


def _uses_tools(document: Document) -> bool:
    messages = document.messages or []
    called = any(message.get("tool_calls") or message["role"] == "tool" for message in messages)
    return called or document.tools not in (None, "", "[]", [])
