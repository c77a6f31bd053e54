"""Sources that are conversations, or questions with answers, already."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..corpus.conversation import Message
from ..corpus.document import SourceOptions
from ..corpus.sources import iter_documents
from ..evaluate.benchmarks.rows import iter_rows
from .source_types import Reading, Talk, pair

CODE = "code"
_SUMS_MARKS = re.compile(r"<<[^<>\n]*>>")  # GSM8K's notes for a calculator, such as <<48/2=24>>
_FUNCTION = re.compile(r"^def [^\n]*:[ \t]*\n", re.MULTILINE)
_INDENT = re.compile(r"[ \t]+(?=\S)")
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
    """Tasks with a program: MBPP's (``text``, ``code``), and functions to complete (``prompt``,
    ``canonical_solution``), as HumanEval writes them."""
    for number, (place, row) in enumerate(iter_rows(reading.path)):
        chance = reading.chance(number)
        found = _task(row, chance) or _completion(row)
        if found is None:
            reading.problems.add("the row holds no task with its program", reading.path, place)
        else:
            yield Talk(pair(*found), CODE)


def _completion(row: Mapping[str, Any]) -> tuple[str, str] | None:
    prompt, answer = row.get("prompt"), row.get("canonical_solution")
    if not isinstance(prompt, str) or not isinstance(answer, str) or not (prompt.strip() and answer.strip()):
        return None
    return prompt, answer


def _task(row: Mapping[str, Any], chance: random.Random) -> tuple[str, str] | None:
    """A task asked for in words, or, in one of three, by the beginning of the function."""
    text, program = row.get("text"), row.get("code")
    if not isinstance(text, str) or not isinstance(program, str) or not (text.strip() and program.strip()):
        return None
    text, program = text.strip(), program.replace("\r\n", "\n").strip("\n").expandtabs(4)
    begun = _begun(text, program) if chance.random() < 1 / 3 else None
    if begun is not None:
        return begun
    tests = row.get("test_list")
    test = str(tests[0]) if isinstance(tests, list) and tests else ""
    template = chance.choice(_TASKS if test else _TASKS[:2])
    answer = f"```python\n{program}\n```" if chance.random() < 0.5 else program
    return template.format(text=text, test=test), answer


def _begun(text: str, program: str) -> tuple[str, str] | None:
    """The program up to its last function's head with the task as its docstring, and the function's body."""
    heads = list(_FUNCTION.finditer(program))
    if not heads:
        return None
    head, body = program[: heads[-1].end()], program[heads[-1].end() :]
    indent = _INDENT.match(body)
    if indent is None:
        return None
    return f'{head}{indent[0]}"""{text}\n{indent[0]}"""\n', body
