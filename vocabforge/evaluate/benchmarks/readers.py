"""Readers of question files: Spec-Bench (MT-bench's format), SPEED-Bench, HumanEval, MBPP, and others.

Instructions on how to answer are put in the system message of chat models. A turn contains only the
benchmark's own text, so that a base model can continue it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import DataError
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
# The format of the benchmark's own answers.
GSM8K_SYSTEM = (
    "Solve the problem step by step. "
    'Then write "#### " and the result on a line of its own, as a number without units, and nothing after it.'
)
# The paper's wording (Austin et al., 2021, arXiv 2108.07732); the prompt's second half is in the turn.
MBPP_SYSTEM = "You are an expert Python programmer."
MATH_SYSTEM = "Solve the problem step by step, and put the final answer within \\boxed{}."
SCROLLS_SYSTEM = "Answer the question about the text. If there is no question, summarize the text."
# Begins the turns of rows whose text SPEED-Bench may not publish.
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
NO_CATEGORY = "none"  # public data sets omit it
_TASK_ID = re.compile(r"[^/]+/(\d{1,9})")


def read_questions(path: Path) -> list[Question]:
    """Read Spec-Bench's rows of ``{"question_id", "category", "turns"[, "system"]}``; ignore other keys.

    Raises:
        DataError: the file is unreadable or has no question; or a row is not JSON, lacks a key, has a wrong
            type, or repeats an id (with file:line).
    """
    return _questions(path, lambda row, source, _: question_of(row, source))


def _questions(path: Path, read: Callable[[Row, str, int], Question]) -> list[Question]:
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
    system = row.get("system")
    require(system is None or isinstance(system, str), "system", system, "a text", source)
    asked = tuple(whole(text, "a turn", source) for text in turns)
    return Question(number, category, asked, system=system or None)


def read_speed_bench(path: Path) -> list[Question]:
    """Read SPEED-Bench's rows: those of Spec-Bench, with texts as ids. The question id is the row's number.

    Raises:
        DataError: see :func:`read_questions`; also if a turn is a placeholder, as in the published files.
    """

    def read(row: Row, source: str, number: int) -> Question:
        question = question_of({**row, "question_id": number}, source)
        if any(turn.startswith(_PLACEHOLDER) for turn in question.turns):
            raise DataError(
                "the text of a question is missing",
                got=question.turns[0][:80],
                expected="a file with the texts of all sources",
                source=source,
                remedy="make it with NVIDIA's prepare_data.py "
                "(github.com/NVIDIA/Model-Optimizer, examples/specdec_bench)",
            )
        # Reports would take its names of categories for those of MT-bench.
        category, name = f"speed-{question.category}", text_of(row, "question_id", source)
        return replace(question, category=category, task_id=name)

    return _questions(path, read)


def read_human_eval(path: Path) -> list[Question]:
    """Read rows of ``{"task_id", "prompt"}``; ignore other keys.

    The question id is the number after the task id's slash.

    Raises:
        DataError: the file is unreadable or has no question, or a row is invalid or repeats a number (with
            file:line).
    """

    def read(row: Row, source: str, _: int) -> Question:
        task_id, prompt = (text_of(row, key, source) for key in ("task_id", "prompt"))
        match = _TASK_ID.fullmatch(task_id)
        if match is None:
            raise DataError(
                "the task_id holds no number", got=task_id, expected="a name like HumanEval/0", source=source
            )
        return Question(int(match[1]), "human-eval", (prompt,), task_id, HUMAN_EVAL_SYSTEM)

    return _questions(path, read)


def read_mbpp(path: Path) -> list[Question]:
    """Read MBPP's rows of ``{"task_id", "text", "test_list"}``, or with ``prompt`` for ``text`` (sanitized).

    Raises:
        DataError: the file is unreadable or has no question, or a row is invalid or repeats an id.
    """

    def read(row: Row, source: str, _: int) -> Question:
        number, tests = value_of(row, "task_id", source), value_of(row, "test_list", source)
        require(isinstance(number, int) and not isinstance(number, bool), "task_id", number, "int", source)
        listed = isinstance(tests, list) and bool(tests) and all(isinstance(test, str) for test in tests)
        require(listed, "test_list", tests, "a list of texts", source)
        task = text_of(row, "text" if "text" in row else "prompt", source)
        turn = whole(f"{task} Your code should pass these tests:\n\n" + "\n".join(tests), "a test", source)
        return Question(number, "mbpp", (turn,), system=MBPP_SYSTEM)

    return _questions(path, read)


def _read_field(path: Path, field: str, category: str, system: str) -> list[Question]:
    def read(row: Row, source: str, number: int) -> Question:
        return Question(number, category, (text_of(row, field, source),), system=system)

    return _questions(path, read)


def read_gsm8k(path: Path) -> list[Question]:
    """Read rows of ``{"question"}``; ignore other keys. The question id is the row's number from 0.

    Raises:
        DataError: the file is unreadable or has no question, or a row is invalid (with file:line).
    """
    return _read_field(path, "question", "gsm8k", GSM8K_SYSTEM)


def read_math(path: Path) -> list[Question]:
    """Read rows of ``{"problem"}``, as in MATH-500; otherwise like :func:`read_gsm8k`."""
    return _read_field(path, "problem", "math-problems", MATH_SYSTEM)


def read_scrolls(path: Path) -> list[Question]:
    """Read SCROLLS' rows of ``{"input"}``: a question and a text, or a text alone; like :func:`read_gsm8k`."""
    return _read_field(path, "input", "scrolls", SCROLLS_SYSTEM)


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
    conversations = (_conversation(number, document, problems) for number, document in enumerate(documents))
    questions = [question for question in conversations if question is not None]
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
