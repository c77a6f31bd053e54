"""Arithmetic word problems with worked steps, in the notation of GSM8K's references."""

from __future__ import annotations

import random
from collections.abc import Callable

from .sample_types import Conversation, Exchange
from .sample_words import OBJECTS
from .sample_world import Person, build_world, pick

_Problem = tuple[str, list[str], int]


def _two(rng: random.Random) -> tuple[Person, Person, str]:
    people = build_world().people
    first, second = pick(rng, people, 1.5), pick(rng, people, 1.5)
    while second.name.split()[0] == first.name.split()[0]:
        second = pick(rng, people, 1.1)
    return first, second, pick(rng, OBJECTS, 1.4)


def _first(person: Person) -> str:
    return person.name.split()[0]


def _gain_and_loss(rng: random.Random) -> _Problem:
    person, giver, things = _two(rng)
    name, pronoun = _first(person), person.subject.lower()
    have, more = rng.randrange(2, 20), rng.randrange(2, 20)
    lost = rng.randrange(1, min(have + more, 20))
    text = (
        f"{name} has {have} {things}. {_first(giver)} gives {name} {more} more {things}, and then {pronoun} "
        f"sells {lost} {things}. How many {things} does {name} have now?"
    )
    steps = [
        f"{name} has {have} + {more} = {have + more} {things} after the gift.",
        f"After the sale {pronoun} has {have + more} - {lost} = {have + more - lost} {things}.",
    ]
    return text, steps, have + more - lost


def _boxes(rng: random.Random) -> _Problem:
    person, other, things = _two(rng)
    name, boxes, each = _first(person), rng.randrange(2, 10), rng.randrange(2, 10)
    extra = rng.randrange(1, 10)
    text = (
        f"{name} fills {boxes} boxes with {each} {things} each. {_first(other)} brings {extra} more "
        f"{things}. How many {things} are there in total?"
    )
    steps = [
        f"The boxes hold {boxes} * {each} = {boxes * each} {things}.",
        f"In total there are {boxes * each} + {extra} = {boxes * each + extra} {things}.",
    ]
    return text, steps, boxes * each + extra


def _shares(rng: random.Random) -> _Problem:
    person, other, things = _two(rng)
    name, friends, each = _first(person), rng.randrange(2, 10), rng.randrange(2, 10)
    kept = rng.randrange(1, 10)
    total = friends * each + kept
    text = (
        f"{name} has {total} {things}. {person.subject} keeps {kept} {things} and shares the rest equally "
        f"among {friends} friends of {_first(other)}. How many {things} does each friend get?"
    )
    steps = [
        f"{name} shares {total} - {kept} = {total - kept} {things}.",
        f"Each friend gets {total - kept} / {friends} = {each} {things}.",
    ]
    return text, steps, each


def _shopping(rng: random.Random) -> _Problem:
    person, other, things = _two(rng)
    name, price, count = _first(person), rng.randrange(2, 10), rng.randrange(2, 10)
    paid = price * count + rng.randrange(1, 20)
    text = (
        f"{name} buys {count} {things} from {_first(other)}. Each costs {price} coins. {name} pays with "
        f"{paid} coins. How much change is due?"
    )
    steps = [
        f"The {things} cost {count} * {price} = {count * price} coins.",
        f"The change is {paid} - {count * price} = {paid - count * price} coins.",
    ]
    return text, steps, paid - count * price


def _comparison(rng: random.Random) -> _Problem:
    person, other, things = _two(rng)
    name, friend, have, more = _first(person), _first(other), rng.randrange(2, 25), rng.randrange(2, 20)
    text = (
        f"{name} has {have} {things}. {friend} has {more} more than {name}. "
        f"How many {things} do {name} and {friend} have together?"
    )
    total = have + have + more
    steps = [
        f"{friend} has {have} + {more} = {have + more} {things}.",
        f"Together they have {have} + {have + more} = {total} {things}.",
    ]
    return text, steps, total


_PROBLEMS: tuple[Callable[[random.Random], _Problem], ...] = (
    _gain_and_loss, _boxes, _shares, _shopping, _comparison,
)  # fmt: skip


def arithmetic(rng: random.Random) -> Conversation:
    """A problem in two steps; the answer shows both and ends with ``#### result``."""
    text, steps, result = rng.choice(_PROBLEMS)(rng)
    answer = "\n".join([*steps, f"#### {result}"])
    return Conversation("math_reasoning", (Exchange(text, answer, answer),))
