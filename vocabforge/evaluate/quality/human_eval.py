"""HumanEval: from an answer to the text that completes the prompt, and to the program that tests it.

Two forms of answers. A chat model answers with a code block: the first one that defines the function counts, whole;
it follows the prompt, and its definition replaces the prompt's. A base model goes on where the prompt ended: its text
is cut at the first line that begins, without indentation, with one of the benchmark's stop words
(Chen et al. 2021, arXiv:2107.03374, section 3, and a code fence). Answers are kept stripped, so the first line's
indentation is put back.

Nothing is lost by cutting: the whole answers are in the answer files.
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
# What a module's first line can begin with, where prose stands before it.
_MODULE_START = re.compile(r"^(?:import |from |def |class |@|async def )", re.MULTILINE)
_THOUGHT_END = "</think>"
CHECK_KEYS = ("prompt", "entry_point", "test")


def completion_of(answer: str, check: Mapping[str, Any], form: Literal["chat", "raw"]) -> str:
    """The text that is put behind the prompt.

    Args:
        answer: the model's answer, stripped or not.
        check: a HumanEval row: ``prompt``, ``entry_point``, ``test``.
        form: how the model was asked; a ``raw`` answer that begins with a code block is read as a chat answer.
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
    # Outside of any fence, or before one that the prompt opened.
    if start is not None and _defines(text, name):
        return _module(_cut_after_definition(text[start.start() :], name))
    if blocks:
        return _indented(blocks[0], prompt, name)
    return _body(text, prompt, name)


def program(check: Mapping[str, Any], completion: str) -> str:
    """Prompt, completion, tests, and the call that runs them, joined as the public scorer joins them."""
    return f"{check['prompt']}{completion}\n{check['test']}\ncheck({check['entry_point']})"


def require_check(check: Mapping[str, Any] | None, source: str) -> Mapping[str, Any]:
    """A question's row of HumanEval.

    Raises:
        DataError: it lacks what the scorer needs.
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
    # The prompt ends behind its function's docstring: a whole program begins on a line of its own.
    return "\n" + code.strip("\n") + "\n"


def _cut_after_definition(text: str, name: str) -> str:
    """A program without a fence: up to the first stop word behind the function, the function's own line aside."""
    match = re.search(rf"^(?:async )?def {re.escape(name)}\b", text, re.MULTILINE)
    start = match.end() if match else 0
    return text[:start] + _cut(text[start:])


def _cut(text: str) -> str:
    match = _STOP.search(text)
    return text if match is None else text[: match.start() + 1]


def _body(text: str, prompt: str, name: str) -> str:
    """The continuation of a prompt, up to the first stop word, its first line indented again."""
    first = text.lstrip("\n")
    if _defines(first, name) and _MODULE_START.match(first):  # it began again
        return _module(_cut_after_definition(first, name))
    if first and not first[0].isspace():
        text = _indentation(prompt, name) + first
    return _cut(text)


def _indented(code: str, prompt: str, name: str) -> str:
    """A body that stands in a block of its own, at any indentation."""
    return textwrap.indent(textwrap.dedent(code).strip("\n"), _indentation(prompt, name)) + "\n"


def _indentation(prompt: str, name: str) -> str:
    """That of the function's docstring, the line after its ``def``."""
    match = re.search(rf"^def {re.escape(name)}\b.*\n(?:[ \t]*\n)*([ \t]+)\S", prompt, re.MULTILINE)
    return match[1] if match else "    "
