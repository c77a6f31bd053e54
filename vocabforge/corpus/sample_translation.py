"""German sentences with their English translation, from one grammar and the word tables."""

from __future__ import annotations

import random

from .sample_types import Conversation, Exchange, capital
from .sample_words import (
    ADJECTIVES,
    CONNECTIVES,
    PERSONS,
    PLACES,
    PREPOSITIONS,
    THINGS,
    TIMES,
    VERBS,
    Noun,
)
from .sample_world import build_world, pick

_NOMINATIVE = {"m": "der", "f": "die", "n": "das"}
_ACCUSATIVE = {"m": "den", "f": "die", "n": "das"}
_DATIVE = {"m": "dem", "f": "der", "n": "dem"}


def _noun_phrase(rng: random.Random, noun: Noun, articles: dict[str, str], skip: float) -> tuple[str, str]:
    """A definite noun phrase, with an adjective unless the dice say otherwise."""
    german, english = articles[noun.gender], "the"
    if rng.random() > skip:
        stem, meaning = pick(rng, ADJECTIVES, 2.2)
        strong = noun.gender == "m" and articles is _ACCUSATIVE
        german, english = f"{german} {stem.rstrip('e')}{'en' if strong else 'e'}", f"{english} {meaning}"
    return f"{german} {noun.german}", f"{english} {noun.english}"


def _clause(rng: random.Random, *, time: bool) -> tuple[str, str]:
    """Subject, verb, object, sometimes a place; after a time the German verb stands before its subject."""
    if rng.random() < 0.2:
        name = pick(rng, build_world().people, 1.6).name.split()[0]
        subject = (name, name)
    else:
        subject = _noun_phrase(rng, pick(rng, PERSONS, 2.2), _NOMINATIVE, 0.5)
    verb, object_ = pick(rng, VERBS, 2.2), _noun_phrase(rng, pick(rng, THINGS, 2.2), _ACCUSATIVE, 0.5)
    german, english = f"{subject[0]} {verb[0]} {object_[0]}", f"{subject[1]} {verb[1]} {object_[1]}"
    if time:
        when = pick(rng, TIMES, 2.0)
        german, english = f"{when[0]} {verb[0]} {subject[0]} {object_[0]}", f"{when[1]} {english}"
    if rng.random() < 0.45:
        preposition, place = pick(rng, PREPOSITIONS, 1.8), pick(rng, PLACES, 2.0)
        german += f" {preposition[0]} {_DATIVE[place.gender]} {place.german}"
        english += f" {preposition[1]} the {place.english}"
    return german, english


def _sentence(rng: random.Random) -> tuple[str, str]:
    german, english = _clause(rng, time=rng.random() < 0.4)
    if rng.random() < 0.25:
        link, (more_german, more_english) = pick(rng, CONNECTIVES, 1.2), _clause(rng, time=False)
        german, english = f"{german}, {link[0]} {more_german}", f"{english}, {link[1]} {more_english}"
    return capital(german) + ".", capital(english) + "."


def translation(rng: random.Random) -> Conversation:
    """One to four German sentences to put into English."""
    german, english = zip(*(_sentence(rng) for _ in range(rng.choice((1, 2, 2, 3)))))
    answer = " ".join(english)
    prompt = "Translate German to English: " + " ".join(german)
    return Conversation("translation", (Exchange(prompt, answer, answer),))
