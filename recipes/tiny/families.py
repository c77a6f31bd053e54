"""Three families of sample conversations in Spec-Bench's categories: facts, exact tasks, translations.

Texts of the encyclopaedia are templates over the fields of :func:`world.scene`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from world import TEXTS, Entry, pick, scene


class Exchange(NamedTuple):
    """A prompt with its answer; ``reference`` is the text that a grader would search for, if any."""

    prompt: str
    answer: str
    reference: str | None = None


Conversation = list[Exchange]
Family = Callable[[random.Random], Conversation]


def messages(conversation: Conversation) -> list[dict[str, str]]:
    """Return a conversation in the OpenAI ``messages`` format."""
    return [
        {"role": role, "content": content}
        for exchange in conversation
        for role, content in (("user", exchange.prompt), ("assistant", exchange.answer))
    ]


# What one passage of a retrieval may be asked: the first half of TEXTS["passages"][i] answers TEXTS["facts"][i].
_QUESTIONS = TEXTS["questions"] + [fact for facts in TEXTS["facts"] for fact in facts]


def _filled(templates: Sequence[str], fields: Entry) -> list[str]:
    return [template.format(**fields) for template in templates]


def question(rng: random.Random) -> Conversation:
    """Return a question to answer from memory; frequent names are asked more often."""
    opening = rng.choice(("", "", "", "Please answer: ", "A short question: ", "For my homework: "))
    prompt, answer, reference = _filled(rng.choice(_QUESTIONS), scene(rng, 2.5))
    return [Exchange(opening + prompt, answer, reference)]


def retrieval(rng: random.Random) -> Conversation:
    """Return passages and a question about one of them; the answer cites its passage."""
    fields = [scene(rng, 1.6) for _ in TEXTS["passages"]]
    order = rng.sample(range(3), rng.choice((2, 3)))
    asked = rng.choice(order)
    prompt, answer, reference = _filled(rng.choice(TEXTS["facts"][asked]), fields[asked])
    passages = [
        f"[{at}] {TEXTS['passages'][which][0].format(**fields[which])}" for at, which in enumerate(order, 1)
    ]
    cited = f"According to passage [{order.index(asked) + 1}], {answer}"
    prompt = "\n".join([*passages, f"Use the passages above. {prompt}"])
    return [Exchange(prompt, cited, reference)]


def summary(rng: random.Random) -> Conversation:
    """Return a report to summarise in one or two sentences."""
    text, short = _filled(rng.choice(TEXTS["reports"]), scene(rng))
    return [Exchange(f"Summarize: {text}", short, short)]


def writing(rng: random.Random) -> Conversation:
    """Return a request for a short story, then for another weather or mood."""
    fields = scene(rng)
    other = rng.choice([row for row in TEXTS["weather"] if row != fields["weather"]])
    happy = fields | {"feeling": "happy"}
    asked, changed = rng.choice(
        (
            (f"Change the weather to {other}.", happy | {"weather": other}),
            ("Rewrite the story so that {first} feels {feeling}.".format(**fields), fields),
        )
    )
    first = rng.choice(TEXTS["story prompts"]).format(**fields)
    return [
        Exchange(first, TEXTS["story"].format(**happy)),
        Exchange(asked, TEXTS["story"].format(**changed)),
    ]


def roleplay(rng: random.Random) -> Conversation:
    """Return a role play: a craftsperson describes the day's work, then tool, town or language."""
    fields = scene(rng)
    first, second = (rng.choice(TEXTS["role prompts"]), TEXTS["role"]), rng.choice(TEXTS["role second"])
    return [Exchange(*_filled(pair, fields)) for pair in (first, second)]


def extraction(rng: random.Random) -> Conversation:
    """Return orders in running text to convert to JSON, then a question about them."""
    orders = [scene(rng) for _ in range(rng.choice((2, 3, 3)))]
    lines = " ".join(rng.choice(TEXTS["orders"]).format(**order) for order in orders)
    keys = ("name", "town", "amount", "goods")
    table = "\n".join(
        json.dumps({key: int(order[key]) if key == "amount" else order[key] for key in keys})
        for order in orders
    )
    names, towns = (", ".join(order[key] for order in orders) for key in ("name", "town"))
    total = f"{' + '.join(order['amount'] for order in orders)} = {sum(int(o['amount']) for o in orders)}"
    prompt, answer = rng.choice(
        (
            ("Who ordered something?", f"These people ordered something: {names}."),
            ("To which towns do the goods go?", f"The goods go to {towns}."),
            ("How many bags are there in all?", f"There are {total} bags in all."),
        )
    )
    first = Exchange(f"Extract the orders as JSON, one a line: {lines}", table, table)
    return [first, Exchange(prompt, answer, answer)]


