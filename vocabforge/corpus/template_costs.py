"""What the steps of a chat template cost, and how many one rendering has."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from string import Formatter
from typing import Any

from jinja2 import TemplateRuntimeError
from jinja2.utils import Namespace

HOLDERS: tuple[type[Collection[Any]], ...] = (
    list,
    tuple,
    dict,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_MEASURED: tuple[type[Collection[Any]], ...] = (str, bytes, range, *HOLDERS)
STEPS, STEPS_PER_CHARACTER = 2_000_000, 20
CPU_S = 60.0
_CHARACTERS_A_STEP = 64
_LOOK_EVERY = 1024
_LONGEST_KEY = 200


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What makes its result as long as a number says.
_WIDTHS = _names("center ljust rjust zfill expandtabs indent batch slice wordwrap")
# Filters that do not look into the places of a list; and methods that do.
FLAT = _names(
    "length count first last list map select selectattr reject rejectattr items reverse batch slice "
    "default d attr random"
)
DEEP = _names("join translate index count")
# What they give is no longer than what they are given, all together.
_LINEAR = (FLAT - {"batch", "slice"}) | _names(
    "dictsort sort unique groupby min max startswith endswith find rfind index rindex split rsplit partition "
    "rpartition strip lstrip rstrip trim removeprefix removesuffix get"
)
COMPARISONS = _names("== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in")
_NUMBER = re.compile(r"\d{5}")
_WIDE_PERCENT = re.compile(r"[#0\- +]*(?:\*|\d{5}|\d*\.(?:\*|\d{5}))")


class TooMuch(TemplateRuntimeError):
    """The template computes more than any conversation needs."""


class _Budget:
    def __init__(self, steps: int) -> None:
        self._left = steps
        self._looks = _LOOK_EVERY
        self._end = time.thread_time() + CPU_S

    def spend(self, steps: int) -> None:
        self._left -= steps
        self._looks -= 1
        if self._left < 0:
            raise TooMuch("it computes too much (a loop without end, or a text without end)")
        if self._looks < 0:
            self._looks = _LOOK_EVERY
            if time.thread_time() > self._end:
                raise TooMuch(f"it takes more than {CPU_S:g} s")


_BUDGET: ContextVar[_Budget | None] = ContextVar("budget", default=None)


@contextmanager
def bounded(messages: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Within it, a template's steps are counted; a long conversation is given more of them."""
    size = sum(total_of(value) for message in messages for value in message.values())
    token = _BUDGET.set(_Budget(STEPS + STEPS_PER_CHARACTER * size))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def spend(characters: int) -> None:
    """Take one step, and more for many characters.

    Raises:
        TooMuch: there are none left.
    """
    budget = _BUDGET.get()
    if budget is not None:
        budget.spend(1 + characters // _CHARACTERS_A_STEP)


def length_of(value: object) -> int:
    """Characters of a text or number, places of a list."""
    if isinstance(value, int):
        return value.bit_length() // 3 + 1
    return len(value) if isinstance(value, _MEASURED) else 1


def _inside(value: object) -> Iterator[object] | None:
    if isinstance(value, dict):
        return itertools.chain.from_iterable(value.items())
    if isinstance(value, Namespace):
        return iter(object.__getattribute__(value, "_Namespace__attrs").items())
    return iter(value) if isinstance(value, HOLDERS) else None


def total_of(value: object, indent: int = 0) -> int:
    """Characters that it takes to write a value, what stands in it twice counted twice; every place is a step."""
    if isinstance(value, str):
        return len(value)
    total, places, waiting = 0, 0, [iter((value,))]
    while waiting:
        for one in waiting[-1]:
            places += 1
            total += (len(one) if type(one) is str else length_of(one)) + indent * len(waiting)
            if places % _LOOK_EVERY == 0:
                spend(_LOOK_EVERY * _CHARACTERS_A_STEP)
            if type(one) is not str and (inside := _inside(one)) is not None:
                waiting.append(inside)
                break
        else:
            waiting.pop()
    spend(places % _LOOK_EVERY * _CHARACTERS_A_STEP)
    return total


def paid(values: Iterable[object], each: int) -> Iterator[object]:
    """The values, each paid for as it is taken: what filters give is not there before."""
    for one in values:
        spend(each + total_of(one))
        yield one


def growth(name: str, value: object, given: Sequence[object], *, deep: bool, named: bool) -> int:
    """Characters that a method or filter may go through or make, at most."""
    measure = total_of if deep else length_of
    size, lengths = 1 + measure(value), [measure(one) for one in given]
    if name in _LINEAR:
        return size + sum(lengths)
    if name == "join":  # filter and method
        return size + sum(lengths) + (1 + length_of(value)) * max([1, *map(length_of, given)])
    if name == "format" and isinstance(value, str):
        return size + value.count("%") * sum(lengths)
    if name == "replace" and len(lengths) > 1 and not named:
        return size + size // max(1, lengths[0]) * lengths[1]
    if name in ("tojson", "pprint"):
        numbers = (abs(one) for one in given if isinstance(one, int))
        return total_of(value, 1 + sum(lengths) + sum(numbers))
    widths = [abs(one) for one in given if isinstance(one, int)] if name in _WIDTHS else []
    return size * max([1, *lengths, *widths])


def check_percent(text: object) -> None:
    """Refuse a text for ``%`` that asks for a great width, or for one of its values as a width.

    Raises:
        TooMuch: it does.
    """
    at = text.find("%") if isinstance(text, str) else -1
    while isinstance(text, str) and at >= 0:
        if _WIDE_PERCENT.match(text, _behind_key(text, at + 1)):
            raise TooMuch("a format asks for a width of its own or of many characters")
        at = text.find("%", at + 1)


def _behind_key(text: str, at: int) -> int:
    """Where ``(key)`` ends; brackets in it count."""
    if text[at : at + 1] != "(":
        return at
    depth = 0
    for place in range(at, min(len(text), at + _LONGEST_KEY)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1
    if at + _LONGEST_KEY < len(text):
        raise TooMuch("a format has a key without end")
    return len(text)


def check_braces(text: str) -> None:
    """The same for ``str.format``.

    Raises:
        TooMuch: it does.
    """
    for _, _, form, _ in Formatter().parse(text):
        if form and ("{" in form or _NUMBER.search(form)):
            raise TooMuch("a format asks for a width of its own or of many characters")
