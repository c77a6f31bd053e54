"""Chat templates: Jinja in a sandbox, with the features that published templates count on."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..core.errors import DataError

# What a template can raise on messages that it does not fit, beside Jinja's own errors.
_RENDER_ERRORS = (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError)


class _GenerationTag(jinja2.ext.Extension):
    """Accepts ``{% generation %} ... {% endgeneration %}``, which only marks text for other tools."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    @staticmethod
    def _body(caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML characters, which models never saw in training."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@functools.lru_cache(maxsize=16)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def render_template(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
    source: object,
) -> str:
    """Render a conversation.

    Args:
        template: Jinja text of the chat template.
        messages: mappings with ``role`` and ``content`` (and what else the template reads).
        add_generation_prompt: end with the header of the assistant's next turn.
        variables: further names that the template sees (``bos_token``, ``tools``, ``enable_thinking``, ...).
        source: where the template came from, for error messages.

    Raises:
        DataError: the template has a syntax error, or refuses these messages.
    """
    try:
        compiled = _compile(template)
    except jinja2.TemplateError as error:
        raise DataError("the chat template cannot be compiled", got=error, source=source) from error
    names = {"tools": None, "documents": None, **variables}
    try:
        return compiled.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **names)
    except _RENDER_ERRORS as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise DataError(
            "the chat template refuses this conversation",
            got=f"{type(error).__name__}: {error} (roles: {roles})",
            source=source,
        ) from error
