"""Small Python functions from a grammar: filter, map and reduce over lists, and string helpers."""

from __future__ import annotations

import random
from typing import NamedTuple

from .sample_types import Conversation, Exchange
from .sample_world import pick


class _Part(NamedTuple):
    """A part of a task: in a function's name, in words, and in code."""

    word: str
    phrase: str
    code: str


class _Result(NamedTuple):
    word: str
    phrase: str
    start: str
    step: str


_ITEMS = ("numbers", "values", "scores", "prices", "ages", "weights", "lengths", "heights", "points", "sizes")
_CHANGES = (
    _Part("", "", "{x}"),
    _Part("doubled", " doubled", "2 * {x}"),
    _Part("squared", " squared", "{x} * {x}"),
    _Part("negated", " negated", "-{x}"),
    _Part("absolute", " made absolute", "abs({x})"),
    _Part("halved", " halved", "{x} / 2"),
)
_RESULTS = (
    _Result("sum", "the sum of", "0", "total += {y}"),
    _Result("count", "the count of", "0", "total += 1"),
    _Result("product", "the product of", "1", "total *= {y}"),
    _Result("list", "a list of", "[]", "total.append({y})"),
    _Result("largest", "the largest of", "None", "total = {y} if total is None else max(total, {y})"),
    _Result("smallest", "the smallest of", "None", "total = {y} if total is None else min(total, {y})"),
)


def _test(rng: random.Random) -> _Part:
    number = rng.randrange(2, 12)
    rows = (
        _Part("even", "the even", "{x} % 2 == 0"),
        _Part("odd", "the odd", "{x} % 2 == 1"),
        _Part("positive", "the positive", "{x} > 0"),
        _Part("negative", "the negative", "{x} < 0"),
        _Part(f"above_{number}", f"all above {number}", f"{{x}} > {number}"),
        _Part(f"below_{number}", f"all below {number}", f"{{x}} < {number}"),
        _Part(f"multiple_of_{number}", f"all multiples of {number} among the", f"{{x}} % {number} == 0"),
    )
    return rng.choice(rows)


def _joined(*words: str) -> str:
    return "_".join(word for word in words if word)


def _loop(rng: random.Random) -> tuple[str, str, str, str]:
    """Task, function name, argument and function text of a loop over a list."""
    items, test = pick(rng, _ITEMS, 1.5), _test(rng)
    change, result = pick(rng, _CHANGES, 1.8), pick(rng, _RESULTS, 1.3)
    of_the = " of the" if test.phrase.startswith(("all above", "all below")) else ""
    among = f"{test.phrase}{of_the} {items}"
    phrase = f"{result.phrase} {among}{change.phrase}"
    name = _joined(result.word, "of", test.word, items, change.word)
    item = items[:-1]
    step = result.step.format(y=change.code.format(x=item))
    code = (
        f"def {name}({items}):\n"
        f'    """Return {phrase}."""\n'
        f"    total = {result.start}\n"
        f"    for {item} in {items}:\n"
        f"        if {test.code.format(x=item)}:\n"
        f"            {step}\n"
        f"    return total"
    )
    return f"returns {phrase}", name, items, code


_STRING_TASKS = (
    ("reversed", "returns the {0} reversed", "{0}[::-1]"),
    ("upper", "returns the {0} in upper case", "{0}.upper()"),
    ("without_spaces", "returns the {0} without spaces", '{0}.replace(" ", "")'),
    ("word_count", "returns the number of words in the {0}", "len({0}.split())"),
    ("first_word", "returns the first word of the {0}", "{0}.split()[0]"),
    ("last_word", "returns the last word of the {0}", "{0}.split()[-1]"),
    ("is_palindrome", "tells whether the {0} is a palindrome", "{0} == {0}[::-1]"),
    ("vowel_count", "returns the number of vowels in the {0}", 'sum(letter in "aeiou" for letter in {0})'),
    ("sorted_letters", "returns the letters of the {0} in order", '"".join(sorted({0}))'),
    ("longest_word", "returns the longest word of the {0}", "max({0}.split(), key=len)"),
)
_STRINGS = ("text", "name", "title", "line", "word", "sentence", "message", "label", "path", "key")


def _string(rng: random.Random) -> tuple[str, str, str, str]:
    """Task, function name, argument and function text of a one-line string helper."""
    word, task, code = rng.choice(_STRING_TASKS)
    argument = pick(rng, _STRINGS, 1.3)
    phrase, name = task.format(argument), f"{argument}_{word}"
    doc = phrase.replace("returns", "Return", 1).replace("tells", "Tell", 1)
    text = f'def {name}({argument}):\n    """{doc}."""\n    return {code.format(argument)}'
    return phrase, name, argument, text


def _block(code: str) -> str:
    return f"```python\n{code}\n```"


def coding(rng: random.Random) -> Conversation:
    """A function to write, then a change to it."""
    task, name, argument, code = (_loop if rng.random() < 0.7 else _string)(rng)
    first = Exchange(f"Write a Python function that {task}.", _block(code), code)
    new_name = pick(rng, ("compute", "solve", "run", "helper", "answer"), 1.2)
    new_argument = pick(rng, ("data", "items", "given", "entries"), 1.2)
    signature = f"def {name}({argument}):"
    follow_ups = (
        (
            f"Rename the function to {new_name}.",
            "Here is the function with its new name:\n"
            + _block(code.replace(f"def {name}(", f"def {new_name}(")),
        ),
        (
            "Add type hints.",
            "Here is the function with type hints:\n"
            + _block(
                code.replace(signature, signature.replace(f"({argument})", f"({argument}: {_hint(code)})"))
            ),
        ),
        (
            f"Write a second function {new_name} that calls it with {new_argument}.",
            f"Here is a function that calls it:\n{_block(f'def {new_name}({new_argument}):')[:-4]}\n"
            f"    return {name}({new_argument})\n```",
        ),
    )
    prompt, answer = rng.choice(follow_ups)
    return Conversation("coding", (first, Exchange(prompt, answer, answer)))


def _hint(code: str) -> str:
    return "list[float]" if "    for " in code else "str"