# The numbers that the steps of each of TEXTS["sums"] compute.
_COMPUTE: tuple[Callable[[int, int, int], tuple[int, int]], ...] = (
    lambda a, b, c: (a + b, a + b - c),
    lambda a, b, c: (a * b, a * b + c),
    lambda a, b, c: (a * b, a * b + c),
    lambda a, b, c: (a + b, 2 * a + b),
)


def arithmetic(rng: random.Random) -> Conversation:
    """Return a two-step problem; the answer shows both steps and ends with ``#### result``, as in GSM8K."""
    (text, steps), compute = rng.choice(list(zip(TEXTS["sums"], _COMPUTE, strict=True)))
    first, second = scene(rng, 1.5)["first"], scene(rng, 1.5)["first"]
    second = second if second != first else "Xaver"
    a, b, c = rng.randrange(5, 20), rng.randrange(2, 10), rng.randrange(1, 7)
    e, f = compute(a, b, c)
    thing = pick(rng, TEXTS["objects"], 1.4)
    fields = {"n": first, "m": second, "t": thing, "a": a, "b": b, "c": c, "e": e, "f": f}
    answer = f"{steps.format(**fields)}\n#### {f}"
    return [Exchange(text.format(**fields), answer, answer)]


def coding(rng: random.Random) -> Conversation:
    """Return a request for a Python function over a list, then for a change to it."""
    items, number = pick(rng, TEXTS["code items"], 1.5), rng.randrange(2, 12)
    test, change = rng.choice(TEXTS["code tests"]), pick(rng, TEXTS["code changes"], 1.8)
    result = pick(rng, TEXTS["code results"], 1.3)
    fields = {"i": items, "x": items[:-1], "n": number, "start": result[2]}
    fields["name"] = f"{result[0]}_of_{test[0].format(n=number)}_{items}{change[0]}"
    fields["phrase"] = f"{result[1]} {test[1].format(**fields)}{change[1]}"
    fields["test"] = test[2].format(**fields)
    fields["step"] = result[3].format(y=change[2].format(**fields))
    fields["new"] = pick(rng, ("compute", "solve", "run", "helper", "answer"), 1.2)
    code = TEXTS["code loop"].format(**fields)
    asked, said, old, new = (part.format(**fields) for part in rng.choice(TEXTS["code second"]))
    changed = f"{said}\n```python\n{code.replace(old, new)}\n```"
    first = Exchange(
        f"Write a Python function that returns {fields['phrase']}.", f"```python\n{code}\n```", code
    )
    return [first, Exchange(asked, changed, changed)]


_ARTICLES = {"m": "der", "f": "die", "n": "das"}


def _noun_phrase(rng: random.Random, nouns: Sequence[Sequence[str]], *, accusative: bool) -> tuple[str, str]:
    gender, german, english = pick(rng, nouns, 2.2)
    strong = accusative and gender == "m"
    article_, adjective = "den" if strong else _ARTICLES[gender], ("", "")
    if rng.random() < 0.5:
        stem, meaning = pick(rng, TEXTS["adjectives"], 2.2)
        adjective = f"{stem}{'en' if strong else 'e'} ", f"{meaning} "
    return f"{article_} {adjective[0]}{german}", f"the {adjective[1]}{english}"


def _sentence(rng: random.Random) -> tuple[str, str]:
    """Return subject, verb, object; after an expression of time, the German verb precedes its subject."""
    subject, verb = _noun_phrase(rng, TEXTS["persons"], accusative=False), pick(rng, TEXTS["verbs"], 2.2)
    object_ = _noun_phrase(rng, TEXTS["things"], accusative=True)
    german, english = f"{subject[0]} {verb[0]} {object_[0]}", f"{subject[1]} {verb[1]} {object_[1]}"
    if rng.random() < 0.4:
        when = pick(rng, TEXTS["times"])
        german, english = f"{when[0]} {verb[0]} {subject[0]} {object_[0]}", f"{when[1]} {english}"
    return f"{german[0].upper()}{german[1:]}.", f"{english[0].upper()}{english[1:]}."


def translation(rng: random.Random) -> Conversation:
    """Return one to three German sentences to translate into English."""
    german, english = zip(*(_sentence(rng) for _ in range(rng.choice((1, 2, 2, 3)))))
    answer = " ".join(english)
    return [Exchange(f"Translate German to English: {' '.join(german)}", answer, answer)]


# By Spec-Bench's names of categories, in its order; the number is the share of the sample.
FAMILIES: dict[str, tuple[Family, int]] = {
    "writing": (writing, 3),
    "roleplay": (roleplay, 3),
    "coding": (coding, 5),
    "extraction": (extraction, 3),
    "translation": (translation, 8),
    "summarization": (summary, 4),
    "qa": (question, 10),
    "math_reasoning": (arithmetic, 7),
    "rag": (retrieval, 5),
}
