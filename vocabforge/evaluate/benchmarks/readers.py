"""Readers of question files: Spec-Bench (MT-bench's format), HumanEval, GSM8K, and conversations.

Instructions on how to answer are put in the system message of chat models. A turn contains only the
benchmark's own text, so that a base model can continue it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import DataError
from .gsm8k import marked_number
from .rows import Row, add_id, iter_rows, no_question, require, text_of, value_of, whole
from .types import Question

if TYPE_CHECKING:
    from ...corpus.sources.bytes import Problems
    from ...corpus.sources.document import Document

# FR-Spec's wording, so that its results and ours use the same prompts.
HUMAN_EVAL_SYSTEM = (
    "Please complete the following Python code "
    "without providing any additional tasks such as testing or explanations."
)
# Chat models reason without examples but end in many ways; this is the benchmark's format, which can be
# scored exactly.
GSM8K_SYSTEM = (
    "Solve the problem step by step. "
    'Then write "#### " and the result on a line of its own, as a number without units, and nothing after it.'
)
NO_CATEGORY = "none"  # public data sets omit it
_TASK_ID = re.compile(r"[^/]+/(\d{1,9})")


def read_questions(path: Path) -> list[Question]:
    """Read Spec-Bench's rows of ``{"question_id", "category", "turns"[, "reference", "system"]}``; ignore other keys.

    Raises:
        DataError: the file is unreadable or has no question; or a row is not JSON, lacks a key, has a wrong
            type, or repeats an id (with file:line).
    """
    return _questions(path, lambda row, source, _: question_of(row, source))


def _questions(path: Path, read: Callable[[Row, str, int], Question]) -> list[Question]:
    """Read a question from each row; ``read`` receives the row, its place, and its number from 0."""
    questions: list[Question] = []
    seen: dict[int, str] = {}
    for number, (source, row) in enumerate(iter_rows(path)):
        questions.append(read(row, source, number))
        add_id(seen, questions[-1].question_id, source)
    return questions or no_question(path)


def question_of(row: Row, source: str) -> Question:
    """Parse one row of Spec-Bench; raise DataError if a key is missing or has a wrong type."""
    number, turns = value_of(row, "question_id", source), value_of(row, "turns", source)
    require(isinstance(number, int) and not isinstance(number, bool), "question_id", number, "int", source)
    require(-(2**63) <= number < 2**63, "question_id", number, "a number from -2^63 to 2^63 - 1", source)
    category = value_of(row, "category", source)
    category = NO_CATEGORY if category in ("", None) else text_of(row, "category", source)
    printable = "a name on one line, without control characters"
    require(category.isprintable(), "category", category, printable, source)
    texts = isinstance(turns, list) and bool(turns) and all(isinstance(text, str) and text for text in turns)
    require(texts, "turns", turns, "a list of non-empty texts", source)
    reference, system = row.get("reference"), row.get("system")
    require(system is None or isinstance(system, str), "system", system, "a text", source)
    return Question(
        number,
        category,
        tuple(whole(text, "a turn", source) for text in turns),
        None if reference is None else _references(reference),
        system=system or None,
    )


def _references(value: Any) -> tuple[str, ...]:
    """Return references as strings; they are not scored, so any JSON value is accepted."""
    entries = value if isinstance(value, list) else [value]
    return tuple(entry if isinstance(entry, str) else json.dumps(entry) for entry in entries)


def read_human_eval(path: Path) -> list[Question]:
    """Read rows of ``{"task_id", "prompt", "entry_point", "test"[, "canonical_solution"]}``.

    The question id is the number after the task id's slash.

    Raises:
        DataError: the file is unreadable or has no question, or a row is invalid or repeats a number (with
            file:line).
    """

    def read(row: Row, source: str, _: int) -> Question:
        task_id, prompt, test = (text_of(row, key, source) for key in ("task_id", "prompt", "test"))
        found = _TASK_ID.fullmatch(task_id)
        if found is None:
            raise DataError(
                "the task_id holds no number", got=task_id, expected="a name like HumanEval/0", source=source
            )
        entry_point = text_of(row, "entry_point", source)
        require(entry_point.isidentifier(), "entry_point", entry_point, "the name of a function", source)
        solution = row.get("canonical_solution")
        return Question(
            int(found[1]),
            "human-eval",
            (prompt,),
            (solution,) if isinstance(solution, str) else None,
            task_id,
            HUMAN_EVAL_SYSTEM,
            {"prompt": prompt, "entry_point": entry_point, "test": test},
        )

    return _questions(path, read)


def read_gsm8k(path: Path) -> list[Question]:
    """Read rows of ``{"question", "answer"}``; the question id is the row's number from 0.

    Raises:
        DataError: the file is unreadable or has no question, or a row is invalid or its answer lacks ``####
            number`` (with file:line).
    """

    def read(row: Row, source: str, number: int) -> Question:
        question, answer = text_of(row, "question", source), text_of(row, "answer", source)
        if marked_number(answer) is None:  # fail before asking instead of when scoring
            raise DataError(
                "an answer holds no result",
                got=repr(answer[-80:]),
                expected="a line '#### 18'",
                source=source,
            )
        return Question(
            number, "gsm8k", (question,), (answer,), system=GSM8K_SYSTEM, check={"answer": answer}
        )

    return _questions(path, read)


def read_chats(path: Path) -> list[Question]:
    """Read ShareGPT, OpenAI messages, Alpaca and prompt/response pairs as JSON, JSON lines or Parquet.

    Only the user's turns are asked, with a system message that precedes the first of them. Answers, tool
    lists, calls and results are dropped. Rows without user text are skipped and reported. The question id is
    the conversation's number from 0.

    Raises:
        DataError: the file is unreadable, damaged, of an unsupported format, or has no conversation.
        VocabForgeError: a package for this file format is missing.
    """

    from ...core.console import say
    from ...corpus.sources.bytes import NOT_READ, Problems
    from ...corpus.sources.document import SourceOptions
    from ...corpus.sources.sources import iter_documents

    problems = Problems()
    documents = iter_documents([path], SourceOptions(), problems=problems)
    found = (_conversation(number, document, problems) for number, document in enumerate(documents))
    questions = [question for question in found if question is not None]
    if not questions:
        raise DataError(
            "the question file holds no conversation with a question",
            got=problems.summary(),
            expected='rows of {"conversations": [...]} or {"messages": [...]}',
            source=path,
        )
    if any(kind.startswith(NOT_READ) for kind in problems.kinds):
        say(str(problems.summary()))
    return questions


def _conversation(number: int, document: Document, problems: Problems) -> Question | None:
    from ...corpus.chat.conversation import system_text

    if document.messages is None:
        problems.add("the row holds no conversation", document.source, document.line)
        return None
    turns = [str(message["content"]) for message in document.messages if message["role"] == "user"]
    if not turns or not all(turn.strip() for turn in turns):
        what = "a turn of the user holds no text" if turns else "the conversation has no turn of a user"
        problems.add(what, document.source, document.line)
        return None
    problems.unread(document.beside_contents(answers=False), document.source, document.line)
    return Question(number, "chat", tuple(turns), system=system_text(document.messages))
