"""HumanEval: extract a completion from an answer, and build the program that tests it.

Chat answers contain code blocks. The first block that defines the function is used completely: it is appended
to the prompt, and its definition replaces the prompt's. Raw answers of base models continue the prompt. They
are cut at the first unindented line that starts with a stop word of the benchmark (Chen et al. 2021,
arXiv:2107.03374, section 3) or a code fence. Answers are stored stripped, so the indentation of the first
line is restored.

The answer files keep the complete answers.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any, Literal

from ...core.errors import DataError

_STOP = re.compile(r"\n(?=class\b|def\b|#|if\b|print\b|```)")
_FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<code>.*?)(?:^[ \t]*(?P=fence)[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
# Possible beginnings of a module after leading prose.
_MODULE_START = re.compile(r"^(?:import |from |def |class |@|async def )", re.MULTILINE)
_THOUGHT_END = "</think>"
CHECK_KEYS = ("prompt", "entry_point", "test")


def completion_of(answer: str, check: Mapping[str, Any], form: Literal["chat", "raw"]) -> str:
    """Return the text to append to the prompt.

    Args:
        answer: the model's answer, stripped or not.
        check: a HumanEval row: ``prompt``, ``entry_point``, ``test``.
        form: format of the prompt; a ``raw`` answer that begins with a code block is treated as a chat
            answer.
    """
    prompt, name = check["prompt"], check["entry_point"]
    text = answer.replace("\r\n", "\n")
    if form == "raw" and not text.lstrip().startswith(("```", "~~~")):
        return _body(text, prompt, name)
    text = text.rpartition(_THOUGHT_END)[2]
    blocks = [
        re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        for match in _FENCE.finditer(text)
    ]
    forms = (form for block in blocks for form in (block, textwrap.dedent(block)))
    whole = next((form for form in forms if _defines(form, name)), None)
    if whole is not None:
        return _module(whole)
    start = _MODULE_START.search(text)
    # The function is outside any fence, or before a fence that the prompt opened.
    if start is not None and _defines(text, name):
        return _module(_cut_after_definition(text[start.start() :], name))
    if blocks:
        return _indented(blocks[0], prompt, name)
    return _body(text, prompt, name)


def program(check: Mapping[str, Any], completion: str) -> str:
    """Join prompt, completion, tests and the call that runs them, as the public scorer does."""
    return f"{check['prompt']}{completion}\n{check['test']}\ncheck({check['entry_point']})"


def require_check(check: Mapping[str, Any] | None, source: str) -> Mapping[str, Any]:
    """Return the HumanEval row of a question.

    Raises:
        DataError: a field that the scorer needs is missing.
    """
    if check is None or any(not isinstance(check.get(key), str) for key in CHECK_KEYS):
        raise DataError(
            "a question has no tests",
            got="nothing" if check is None else ", ".join(sorted(map(str, check))),
            expected=", ".join(CHECK_KEYS),
            source=source,
        )
    return check


def _defines(text: str, name: str) -> bool:
    return re.search(rf"^(?:async )?def {re.escape(name)}\b", text, re.MULTILINE) is not None


def _module(code: str) -> str:
    # The prompt ends after the docstring, so a whole program must start on a new line.
    return "\n" + code.strip("\n") + "\n"


def _cut_after_definition(text: str, name: str) -> str:
    """Cut an unfenced program at the first stop word after the function's ``def`` line."""
    match = re.search(rf"^(?:async )?def {re.escape(name)}\b", text, re.MULTILINE)
    start = match.end() if match else 0
    return text[:start] + _cut(text[start:])


def _cut(text: str) -> str:
    match = _STOP.search(text)
    return text if match is None else text[: match.start() + 1]


def _body(text: str, prompt: str, name: str) -> str:
    """Cut a continuation of the prompt at the first stop word and restore its first line's indentation."""
    first = text.lstrip("\n")
    if _defines(first, name) and _MODULE_START.match(first):  # the answer repeats the definition
        return _module(_cut_after_definition(first, name))
    if first and not first[0].isspace():
        text = _indentation(prompt, name) + first
    return _cut(text)


def _indented(code: str, prompt: str, name: str) -> str:
    """Indent a function body from a code block as the prompt requires."""
    return textwrap.indent(textwrap.dedent(code).strip("\n"), _indentation(prompt, name)) + "\n"


def _indentation(prompt: str, name: str) -> str:
    """Return the indentation of the line after the function's ``def``."""
    match = re.search(rf"^def {re.escape(name)}\b.*\n(?:[ \t]*\n)*([ \t]+)\S", prompt, re.MULTILINE)
    return match[1] if match else "    "
