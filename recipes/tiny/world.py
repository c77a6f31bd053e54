"""A small fictional encyclopaedia, the source of the sample texts.

The world is fixed and does not depend on the sample's seed. Parts of names are regular: the end of a town's
name gives its region, the end of an animal's name its kind. Other facts (rivers, jobs, years) must be
memorised or looked up.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Entry = dict[str, str]

WORLD_SEED = "vocabforge-world-2"
NUM_TOWNS, NUM_PEOPLE, NUM_ANIMALS, NUM_RIVERS, NUM_SURNAMES = 900, 900, 500, 160, 700


# Templates and words: texts.json. Women's and men's first names alternate.
TEXTS: dict[str, Any] = json.loads(Path(__file__).with_name("texts.json").read_text("utf-8"))


def pick(rng: random.Random, rows: Sequence[T], skew: float = 2.0) -> T:
    """Draw a row with a Zipf-like skew: with ``skew`` s, P(rank < r) is about (r / n) ** (1 / s)."""
    return rows[int(len(rows) * rng.random() ** skew)]


def article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def _stems(rng: random.Random, count: int, syllables: tuple[int, ...]) -> list[str]:
    """Return ``count`` different fictional word stems."""
    stems: dict[str, None] = {}
    while len(stems) < count:
        onsets = [rng.choice(TEXTS["onsets"])]
        onsets += [rng.choice(TEXTS["inner"]) for _ in range(rng.choice(syllables) - 1)]
        stem = "".join(onset + rng.choice(TEXTS["vowels"]) for onset in onsets)
        stems[stem + rng.choice(TEXTS["codas"])] = None
    return list(stems)


@lru_cache(maxsize=1)
def build_world() -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Return people (each with the facts of a trade and a home town) and animals, most famous first."""
    rng = random.Random(WORLD_SEED)
    rivers = [stem.capitalize() for stem in _stems(rng, NUM_RIVERS, (1, 2, 2))]
    towns = []
    for stem in _stems(rng, NUM_TOWNS, (1, 2, 2)):
        region = pick(rng, TEXTS["regions"], 1.5)
        towns.append(
            {
                **region,
                "town": (stem + region["ending"]).capitalize(),
                "river": pick(rng, rivers),
                "product": pick(rng, TEXTS["goods"], 1.5),
                "founded": str(rng.randrange(10, 19) * 100 + rng.choice((0, 10, 20, 50))),
                "inhabitants": str(rng.randrange(2, 90)),
            }
        )
    people: dict[str, Entry] = {}
    first = TEXTS["first names"]
    surnames = [stem.capitalize() for stem in _stems(rng, NUM_SURNAMES, (2, 2, 3))]
    while len(people) < NUM_PEOPLE:
        number = rng.randrange(len(first))
        name = f"{first[number]} {pick(rng, surnames, 1.3)}"
        trade = pick(rng, TEXTS["jobs"], 1.5)
        people.setdefault(
            name,
            {
                **pick(rng, towns, 1.3),
                **trade,
                "name": name,
                "first": first[number],
                "she": ("she", "he")[number % 2],
                "She": ("She", "He")[number % 2],
                "her": ("her", "his")[number % 2],
                "a_job": article(trade["job"]),
                "born": str(rng.randrange(1500, 1900, 5)),
            },
        )
    animals = []
    for stem in _stems(rng, NUM_ANIMALS, (1, 2, 2)):
        kind = pick(rng, TEXTS["kinds"], 1.3)
        name = stem + kind["ending"]
        facts = {"animal": name, "an_animal": article(name), "a_group": article(kind["group"])}
        own = {
            "food": pick(rng, TEXTS["foods"], 1.4),
            "weight": str(rng.randrange(1, 60)),
            "colour": rng.choice(TEXTS["colours"]),
        }
        animals.append({**kind, **facts, **own})
    return tuple(people.values()), tuple(animals)


def scene(rng: random.Random, skew: float = 2.0) -> Entry:
    """Return template fields: a person with trade and town, an animal, and varying details."""
    people, animals = build_world()
    return {
        **pick(rng, animals, skew),
        **pick(rng, people, skew),
        "weather": pick(rng, TEXTS["weather"], 1.3),
        "feeling": pick(rng, TEXTS["feelings"], 1.3),
        "festival": rng.choice(TEXTS["festivals"]),
        "visitors": str(rng.randrange(2, 60) * 100),
        "price": str(rng.randrange(2, 20)),
        "days": str(rng.randrange(3, 30)),
        "amount": str(rng.randrange(2, 40)),
        "goods": f"{pick(rng, TEXTS['colours'], 1.2)} {pick(rng, TEXTS['goods'], 1.3)}",
    }
