"""Conversations of two turns: writing, roleplay and extraction."""

from __future__ import annotations

import json
import random

from .sample_types import Conversation, Exchange, article, capital, listing
from .sample_words import COLOURS, FEELINGS, GOODS, JOBS, TOOL_ROWS, WEATHER
from .sample_world import build_world, pick


def writing(rng: random.Random) -> Conversation:
    """A short story to order, then its rewriting in another colour, weather or ending."""
    world = build_world()
    person, town, animal = (
        pick(rng, world.people, 2.0),
        pick(rng, world.towns, 2.0),
        pick(rng, world.animals, 2.0),
    )
    name, pronoun, weather = person.name.split()[0], person.subject, pick(rng, WEATHER, 1.3)
    feeling = pick(rng, FEELINGS, 1.3)

    where, *_, place = animal.kind.home.split()

    def story(sky: str, mood: str) -> str:
        return (
            f"It was a {sky} morning in {town.name}. {name} walked along the river {town.river} and felt "
            f"{mood}. Suddenly {name} saw a small {animal.name} {where} the {place}. "
            f"The {animal.name} was hungry, so {name} gave it some {animal.food}. From that day on, the "
            f"{animal.name} followed {name} everywhere. {pronoun} was never lonely again."
        )

    job = article(person.job)
    prompts = (
        f"Write a short story about {name} and {article(animal.name)} in {town.name} on a {weather} day.",
        f"Tell a story set in {town.name}. {name} meets {article(animal.name)}. The weather is {weather}.",
        f"Compose a story in which {name}, {job}, finds {article(animal.name)} near {town.name} "
        f"on a {weather} day.",
    )
    other = rng.choice([row for row in WEATHER if row != weather])
    mood = rng.choice([row for row in FEELINGS if row != feeling])
    follow_ups = (
        (f"Change the weather to {other}.", story(other, "happy")),
        (f"Rewrite the story so that {name} feels {mood}.", story(weather, mood)),
    )
    second = Exchange(*rng.choice(follow_ups))
    return Conversation("writing", (Exchange(rng.choice(prompts), story(weather, "happy")), second))


def roleplay(rng: random.Random) -> Conversation:
    """Somebody with a trade speaks about the day's work, then about the tool."""
    number = JOBS.index(pick(rng, JOBS, 1.6))
    job, (tool, material, purpose) = JOBS[number], TOOL_ROWS[number]
    town, person = pick(rng, build_world().towns, 2.0), pick(rng, build_world().people, 2.0)
    name = person.name.split()[0]
    prompt = rng.choice(
        (
            f"Pretend to be {name}, {article(job)} from {town.name}. What do you do all day?",
            f"You are {name} and you work as {article(job)} in {town.name}. Tell me about your work.",
            f"Speak like {article(job)} called {name} who lives in {town.name}. How do you spend your day?",
        )
    )
    answer = (
        f"Good day! My name is {name} and I am {article(job)} here in {town.name}. Every morning I take "
        f"my {tool}, which {purpose}. In the afternoon I sell my work on the market, and in the evening "
        f"I sit by the river {town.river} and rest."
    )
    second = rng.choice(
        (
            (
                "What is your most important tool?",
                f"That is my {tool}. It is made of {material}, and it {purpose}.",
            ),
            (
                "What is your town famous for?",
                f"{town.name} is famous for its {town.product}. "
                f"Visitors come from all over {town.region.name}.",
            ),
            (
                "Which language do you speak?",
                f"Like everyone in {town.region.name}, I speak {town.region.language}.",
            ),
            (
                f"Can you teach me to be {article(job)}?",
                f"Of course! First you learn to hold the {tool}. It {purpose}. "
                f"After a year you will be a good {job}.",
            ),
        )
    )
    return Conversation("roleplay", (Exchange(prompt, answer), Exchange(*second)))


def extraction(rng: random.Random) -> Conversation:
    """Orders in running text to be turned into JSON, then one field of them as a list."""
    world = build_world()
    rows, lines = [], []
    for _ in range(rng.choice((2, 3, 3))):
        person, town = pick(rng, world.people, 2.0), pick(rng, world.towns, 2.0)
        amount, goods, colour = rng.randrange(2, 40), pick(rng, GOODS, 1.3), pick(rng, COLOURS, 1.2)
        form = rng.choice(
            (
                "{n} from {t} ordered {a} bags of {c} {g}.",
                "{a} bags of {c} {g} go to {n} in {t}.",
                "We sent {n} of {t} {a} bags of {c} {g}.",
            )
        )
        lines.append(form.format(n=person.name, t=town.name, a=amount, c=colour, g=goods))
        rows.append({"name": person.name, "town": town.name, "amount": amount, "goods": f"{colour} {goods}"})
    table = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    first = Exchange("Extract the orders as JSON, one a line: " + " ".join(lines), table, table)
    names = listing(str(row["name"]) for row in rows)
    towns = listing(str(row["town"]) for row in rows)
    total = sum(int(str(row["amount"])) for row in rows)
    numbers = " + ".join(str(row["amount"]) for row in rows)
    second = rng.choice(
        (
            ("Who ordered something?", f"{names} ordered something."),
            ("To which towns do the goods go?", f"The goods go to {towns}."),
            ("How many bags are there in all?", f"There are {numbers} = {total} bags in all."),
            ("What was ordered?", f"{capital(listing(str(row['goods']) for row in rows))} were ordered."),
        )
    )
    return Conversation("extraction", (first, Exchange(*second, second[1])))
