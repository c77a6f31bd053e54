"""Questions on the invented encyclopaedia: from memory (qa), from given passages (rag), and summaries."""

from __future__ import annotations

import random

from .sample_types import Conversation, Exchange, article, capital, listing
from .sample_world import Animal, Person, Town, build_world, pick


def town_text(town: Town) -> list[str]:
    """What the encyclopaedia says about a town, one fact a sentence."""
    region = town.region
    return [
        f"{town.name} is a town in {region.name}, in the {region.direction} of the country.",
        f"It lies on the river {town.river} and was founded in {town.founded}.",
        f"About {town.people} thousand people live there, and most of them speak {region.language}.",
        f"The climate is {region.climate}.",
        f"{town.name} is known for its {town.product}.",
    ]


def person_text(person: Person) -> list[str]:
    """What the encyclopaedia says about a person."""
    return [
        f"{person.name} was {article(person.job)} from {person.town.name}.",
        f"{person.subject} was born in {person.born} and learnt the trade of the {person.job} early.",
        f"{person.subject} spent most of {person.possessive} life in {person.town.region.name}.",
        f"{person.subject} spoke {person.town.region.language} and sold {person.possessive} work at fairs.",
    ]


def animal_text(animal: Animal) -> list[str]:
    """What the encyclopaedia says about an animal."""
    kind = animal.kind
    return [
        f"The {animal.name} is a {animal.colour} {kind.group} that lives {kind.home}.",
        f"It eats {animal.food} and weighs about {animal.weight} kilograms.",
        f"Its body is covered with {kind.cover}, and its young are called {kind.young}.",
    ]


def _about_town(rng: random.Random) -> tuple[str, str, str]:
    town = pick(rng, build_world().towns)
    region, tongue, climate = town.region, town.region.language, town.region.climate
    rows = (
        ("Where is {} situated?", f"{town.name} is situated in {region.name}, in the {region.direction}.",
         region.name),
        ("Which language do people speak in {}?", f"People in {town.name} speak {tongue}.", tongue),
        ("What is the climate like in {}?", f"The climate in {town.name} is {climate}.", climate),
        ("What is {} known for?", f"{town.name} is known for its {town.product}.", town.product),
        ("On which river does {} lie?", f"{town.name} lies on the river {town.river}.", town.river),
        ("What is the capital of the region around {}?", f"{town.name} is in {region.name}. The capital of "
         f"{region.name} is {region.capital}.", region.capital),
        ("Tell me about the town of {}.", " ".join(town_text(town)), region.name),
    )  # fmt: skip
    question, answer, reference = rng.choice(rows)
    return question.format(town.name), answer, reference


def _about_animal(rng: random.Random) -> tuple[str, str, str]:
    animal = pick(rng, build_world().animals)
    kind, name = animal.kind, animal.name
    rows = (
        ("Where does the {} live?", f"The {name} is {article(kind.group)}. It lives {kind.home}.", kind.home),
        ("What does the {} eat?", f"The {name} eats {animal.food}.", animal.food),
        ("What kind of animal is the {}?", f"The {name} is {article(kind.group)}.", kind.group),
        (
            "What are the young of the {} called?",
            f"The young of the {name} are called {kind.young}.",
            kind.young,
        ),
        (
            "What covers the body of the {}?",
            f"The body of the {name} is covered with {kind.cover}.",
            kind.cover,
        ),
        ("Describe the {}.", " ".join(animal_text(animal)), kind.group),
    )
    question, answer, reference = rng.choice(rows)
    return question.format(name), answer, reference


def _about_person(rng: random.Random) -> tuple[str, str, str]:
    person = pick(rng, build_world().people)
    name, town = person.name, person.town
    rows = (
        ("Who was {}?", f"{name} was {article(person.job)} from {town.name}.", person.job),
        ("What did {} do for a living?", f"{name} worked as {article(person.job)}.", person.job),
        ("Where was {} born?", f"{name} was born in {town.name}, {town.region.name}.", town.name),
        ("Tell me about the life of {}.", " ".join(person_text(person)), person.job),
    )
    question, answer, reference = rng.choice(rows)
    return question.format(name), answer, reference


_OPENINGS = (
    "",
    "",
    "",
    "Please answer: ",
    "A short question: ",
    "I would like to know: ",
    "For my homework: ",
)


def question(rng: random.Random) -> Conversation:
    """A factual question to be answered from memory; frequent names are asked often."""
    prompt, answer, reference = rng.choice((_about_town, _about_animal, _about_person))(rng)
    opening = rng.choice(_OPENINGS) if prompt.endswith("?") else ""
    return Conversation("qa", (Exchange(opening + prompt, answer, reference),))


