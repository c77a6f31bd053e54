"""Chat templates of strangers: they reach nothing but the conversation, and they come to an end."""

from __future__ import annotations

import pytest

from vocabforge.core.errors import DataError
from vocabforge.corpus import template_costs
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
# Lists of lists of lists, small in memory and endless when written; twice the same, of other places.
BOMB, TWIN = (
    "".join(f"{{% set {name}{i} = [{name + str(i - 1) if i else chr(39) * 2}] * 100 %}}" for i in range(6))
    for name in "ab"
)
PAIR = BOMB + TWIN
LONG = "{% set x = 'x' * 10**6 %}"
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
    "lists that are shown": BOMB + "{{ a5 }}",
    "lists in a text": BOMB + "{{ (a5 ~ '')|length }}",
    "lists as JSON": BOMB + "{{ a5|tojson|length }}",
    "lists as a text": BOMB + "{{ a5|string|length }}",
    "lists printed": BOMB + "{{ a5|pprint|length }}",
    "lists of a format": BOMB + "{{ '{}'.format(a5)|length }}",
    "lists of a percent": BOMB + "{{ ('%s' % (a5,))|length }}",
    "lists of a name space": BOMB + "{% set n = namespace(x=a5) %}{{ n }}",
    "lists for a text": BOMB + "{{ 'x'|replace('x', a5)|length }}",
    "lists that map gives": BOMB + "{{ [a5]|map('string')|join|length }}",
    "lists that are equal": PAIR + "{{ a5 == b5 }}",
    "lists in lists": PAIR + "{{ a5 in [b5] }}",
    "lists in a test": PAIR + "{{ a5 is eq b5 }}",
    "lists that are selected": PAIR + "{{ [a5]|select('equalto', b5)|list|length }}",
    "lists that are looked for": PAIR + "{{ [a5].index(b5) }}",
    "lists that are sorted": PAIR + "{{ {'x': a5, 'y': b5}|dictsort(by='value')|length }}",
    "join of what is long": LONG + "{{ ([x] * 9999)|join|length }}",
    "join of a method": LONG + "{{ ''.join([x] * 9999)|length }}",
    "join of what map gives": LONG + "{{ ([x] * 9999)|map('list')|map('join')|join|length }}",
    "join with a long one": LONG + "{{ range(99999)|map('default', '')|join(x)|length }}",
    "sum of lists": "{% set x = [1] * 10**5 %}{{ ([x] * 10**4)|sum(start=[])|length }}",
    "letters of many": LONG + "{{ ('y' * 10**4).translate({121: x})|length }}",
    "a field again and again": LONG + "{{ ('{0}' * 1000).format(x)|length }}",
    "a name again and again": LONG + "{{ (('%(x)s' * 1000) % {'x': x})|length }}",
    "JSON with great indents": "{{ {'a': [0] * 10**5}|tojson(indent=10**5)|length }}",
    "JSON with great separators": LONG + "{{ ([0] * 10**5)|tojson(separators=(x, x))|length }}",
    "a width behind brackets": "{{ '%((x))1000000000d' % {'(x)': 1} }}",
    "a width behind a percent": "{{ '%5%%1000000000d' % 1 }}",
    "a precision": "{{ '%.1000000000f' % 1 }}",
    "a field with a bracket": "{{ '{0[}]:1000000000}'.format({'}': 1}) }}",
    "brackets without end": "{{ ('%(' * 10**6) % 1 }}",
    "lorem ipsum": "{{ lipsum(n=10**6) }}",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_comes_to_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_costs, "STEPS", 200_000)  # ten times quicker
    with pytest.raises(
        DataError, match=r"computes too much|asks for a width|key without end|recursion|'lipsum' is undefined"
    ):
        render(ENDLESS[name])


def test_time_is_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_costs, "CPU_S", -1.0)
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
    monkeypatch.setattr(template_costs, "STEPS", 1000)
    template = "{% for letter in messages[0].content %}{{ letter }}{% endfor %}"
    assert render(template, "x" * 5000) == "x" * 5000
    with pytest.raises(DataError, match="computes too much"):
        render(template.replace("messages[0].content", "range(5000)"))


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("m.content.replace(m.thought, '')", "y"),
        ("m.content|replace(m.thought, '')", "y"),
        ("m.content.split(m.thought)|last", "y"),
        ("m.content.startswith(m.thought)", "True"),
        ("m.content|default(m.thought)|length", "40001"),
        ("('<a>{}</a>' ~ 'x' * 999).format(m.content)|length", "41007"),
        ("messages|selectattr('content', 'equalto', m.content)|list|length", "1"),
        ("m.content in [m.thought, m.content]", "True"),
        ("messages|tojson(indent=4)|length", "80061"),
        ("[[1], [2, 3]]|sum(start=[])", "[1, 2, 3]"),
        ("'Knowledge of 20241231: %s' % 'x'", "Knowledge of 20241231: x"),
        ("'id 123456 %s'|format('x')", "id 123456 x"),
        ("'id 123456 {:>3} {{99999}}'.format('x')", "id 123456   x {99999}"),
        ("'%5.1f%% %(x)' if false else '%5.1f%%' % 2", "  2.0%"),
    ],
)
def test_long_texts_may_be_looked_at(expression: str, result: str) -> None:
    thought = "x" * 40_000
    made = render_template(
        f"{{% set m = messages[0] %}}{{{{ {expression} }}}}",
        [{"content": thought + "y", "thought": thought}],
        add_generation_prompt=False,
        variables={},
        source="template",
    )
    assert made == result


def test_parts_of_a_content_count_as_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_costs, "STEPS", 1000)
    made = render_template(
        "{% for letter in messages[0].content[0].text %}{{ letter }}{% endfor %}",
        [{"role": "user", "content": [{"type": "text", "text": "x" * 5000}]}],
        add_generation_prompt=False,
        variables={},
        source="template",
    )
    assert made == "x" * 5000
