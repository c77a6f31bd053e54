"""A small fictional encyclopaedia, the source of the sample texts.

The world is fixed and does not depend on the sample's seed. Parts of names are regular: the end of a town's
name gives its region, the end of an animal's name its kind. Other facts (rivers, jobs, years) must be
memorised or looked up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Entry = dict[str, str]

WORLD_SEED = "vocabforge-world-2"
NUM_TOWNS, NUM_PEOPLE, NUM_ANIMALS, NUM_RIVERS, NUM_SURNAMES = 900, 900, 500, 160, 700


def words(text: str) -> tuple[str, ...]:
    """Split a text into its words."""
    return tuple(text.split())


def _table(keys: str, rows: str) -> tuple[Entry, ...]:
    """Parse ``a=b=c; ...`` into records with these keys."""
    return tuple(
        dict(zip(keys.split(), map(str.strip, row.split("=")), strict=True)) for row in rows.split(";")
    )


REGIONS = _table(
    "region ending direction climate language capital",
    "Moravel=mora=north=cold=Velish=Karmora; Hestria=stead=east=dry=Hestrian=Oldstead; "
    "Lunaria=luna=south=warm=Lunic=Belluna; Tarvenia=ven=west=rainy=Tarvic=Goldven; "
    "Ostmark=berg=east=windy=Ostish=Hochberg; Silvania=wald=centre=mild=Silvan=Grunwald; "
    "Pelagia=port=south=humid=Pelagic=Newport; Aridane=dune=west=hot=Aridic=Reddune; "
    "Nordfell=fell=north=icy=Fellish=Highfell; Brackwater=mere=centre=foggy=Merish=Stillmere",
)
KINDS = _table(
    "ending group home cover young",
    "wing=bird=in tall trees=feathers=chicks; fin=fish=in clear rivers=scales=fry; "
    "paw=mammal=in deep forests=soft fur=cubs; hoof=mammal=on open plains=short hair=calves; "
    "crawl=reptile=among warm rocks=dry scales=hatchlings; leap=frog=near quiet ponds=wet skin=tadpoles; "
    "buzz=insect=in sunny meadows=a hard shell=larvae",
)
JOBS = _table(
    "job tool material purpose",
    "baker=oven=brick=bakes the bread; smith=hammer=iron=shapes the hot metal; weaver=loom=oak=crosses the threads; "
    "fisher=net=hemp=holds the catch; carpenter=plane=beech=smooths the boards; potter=wheel=stone=turns the wet clay; "
    "miller=millstone=granite=grinds the grain; painter=brush=bristle=spreads the colour; "
    "tailor=needle=steel=joins the cloth; mason=trowel=steel=lays the mortar; glazier=cutter=diamond=scores the pane; "
    "cooper=adze=iron=hollows the staves; shepherd=crook=hazel=guides the sheep; beekeeper=smoker=tin=calms the bees; "
    "gardener=spade=ash=turns the soil; printer=press=iron=prints the page; clockmaker=file=steel=fits the gears; "
    "cobbler=last=maple=shapes the shoe; tanner=scraper=horn=cleans the hide; brewer=kettle=copper=boils the wort; "
    "saddler=awl=steel=pierces the leather; surveyor=chain=brass=measures the land; "
    "apothecary=mortar=marble=grinds the herbs; roofer=ladder=spruce=reaches the roof",
)
FOODS = words(
    "apples bread plums cheese walnuts honey beans pears barley carrots mushrooms berries olives oats figs"
)
GOODS = words(
    "glass wool salt copper timber paper silk amber tea iron pottery leather wine marble pearls rope"
)
COLOURS = words("red blue green white black yellow grey brown golden silver")
OBJECTS = words(
    "apples books coins stamps pencils eggs marbles cakes tickets bottles cards boxes shells flowers buttons nails "
    "candles pears plates ribbons bricks oranges lamps baskets"
)
FEELINGS = words("tired proud curious worried calm excited lonely hopeful hungry cheerful")
WEATHER = words("sunny rainy windy foggy snowy stormy cloudy frosty warm misty")
FESTIVALS = words("harvest river lantern winter music bread spring book kite summer")
_ONSETS = words("b d f g h k l m n p r s t v w br dr gr kl pl st tr sh fl")
_INNER = words("b d g k l m n r s t v nd rt lm st")
_VOWELS = words("a e i o u")
_CODAS = ("", "", *words("l n r s m t"))
# Women's and men's names alternate.
_FIRST = words(
    "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas Karla Leo Mara Nils Olga Paul Rosa Simon Tilda Viktor Alma "
    "Anton Berta Conrad Dora Emil Frida Georg Hanna Igor Julia Kaspar Lena Max Nora Oskar Petra Quentin Rita Sven Thea "
    "Ulrich Vera Walter Yara Zeno Agnes Bruno Celia Dirk Elsa Frank Gilda Henrik Irma Jakob"
)


def pick(rng: random.Random, rows: Sequence[T], skew: float = 2.0) -> T:
    """Draw a row with a Zipf-like skew: with ``skew`` s, P(rank < r) is about (r / n) ** (1 / s)."""
    return rows[int(len(rows) * rng.random() ** skew)]


def article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


def _stems(rng: random.Random, count: int, syllables: tuple[int, ...]) -> list[str]:
    """Return ``count`` different fictional word stems."""
    found: dict[str, None] = {}
    while len(found) < count:
        onsets = [rng.choice(_ONSETS)] + [rng.choice(_INNER) for _ in range(rng.choice(syllables) - 1)]
        found["".join(onset + rng.choice(_VOWELS) for onset in onsets) + rng.choice(_CODAS)] = None
    return list(found)


@lru_cache(maxsize=1)
def build_world() -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Return people (each with the facts of a trade and a home town) and animals, most famous first."""
    rng = random.Random(WORLD_SEED)
    rivers = [stem.capitalize() for stem in _stems(rng, NUM_RIVERS, (1, 2, 2))]
    towns = []
    for stem in _stems(rng, NUM_TOWNS, (1, 2, 2)):
        region = pick(rng, REGIONS, 1.5)
        towns.append(
            {
                **region,
                "town": (stem + region["ending"]).capitalize(),
                "river": pick(rng, rivers),
                "product": pick(rng, GOODS, 1.5),
                "founded": str(rng.randrange(10, 19) * 100 + rng.choice((0, 10, 20, 50))),
                "inhabitants": str(rng.randrange(2, 90)),
            }
        )
    people: dict[str, Entry] = {}
    surnames = [stem.capitalize() for stem in _stems(rng, NUM_SURNAMES, (2, 2, 3))]
    while len(people) < NUM_PEOPLE:
        number = rng.randrange(len(_FIRST))
        name = f"{_FIRST[number]} {pick(rng, surnames, 1.3)}"
        trade = pick(rng, JOBS, 1.5)
        people.setdefault(
            name,
            {
                **pick(rng, towns, 1.3),
                **trade,
                "name": name,
                "first": _FIRST[number],
                "she": ("she", "he")[number % 2],
                "She": ("She", "He")[number % 2],
                "her": ("her", "his")[number % 2],
                "a_job": article(trade["job"]),
                "born": str(rng.randrange(1500, 1900, 5)),
            },
        )
    animals = []
    for stem in _stems(rng, NUM_ANIMALS, (1, 2, 2)):
        kind = pick(rng, KINDS, 1.3)
        name = stem + kind["ending"]
        facts = {"animal": name, "an_animal": article(name), "a_group": article(kind["group"])}
        own = {
            "food": pick(rng, FOODS, 1.4),
            "weight": str(rng.randrange(1, 60)),
            "colour": rng.choice(COLOURS),
        }
        animals.append({**kind, **facts, **own})
    return tuple(people.values()), tuple(animals)


def scene(rng: random.Random, skew: float = 2.0) -> Entry:
    """Return template fields: a person with trade and town, an animal, and varying details."""
    people, animals = build_world()
    return {
        **pick(rng, animals, skew),
        **pick(rng, people, skew),
        "weather": pick(rng, WEATHER, 1.3),
        "feeling": pick(rng, FEELINGS, 1.3),
        "festival": rng.choice(FESTIVALS),
        "visitors": str(rng.randrange(2, 60) * 100),
        "price": str(rng.randrange(2, 20)),
        "days": str(rng.randrange(3, 30)),
        "amount": str(rng.randrange(2, 40)),
        "goods": f"{pick(rng, COLOURS, 1.2)} {pick(rng, GOODS, 1.3)}",
    }
