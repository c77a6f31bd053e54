"""Sandboxed Jinja chat templates with the features that published templates rely on."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...core.errors import DataError

# Characters; far more than any published template (30 kB) or conversation has.
_LONGEST_TEMPLATE, _LONGEST_TEXT = 1 << 20, 64 << 20

# Errors that a template can raise on unsuitable messages.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
# The Python errors come from templates nested too deeply for Python's parser.
_COMPILE_ERRORS = (jinja2.TemplateError, SyntaxError, RecursionError, ValueError, ArithmeticError)

_TAG = re.compile(r"\{%[-+]?\s*generation\b")
_MARKS = "_generation_marks"
# Private-use characters that mark the tags in a second rendering.
_MARK_PAIRS = tuple((chr(code), chr(code + 1)) for code in range(0x10FF00, 0x10FF40, 2))


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %} ... {% endgeneration %}`` around text that the assistant generates."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body", [nodes.ContextReference()])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _body(context: Any, caller: Callable[[], str]) -> str:
        text = str(caller())
        marks = context.get(_MARKS)
        if marks is None:
            return text
        opened, closed, outside = marks
        core = text if outside else text.strip()
        at = text.find(core)
        return f"{text[:at]}{opened}{core}{closed}{text[at + len(core) :]}"


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise jinja2.TemplateRuntimeError(f"too long: {size:,} characters (at most {most:,})")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


@functools.cache
def _started() -> datetime:
    """Return the time of the first call; prompts of one process must not change at midnight."""
    return datetime.now()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialise without the HTML escapes of Jinja's filter, which models never saw in training."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: _started().strftime(pattern)
    return environment


@functools.lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    _check_size(len(template), _LONGEST_TEMPLATE)
    compiled = _environment().from_string(template)
    compiled.globals = dict(compiled.globals)  # every rendering would copy the original ChainMap key by key
    return compiled


def check_template(template: str, source: object) -> None:
    """Check that a template compiles.

    Raises:
        DataError: the template has a syntax error or is too long.
    """
    try:
        _compile(template)
    except _COMPILE_ERRORS as error:
        raise DataError(
            "the chat template cannot be compiled",
            got=error,
            source=source,
            remedy="fix the chat template, or use the tokenizer folder of the published model",
        ) from error


def mentions(template: str, name: str) -> bool:
    """Return whether a template contains a name as a word."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", template) is not None


def marks_generation(template: str) -> bool:
    """Return whether a template has ``{% generation %}`` tags."""
    return _TAG.search(template) is not None


def generation_spans(
    template: str,
    text: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    variables: Mapping[str, Any],
    source: object,
) -> list[tuple[int, int]] | None:
    """Return the character spans (start, end) in ``text`` inside generation tags, in order.

    The conversation is rendered again with private-use characters as marks at the tags. Without the marks,
    the result must equal ``text``, so the spans are exact even for tags inside loops, macros and filters. If
    a filter trims the marked text, the marks move to its first and last visible character. Nested tags count
    as the outermost. Return None if the template measures, cuts or sorts the marked text.
    """
    pair = next((pair for pair in _MARK_PAIRS if not any(mark in text for mark in pair)), None)
    if pair is None:
        return None
    for outside in (True, False):
        names = {**variables, _MARKS: (*pair, outside)}
        marked = render_template(
            template, messages, add_generation_prompt=False, variables=names, source=source
        )
        if marked.translate({ord(mark): None for mark in pair}) == text:
            return _read_marks(marked, *pair)
    return None


def _read_marks(marked: str, opened: str, closed: str) -> list[tuple[int, int]] | None:
    """Return the spans between marks, counted without marks, or None if the marks do not pair up."""
    spans: list[tuple[int, int]] = []
    at = depth = start = 0
    for part in re.split(f"([{opened}{closed}])", marked):
        if part == opened:
            start = at if depth == 0 else start
            depth += 1
        elif part == closed:
            depth -= 1
            if depth < 0:
                return None
            if depth == 0 and at > start:
                spans.append((start, at))
        else:
            at += len(part)
    return spans if depth == 0 else None


def render_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
    source: object,
) -> str:
    """Render a conversation; ``variables`` are additional template variables.

    Raises:
        DataError: the template has a syntax error, rejects these messages, or produces text that is too long.
    """
    check_template(template, source)
    compiled = _compile(template)
    names = {"tools": None, "documents": None, **variables}
    try:
        parts, size = [], 0
        given = {**names, "messages": list(messages), "add_generation_prompt": add_generation_prompt}
        for part in compiled.generate(given):
            parts.append(part)
            size += len(part)
            _check_size(size, _LONGEST_TEXT)
        text = "".join(parts)
        text.encode("utf-8")  # raises on a lone surrogate, which no tokenizer accepts
        return text
    except _RENDER_ERRORS as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise DataError(
            "the chat template refuses this conversation",
            got=f"{type(error).__name__}: {error} (roles: {roles})",
            expected="a conversation that the template accepts",
            source=source,
        ) from error
