"""Untrusted chat templates: they reach nothing but the conversation, and sizes are capped."""

from __future__ import annotations

import pytest

from vocabforge.core.errors import DataError
from vocabforge.corpus.chat.template import render_template


def render(template: str, content: str = "hi") -> str:
    return render_template(
        template,
        [{"role": "user", "content": content}],
        add_generation_prompt=False,
        variables={"bos_token": "<s>"},
        source="template",
    )


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% set x = 'x' * 10**6 %}{% for i in range(99999) %}{{ x }}{% endfor %}", "characters"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("x" * (2 << 20), "cannot be compiled"),
    ],
)
def test_sizes_are_capped(template: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        render(template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': 1}) }}",
        "{{ raise_exception.__globals__.os.system('x') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__.__globals__.x }}",
        "{{ (strftime_now|attr('__globals__')).x }}",
        "{{ ([strftime_now]|map(attribute='__globals__')|first).x }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages.clear() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends '../x' %}",
        "{{ raise_exception|tojson }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_a_template_reaches_nothing_else(template: str) -> None:
    with pytest.raises(DataError, match="refuses this conversation"):
        render(template)


@pytest.mark.parametrize(
    "template",
    ["{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "{% if 1 %}" * 120 + "{% endif %}" * 120, "{{ 1 +"],
)
def test_what_cannot_be_compiled_is_said(template: str) -> None:
    with pytest.raises(DataError, match="cannot be compiled"):
        render(template)
