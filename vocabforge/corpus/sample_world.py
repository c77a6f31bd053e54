"""The small invented encyclopaedia behind the sample texts.

The world is fixed: it does not depend on the sample's seed, so that questions asked of two samples have
the same answers. What a name says is regular (the end of a town's name tells its region, the end of an
animal's name its kind), the rest (founding years, rivers, people's jobs) has to be learnt or read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeVar

from .sample_words import FOODS, GOODS, JOBS, words

T = TypeVar("T")

WORLD_SEED = "vocabforge-world-1"
NUM_TOWNS, NUM_PEOPLE, NUM_ANIMALS = 900, 900, 500
NUM_RIVERS, NUM_SURNAMES = 160, 700


class Region(NamedTuple):
    """A region: the ending of its towns' names, where it lies, and what it is like."""

    name: str
    ending: str
    direction: str
    climate: str
    language: str
    capital: str


REGIONS = (
    Region("Moravel", "mora", "north", "cold", "Velish", "Karmora"),
    Region("Hestria", "stead", "east", "dry", "Hestrian", "Oldstead"),
    Region("Lunaria", "luna", "south", "warm", "Lunic", "Belluna"),
    Region("Tarvenia", "ven", "west", "rainy", "Tarvic", "Goldven"),
    Region("Ostmark", "berg", "east", "windy", "Ostish", "Hochberg"),
    Region("Silvania", "wald", "centre", "mild", "Silvan", "Grunwald"),
    Region("Pelagia", "port", "south", "humid", "Pelagic", "Newport"),
    Region("Aridane", "dune", "west", "hot", "Aridic", "Reddune"),
    Region("Nordfell", "fell", "north", "icy", "Fellish", "Highfell"),
    Region("Brackwater", "mere", "centre", "foggy", "Merish", "Stillmere"),
)


class Kind(NamedTuple):
    """A kind of animal: the ending of its members' names, its class, home and covering."""

    ending: str
    group: str
    home: str
    cover: str
    young: str


KINDS = (
    Kind("wing", "bird", "in tall trees", "feathers", "chicks"),
    Kind("fin", "fish", "in clear rivers", "scales", "fry"),
    Kind("paw", "mammal", "in deep forests", "soft fur", "cubs"),
    Kind("hoof", "mammal", "on open plains", "short hair", "calves"),
    Kind("crawl", "reptile", "among warm rocks", "dry scales", "hatchlings"),
    Kind("leap", "frog", "near quiet ponds", "wet skin", "tadpoles"),
    Kind("buzz", "insect", "in sunny meadows", "a hard shell", "larvae"),
)


@dataclass(frozen=True)
class Town:
    """A town and what the encyclopaedia says about it."""

    name: str
    region: Region
    river: str
    product: str
    founded: int
    people: int  # thousands


@dataclass(frozen=True)
class Person:
    """A person of note."""

    name: str
    woman: bool
    job: str
    town: Town
    born: int

    @property
    def subject(self) -> str:
        """The pronoun at the start of a sentence."""
        return "She" if self.woman else "He"

    @property
    def possessive(self) -> str:
        """The possessive pronoun."""
        return "her" if self.woman else "his"


@dataclass(frozen=True)
class Animal:
    """An invented animal."""

    name: str
    kind: Kind
    food: str
    weight: int
    colour: str


@dataclass(frozen=True)
class World:
    """All entries, each tuple in order of fame."""

    towns: tuple[Town, ...]
    people: tuple[Person, ...]
    animals: tuple[Animal, ...]


def pick(rng: random.Random, rows: Sequence[T], skew: float = 2.5) -> T:
    """A row drawn with a Zipf-like skew: with ``skew`` s, P(rank < r) is about (r / n) ** (1 / s)."""
    return rows[int(len(rows) * rng.random() ** skew)]


_ONSETS = words("b d f g h k l m n p r s t v w br dr gr kl pl st tr sh fl")
_INNER = words("b d g k l m n r s t v nd rt lm st")
_VOWELS = words("a e i o u")
_CODAS = ("", "", *words("l n r s m t"))
_FIRST = words(
    "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karla Leo Mara Nils Olga Paul Rosa Simon Tilda "
    "Viktor Alma Anton Berta Conrad Dora Emil Frida Georg Hanna Igor Julia Kaspar Lena Max Nora Oskar "
    "Petra Quentin Rita Sven Thea Ulrich Vera Walter Yara Zeno Agnes Bruno Celia Dirk Elsa Frank Gilda "
    "Henrik Irma Jakob"
)


def _stem(rng: random.Random, syllables: int) -> str:
    onsets = [rng.choice(_ONSETS)] + [rng.choice(_INNER) for _ in range(syllables - 1)]
    return "".join(onset + rng.choice(_VOWELS) for onset in onsets) + rng.choice(_CODAS)


def _stems(rng: random.Random, count: int, syllables: tuple[int, ...]) -> list[str]:
    """``count`` different invented word stems."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[_stem(rng, rng.choice(syllables))] = None
    return list(found)


@lru_cache(maxsize=1)
def build_world() -> World:
    """The one world, the same on every machine and in every run."""
    rng = random.Random(WORLD_SEED)
    rivers = [stem.capitalize() for stem in _stems(rng, NUM_RIVERS, (1, 2, 2))]
    towns = []
    for rank, stem in enumerate(_stems(rng, NUM_TOWNS, (1, 2, 2))):
        region = REGIONS[rank % len(REGIONS)] if rank < len(REGIONS) else pick(rng, REGIONS, 1.5)
        towns.append(
            Town(
                name=(stem + region.ending).capitalize(),
                region=region,
                river=pick(rng, rivers, 1.8),
                product=pick(rng, GOODS, 1.5),
                founded=rng.randrange(10, 19) * 100 + rng.choice((0, 10, 20, 50)),
                people=rng.randrange(2, 90),
            )
        )
    people: dict[str, Person] = {}
    surnames = [stem.capitalize() for stem in _stems(rng, NUM_SURNAMES, (2, 2, 3))]
    while len(people) < NUM_PEOPLE:
        number = rng.randrange(len(_FIRST))
        name = f"{_FIRST[number]} {pick(rng, surnames, 1.3)}"
        born = rng.randrange(1500, 1900, 5)
        woman = number % 2 == 0  # the first names alternate
        people.setdefault(name, Person(name, woman, pick(rng, JOBS, 1.5), pick(rng, towns, 1.8), born))
    animals = []
    for stem in _stems(rng, NUM_ANIMALS, (1, 2, 2)):
        kind = pick(rng, KINDS, 1.3)
        colour = rng.choice(("grey", "brown", "golden", "white", "black", "red", "green", "blue"))
        animals.append(Animal(stem + kind.ending, kind, pick(rng, FOODS, 1.4), rng.randrange(1, 60), colour))
    return World(tuple(towns), tuple(people.values()), tuple(animals))