def retrieval(rng: random.Random) -> Conversation:
    """Passages, then a question that one of them answers; the answer cites its passage."""
    world = build_world()
    person, town = pick(rng, world.people, 1.6), pick(rng, world.towns, 1.6)
    animal = pick(rng, world.animals, 1.6)
    facts = (
        (f"In which year was {person.name} born?", f"{person.name} was born in {person.born}.",
         str(person.born)),
        (f"What was the job of {person.name}?", f"{person.name} was {article(person.job)}.", person.job),
        (f"When was {town.name} founded?", f"{town.name} was founded in {town.founded}.", str(town.founded)),
        (f"Which river flows through {town.name}?", f"The river {town.river} flows through {town.name}.",
         town.river),
        (f"How heavy is the {animal.name}?", f"The {animal.name} weighs about {animal.weight} kilograms.",
         str(animal.weight)),
        (f"What is the food of the {animal.name}?", f"The {animal.name} eats {animal.food}.", animal.food),
    )  # fmt: skip
    number = rng.randrange(6)
    texts = [
        " ".join(person_text(person)[:2]),
        " ".join(town_text(town)[:2]),
        " ".join(animal_text(animal)[:2]),
    ]
    order = rng.sample(range(3), rng.choice((2, 3)))
    if number // 2 not in order:
        order[0] = number // 2
    passages = "\n".join(f"[{at}] {texts[which]}" for at, which in enumerate(order, 1))
    asked, answer, reference = facts[number]
    prompt = f"{passages}\nUse the passages above. {asked}"
    cited = f"According to passage [{order.index(number // 2) + 1}], {answer}"
    return Conversation("rag", (Exchange(prompt, cited, reference),))


_FESTIVALS = ("harvest", "river", "lantern", "winter", "music", "bread", "spring", "book", "kite", "summer")


def _festival(rng: random.Random) -> tuple[list[str], str]:
    world = build_world()
    town, guest = pick(rng, world.towns, 2.0), pick(rng, world.people, 2.0)
    name, count, weather = (
        rng.choice(_FESTIVALS),
        rng.randrange(2, 60) * 100,
        rng.choice(("sunny", "rainy", "windy")),
    )
    price = rng.randrange(2, 20)
    text = [
        f"The {name} festival took place in {town.name} on Saturday.",
        f"The day was {weather}, but the streets were full from early morning.",
        f"About {count} visitors came, many of them from other parts of {town.region.name}.",
        f"On the market square, traders sold {town.product} and food, and a ticket cost {price} coins.",
        f"The guest of honour was {guest.name}, who had worked as {article(guest.job)} for many years.",
        f"{guest.subject} thanked the people of {town.name} and opened the dance.",
    ]
    short = (
        f"About {count} visitors came to the {name} festival in {town.name}. "
        f"{guest.name}, {article(guest.job)}, was the guest of honour."
    )
    return text, short


def _entry(rng: random.Random) -> tuple[list[str], str]:
    world = build_world()
    if rng.random() < 0.5:
        town = pick(rng, world.towns, 2.0)
        short = (
            f"{town.name} is a town in {town.region.name} on the river {town.river}, "
            f"known for its {town.product}."
        )
        return town_text(town), short
    person = pick(rng, world.people, 2.0)
    extra = f"The people of {person.town.name} still tell stories about {person.name}."
    short = f"{person.name}, born in {person.born}, was {article(person.job)} from {person.town.name}."
    return [*person_text(person), extra], short


def _expedition(rng: random.Random) -> tuple[list[str], str]:
    world = build_world()
    leader, animals = pick(rng, world.people, 2.0), [pick(rng, world.animals, 2.0) for _ in range(2)]
    place, days, members = pick(rng, world.towns, 2.0), rng.randrange(3, 30), rng.randrange(3, 20)
    names = listing(f"the {animal.name}" for animal in animals)
    text = [
        f"A group of {members} people has come back from a journey to {place.region.name}.",
        f"They were led by {leader.name} and travelled for {days} days.",
        f"The group started in {place.name} and followed the river {place.river}.",
        *(
            f"On the way they saw the {a.name}, a {a.colour} {a.kind.group} that eats {a.food}."
            for a in animals
        ),
        "The members kept a diary and drew maps every evening.",
    ]
    short = (
        f"{leader.name} led {members} people through {place.region.name} for {days} days. "
        f"{capital(names)} were seen."
    )
    return text, short


def summary(rng: random.Random) -> Conversation:
    """A report to be summed up in one or two sentences."""
    text, short = rng.choice((_festival, _entry, _expedition))(rng)
    return Conversation("summarization", (Exchange("Summarize: " + " ".join(text), short, short),))
