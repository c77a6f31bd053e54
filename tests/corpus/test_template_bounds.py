"""Chat templates of strangers: they reach nothing but the conversation, and they come to an end."""

from __future__ import annotations

import pytest

from vocabforge.core.errors import DataError
from vocabforge.corpus import template_bounds
from vocabforge.corpus.template import render_template, template_facts

HI = [{"role": "user", "content": "hi"}]


def render(template: str, content: str = "hi") -> str:
    return render_template(
        template,
        [{"role": "user", "content": content}],
        add_generation_prompt=False,
        variables={"bos_token": "<s>"},
        source="template",
    )


LOOP = "{% for i in range(99999) %}"
ENDLESS = {
    "nested loops": f"{LOOP}{LOOP}{{% endfor %}}{{% endfor %}}",
    "loops that a filter empties": f"{LOOP}{LOOP.replace(' %}', ' if false %}')}x{{% endfor %}}{{% endfor %}}",
    "loops of a call": "{% for i in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
    "calls without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "calls that double": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "a blocks' caller": f"{{% macro f() %}}{LOOP}{{{{ caller() }}}}{{% endfor %}}{{% endmacro %}}"
    f"{LOOP}{{% call f() %}}x{{% endcall %}}{{% endfor %}}",
    "a product": "{{ ('x' * 10**9)|length }}",
    "a product of a list": "{{ (['x'] * 10**9)|length }}",
    "a product the other way": "{{ (10**9 * 'x')|length }}",
    "a power": "{{ 10 ** (10 ** 9) }}",
    "numbers that grow": f"{{% set n = namespace(x=3) %}}{LOOP}{{% set n.x = n.x * n.x %}}{{% endfor %}}",
    "a sum that doubles": f"{{% set n = namespace(x='xx') %}}{LOOP}{{% set n.x = n.x + n.x %}}{{% endfor %}}",
    "a text that doubles": f"{{% set n = namespace(x='xx') %}}{LOOP}{{% set n.x = n.x ~ n.x %}}{{% endfor %}}",
    "a list that doubles": f"{{% set n = namespace(x=[1]) %}}{LOOP}{{% set n.x = n.x + n.x %}}{{% endfor %}}",
    "a block that doubles": f"{{% set n = namespace(x='xx') %}}{LOOP}{{% set y %}}{{{{ n.x }}}}{{{{ n.x }}}}"
    "{% endset %}{% set n.x = y %}{% endfor %}",
    "long pieces": LOOP + "x" * 99_999 + "{% endfor %}",
    "long outputs": "{% set x = 'x' * 10**6 %}" + LOOP + "{{ x }}{% endfor %}",
    "a width": "{{ '%1000000000d' % 1 }}",
    "a width from a value": "{{ '%*d' % (10**9, 1) }}",
    "a width of format": "{{ '{:1000000000}'.format(1) }}",
    "a width in a width": "{{ '{:{}}'.format(1, 10**9) }}",
    "a width of a mapping": "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "the filter format": "{{ '%1000000000d'|format(1) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "tabs": "{{ '\t'.expandtabs(10**9) }}",
    "indent": "{{ 'a'|indent(10**9, true) }}",
    "tojson": "{{ messages|tojson(indent=10**9) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "replace": "{% set x = 'x' * 10**6 %}{{ x.replace('x', x) }}",
    "replace as a filter": "{% set x = 'x' * 10**6 %}{{ x|replace('x', x) }}",
    "join": "{% set x = 'x' * 10**6 %}{{ range(99999)|join(x) }}",
    "join of a text": "{% set x = 'x' * 10**6 %}{{ x.join(x) }}",
    "map": "{{ range(99999)|map('string')|map('center', 10**6)|list }}",
    "lorem ipsum": "{{ lipsum(n=10**6) }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_comes_to_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "STEPS", 200_000)  # ten times quicker
    with pytest.raises(
        DataError, match=r"computes too much|asks for a width|recursion|'lipsum' is undefined"
    ):
        render(ENDLESS[name])


def test_time_is_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "CPU_S", -1.0)
    assert render("{% for i in range(9) %}x{% endfor %}") == "x" * 9
    with pytest.raises(DataError, match="takes more than"):
        render(f"{LOOP}x{{% endfor %}}")


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


def test_looking_at_a_template_runs_nothing() -> None:
    assert "messages" in template_facts("{{ messages }}{% for i in range(99999) %}{% endfor %}").names
    with pytest.raises(DataError, match="cannot be compiled"):
        template_facts("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}")


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


def test_long_conversations_have_more_to_spend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_bounds, "STEPS", 1000)
    template = "{% for letter in messages[0].content %}{{ letter }}{% endfor %}"
    assert render(template, "x" * 5000) == "x" * 5000
    with pytest.raises(DataError, match="computes too much"):
        render(template.replace("messages[0].content", "range(5000)"))
