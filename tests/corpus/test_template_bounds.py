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
        ("{{ ('x' * 10**9)|length }}", "1,000,000,000 characters"),
        ("{{ (10**9 * 'x')|length }}", "1,000,000,000 characters"),
        ("{{ (['x'] * 10**9)|length }}", "1,000,000,000 characters"),
        ("{{ 10 ** (10 ** 9) }}", "characters"),
        ("{% set x = 'x' * 10**6 %}{% for i in range(99999) %}{{ x }}{% endfor %}", "characters"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_sizes_are_capped(template: str, why: str) -> None:
    with pytest.raises(DataError, match=why):
        render(template)


def test_a_template_too_long_to_be_one_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be compiled"):
        render("x" * (2 << 20))


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


@pytest.mark.parametrize("name", ["strftime_now", "raise_exception", "range", "namespace", "joiner"])
def test_hidden_attributes_show_nothing(name: str) -> None:
    assert (
        render(f"{{{{ {name}.__globals__ }}}}{{{{ {name}.__code__ }}}}{{{{ {name}|attr('__dict__') }}}}")
        == ""
    )


@pytest.mark.parametrize(
    "template",
    ["{{ " + "(" * 300 + "1" + ")" * 300 + " }}", "{% if 1 %}" * 120 + "{% endif %}" * 120, "{{ 1 +"],
)
def test_what_cannot_be_compiled_is_said(template: str) -> None:
    with pytest.raises(DataError, match="cannot be compiled"):
        render(template)


def test_ordinary_templates_compute_as_ever() -> None:
    assert render("{{ 'a' ~ 1 ~ none ~ missing ~ [2] }}") == "a1None[2]"
    assert render(
        "{{ 2 * 3 }}{{ 'ab' * 2 }}{{ 2 ** 8 }}{{ 7 % 4 }}{{ '%s-%03d' % ('x', 7) }}{{ [1] + [2] }}"
    ) == ("6abab2563x-007[1, 2]")
    assert render("{{ 'x'|center(5) }}|{{ 'a\nb'|indent(2) }}|{{ '{:>4}'.format(7) }}") == "  x  |a\n  b|   7"
    assert (
        render("{% for i in [1, 2, 3] if i != 2 %}{{ loop.index }}/{{ loop.length }} {% endfor %}")
        == "1/2 2/2 "
    )
    assert (
        render(
            "{% for i in [1, 2] %}{% if loop.last %}{{ i }}{% else %}{% continue %}{% endif %}{% endfor %}"
        )
        == "2"
    )
    assert render("{% for i in [] %}x{% else %}none{% endfor %}") == "none"
    assert render(
        "{% macro f(a, b='y') %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call f('x') %}z{% endcall %}"
    ) == ("xyz")
    assert (
        render("{% for i in [[1, [2]]] recursive %}{{ i if i is number else loop(i) }}{% endfor %}") == "12"
    )
    assert render(
        "{{ messages|map(attribute='role')|join(',') }}{{ [3, 1]|sort|list }}{{ {'a': 1}|items|list }}"
    ) == ("user[1, 3][('a', 1)]")
    assert render("{{ messages[0].content.split('</think>')[-1].strip('\n') }}", "a</think>\nb") == "b"
