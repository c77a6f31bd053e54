"""Three families of sample conversations in Spec-Bench's categories: facts, exact tasks, translations.

Texts of the encyclopaedia are templates over the fields of :func:`world.scene`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from world import OBJECTS, WEATHER, Entry, pick, scene, words


@dataclass(frozen=True)
class Exchange:
    """A prompt with its answer; ``reference`` is the text that a grader would search for, if any."""

    prompt: str
    answer: str
    reference: str | None = None


@dataclass(frozen=True)
class SampleConversation:
    """One or more exchanges; ``category`` is Spec-Bench's name."""

    category: str
    exchanges: tuple[Exchange, ...]

    def messages(self) -> list[dict[str, str]]:
        """Return the conversation in the OpenAI ``messages`` format."""
        return [
            {"role": role, "content": content}
            for exchange in self.exchanges
            for role, content in (("user", exchange.prompt), ("assistant", exchange.answer))
        ]


Family = Callable[[random.Random], SampleConversation]

# Encyclopaedia: (question, answer, reference). The first half of PASSAGES[i] answers FACTS[i].
_TOWN = (
    "{town} is a town in {region}, in the {direction} of the country. It lies on the river {river} and was founded in "
    "{founded}.",
    " About {inhabitants} thousand people live there, and most of them speak {language}. The climate is {climate}. "
    "{town} is known for its {product}.",
)
_PERSON = (
    "{name} was {a_job} from {town}. {She} was born in {born} and learnt the trade of the {job} early.",
    " {She} spent most of {her} life in {region}, spoke {language} and sold {her} work at fairs.",
)
_ANIMAL = (
    "The {animal} is a {colour} {group} that lives {home}. It eats {food} and weighs about {weight} kilograms.",
    " Its body is covered with {cover}, and its young are called {young}.",
)
_PASSAGES = (_PERSON, _TOWN, _ANIMAL)
_FACTS = (
    (
        ("In which year was {name} born?", "{name} was born in {born}.", "{born}"),
        ("What was the job of {name}?", "{name} was {a_job}.", "{job}"),
    ),
    (
        ("When was {town} founded?", "{town} was founded in {founded}.", "{founded}"),
        ("Which river flows through {town}?", "The river {river} flows through {town}.", "{river}"),
    ),
    (
        ("How heavy is the {animal}?", "The {animal} weighs about {weight} kilograms.", "{weight}"),
        ("What is the food of the {animal}?", "The {animal} eats {food}.", "{food}"),
    ),
)
_QUESTIONS = (
    ("Where is {town} situated?", "{town} is situated in {region}, in the {direction}.", "{region}"),
    ("Which language do people speak in {town}?", "People in {town} speak {language}.", "{language}"),
    ("What is the climate like in {town}?", "The climate in {town} is {climate}.", "{climate}"),
    ("What is {town} known for?", "{town} is known for its {product}.", "{product}"),
    ("What is the capital of the region around {town}?", "{town} is in {region}. The capital of {region} is {capital}.",
     "{capital}"),
    ("Tell me about the town of {town}.", "".join(_TOWN), "{region}"),
    ("Where does the {animal} live?", "The {animal} is {a_group}. It lives {home}.", "{home}"),
    ("What kind of animal is the {animal}?", "The {animal} is {a_group}.", "{group}"),
    ("What are the young of the {animal} called?", "The young of the {animal} are called {young}.", "{young}"),
    ("What covers the body of the {animal}?", "The body of the {animal} is covered with {cover}.", "{cover}"),
    ("Describe the {animal}.", "".join(_ANIMAL), "{group}"),
    ("Who was {name}?", "{name} was {a_job} from {town}.", "{job}"),
    ("Where was {name} born?", "{name} was born in {town}, {region}.", "{town}"),
    ("Tell me about the life of {name}.", "".join(_PERSON), "{job}"),
    *(fact for facts in _FACTS for fact in facts),
)  # fmt: skip
_REPORTS = (
    ("".join(_TOWN), "{town} is a town in {region} on the river {river}, known for its {product}."),
    ("".join(_PERSON) + " The people of {town} still tell stories about {name}.",
     "{name}, born in {born}, was {a_job} from {town}."),
    ("The {festival} festival took place in {town} on Saturday. The day was {weather}, but the streets were full from "
     "early morning. About {visitors} visitors came, many of them from other parts of {region}. On the market square, "
     "traders sold {product} and food, and a ticket cost {price} coins. The guest of honour was {name}, who had worked "
     "as {a_job} for many years. {She} thanked the people of {town} and opened the dance.",
     "About {visitors} visitors came to the {festival} festival in {town}. {name}, {a_job}, was the guest of honour."),
    ("A group of {amount} people has come back from a journey to {region}. They were led by {name} and travelled for "
     "{days} days. The group started in {town} and followed the river {river}. On the way they saw the {animal}, a "
     "{colour} {group} that eats {food}. The members kept a diary and drew maps every evening.",
     "{name} led {amount} people through {region} for {days} days. The {animal} was seen."),
)  # fmt: skip
_STORY = (
    "It was a {weather} morning in {town}. {first} walked along the river {river} and felt {feeling}. Suddenly {first} "
    "saw a small {animal}. The {animal} was hungry, so {first} gave it some {food}. From that day on, the {animal} "
    "followed {first} everywhere. {She} was never lonely again."
)
_STORY_PROMPTS = (
    "Write a short story about {first} and {an_animal} in {town} on a {weather} day.",
    "Tell a story set in {town}. {first} meets {an_animal}. The weather is {weather}.",
    "Compose a story in which {first}, {a_job}, finds {an_animal} near {town} on a {weather} day.",
)
_ROLE_PROMPTS = (
    "Pretend to be {first}, {a_job} from {town}. What do you do all day?",
    "You are {first} and you work as {a_job} in {town}. Tell me about your work.",
    "Speak like {a_job} called {first} who lives in {town}. How do you spend your day?",
)
_ROLE = (
    "Good day! My name is {first} and I am {a_job} here in {town}. Every morning I take my {tool}, which {purpose}. In "
    "the afternoon I sell my work on the market, and in the evening I sit by the river {river} and rest."
)
_ROLE_SECOND = (
    ("What is your most important tool?", "That is my {tool}. It is made of {material}, and it {purpose}."),
    (
        "What is your town famous for?",
        "{town} is famous for its {product}. Visitors come from all over {region}.",
    ),
    ("Which language do you speak?", "Like everyone in {region}, I speak {language}."),
)
_ORDERS = (
    "{name} from {town} ordered {amount} bags of {goods}.",
    "{amount} bags of {goods} go to {name} in {town}.",
    "We sent {name} of {town} {amount} bags of {goods}.",
)


def _filled(templates: tuple[str, ...], fields: Entry) -> list[str]:
    return [template.format(**fields) for template in templates]


def question(rng: random.Random) -> SampleConversation:
    """Return a question to answer from memory; frequent names are asked more often."""
    opening = rng.choice(("", "", "", "Please answer: ", "A short question: ", "For my homework: "))
    prompt, answer, reference = _filled(rng.choice(_QUESTIONS), scene(rng, 2.5))
    return SampleConversation("qa", (Exchange(opening + prompt, answer, reference),))


def retrieval(rng: random.Random) -> SampleConversation:
    """Return passages and a question about one of them; the answer cites its passage."""
    fields = [scene(rng, 1.6) for _ in _PASSAGES]
    order = rng.sample(range(3), rng.choice((2, 3)))
    asked = rng.choice(order)
    prompt, answer, reference = _filled(rng.choice(_FACTS[asked]), fields[asked])
    passages = [f"[{at}] {_PASSAGES[which][0].format(**fields[which])}" for at, which in enumerate(order, 1)]
    cited = f"According to passage [{order.index(asked) + 1}], {answer}"
    prompt = "\n".join([*passages, f"Use the passages above. {prompt}"])
    return SampleConversation("rag", (Exchange(prompt, cited, reference),))


def summary(rng: random.Random) -> SampleConversation:
    """Return a report to summarise in one or two sentences."""
    text, short = _filled(rng.choice(_REPORTS), scene(rng))
    return SampleConversation("summarization", (Exchange(f"Summarize: {text}", short, short),))


def writing(rng: random.Random) -> SampleConversation:
    """Return a request for a short story, then for another weather or mood."""
    fields = scene(rng)
    other = rng.choice([row for row in WEATHER if row != fields["weather"]])
    first = _STORY.format(**fields | {"feeling": "happy"})
    second = rng.choice(
        (
            Exchange(
                f"Change the weather to {other}.",
                _STORY.format(**fields | {"weather": other, "feeling": "happy"}),
            ),
            Exchange(
                "Rewrite the story so that {first} feels {feeling}.".format(**fields), _STORY.format(**fields)
            ),
        )
    )
    return SampleConversation(
        "writing", (Exchange(rng.choice(_STORY_PROMPTS).format(**fields), first), second)
    )


def roleplay(rng: random.Random) -> SampleConversation:
    """Return a role play: a craftsperson describes the day's work, then tool, town or language."""
    fields = scene(rng)
    first, second = (rng.choice(_ROLE_PROMPTS), _ROLE), rng.choice(_ROLE_SECOND)
    return SampleConversation("roleplay", tuple(Exchange(*_filled(pair, fields)) for pair in (first, second)))


def extraction(rng: random.Random) -> SampleConversation:
    """Return orders in running text to convert to JSON, then a question about them."""
    orders = [scene(rng) for _ in range(rng.choice((2, 3, 3)))]
    lines = " ".join(rng.choice(_ORDERS).format(**order) for order in orders)
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
    return SampleConversation("extraction", (first, Exchange(prompt, answer, answer)))


# Exact tasks: problem, steps, result. {n} and {m} are names, {t} things, a to d numbers, and e to g derived
# numbers.
_SUMS = (
    ("{n} has {a} {t}. {m} gives {n} {b} more {t}, and then {n} sells {c} {t}. How many {t} does {n} have now?",
     "{n} has {a} + {b} = {e} {t} after the gift.\nAfter the sale {n} has {e} - {c} = {f} {t}.",
     lambda a, b, c: (a + b, a + b - c)),
    ("{n} fills {a} boxes with {b} {t} each. {m} brings {c} more {t}. How many {t} are there in total?",
     "The boxes hold {a} * {b} = {e} {t}.\nIn total there are {e} + {c} = {f} {t}.",
     lambda a, b, c: (a * b, a * b + c)),
    ("{n} buys {a} {t} from {m}. Each costs {b} coins. {n} then pays {c} coins for the bus. How much does {n} spend?",
     "The {t} cost {a} * {b} = {e} coins.\nTogether with the bus that is {e} + {c} = {f} coins.",
     lambda a, b, c: (a * b, a * b + c)),
    ("{n} has {a} {t}. {m} has {b} more than {n}. How many {t} do {n} and {m} have together?",
     "{m} has {a} + {b} = {e} {t}.\nTogether they have {a} + {e} = {f} {t}.",
     lambda a, b, c: (a + b, 2 * a + b)),
)  # fmt: skip


def arithmetic(rng: random.Random) -> SampleConversation:
    """Return a two-step problem; the answer shows both steps and ends with ``#### result``, as in GSM8K."""
    text, steps, compute = rng.choice(_SUMS)
    first, second = scene(rng, 1.5)["first"], scene(rng, 1.5)["first"]
    second = second if second != first else "Xaver"
    a, b, c = rng.randrange(5, 20), rng.randrange(2, 10), rng.randrange(1, 7)
    e, f = compute(a, b, c)
    fields = {"n": first, "m": second, "t": pick(rng, OBJECTS, 1.4), "a": a, "b": b, "c": c, "e": e, "f": f}
    answer = f"{steps.format(**fields)}\n#### {f}"
    return SampleConversation("math_reasoning", (Exchange(text.format(**fields), answer, answer),))


_ITEMS = words("numbers values scores prices ages weights lengths heights points sizes")
# (word in the function name, phrase, code)
_TESTS = (
    ("even", "the even {i}", "{x} % 2 == 0"),
    ("odd", "the odd {i}", "{x} % 2 == 1"),
    ("positive", "the positive {i}", "{x} > 0"),
    ("negative", "the negative {i}", "{x} < 0"),
    ("above_{n}", "all {i} above {n}", "{x} > {n}"),
    ("below_{n}", "all {i} below {n}", "{x} < {n}"),
    ("multiples_of_{n}", "all {i} that are multiples of {n}", "{x} % {n} == 0"),
)
_CHANGES = (
    ("", "", "{x}"),
    ("_doubled", " doubled", "2 * {x}"),
    ("_squared", " squared", "{x} * {x}"),
    ("_negated", " negated", "-{x}"),
    ("_halved", " halved", "{x} / 2"),
)
_RESULTS = (
    ("sum", "the sum of", "0", "total += {y}"),
    ("count", "the count of", "0", "total += 1"),
    ("product", "the product of", "1", "total *= {y}"),
    ("list", "a list of", "[]", "total.append({y})"),
    ("largest", "the largest of", "None", "total = {y} if total is None else max(total, {y})"),
)
_LOOP = (
    'def {name}({i}):\n    """Return {phrase}."""\n    total = {start}\n    for {x} in {i}:\n        if {test}:\n'
    "            {step}\n    return total"
)
_CODE_SECOND = (
    ("Rename the function to {new}.", "Here is the function with its new name:", "def {name}(", "def {new}("),
    ("Add type hints.", "Here is the function with type hints:", "({i}):", "({i}: list[float]):"),
    ("Call the argument data.", "Here is the function with its new argument:", "{i}", "data"),
)


def coding(rng: random.Random) -> SampleConversation:
    """Return a request for a Python function over a list, then for a change to it."""
    items, number = pick(rng, _ITEMS, 1.5), rng.randrange(2, 12)
    test, change, result = rng.choice(_TESTS), pick(rng, _CHANGES, 1.8), pick(rng, _RESULTS, 1.3)
    fields = {"i": items, "x": items[:-1], "n": number, "start": result[2]}
    fields["name"] = f"{result[0]}_of_{test[0].format(n=number)}_{items}{change[0]}"
    fields["phrase"] = f"{result[1]} {test[1].format(**fields)}{change[1]}"
    fields["test"] = test[2].format(**fields)
    fields["step"] = result[3].format(y=change[2].format(**fields))
    fields["new"] = pick(rng, words("compute solve run helper answer"), 1.2)
    code = _LOOP.format(**fields)
    asked, said, old, new = (part.format(**fields) for part in rng.choice(_CODE_SECOND))
    changed = f"{said}\n```python\n{code.replace(old, new)}\n```"
    first = Exchange(
        f"Write a Python function that returns {fields['phrase']}.", f"```python\n{code}\n```", code
    )
    return SampleConversation("coding", (first, Exchange(asked, changed, changed)))


def _pairs(text: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(row.split("=")) for row in text.split())


# Translation: German, with the gender of nouns, and English.
PERSONS = _pairs(
    "m=Mann=man f=Frau=woman n=Kind=child m=Lehrer=teacher m=Bauer=farmer f=Ärztin=doctor f=Königin=queen "
    "m=König=king f=Nachbarin=neighbour m=Freund=friend f=Schwester=sister m=Bruder=brother f=Mutter=mother "
    "m=Vater=father m=Jäger=hunter f=Sängerin=singer m=Händler=trader m=Dichter=poet m=Richter=judge m=Dieb=thief "
    "m=Gast=guest f=Tochter=daughter m=Sohn=son f=Tante=aunt m=Onkel=uncle n=Mädchen=girl"
)
THINGS = _pairs(
    "n=Buch=book m=Brief=letter n=Brot=bread m=Apfel=apple m=Tisch=table f=Lampe=lamp m=Schlüssel=key m=Mantel=coat "
    "m=Korb=basket n=Bild=picture f=Karte=map n=Messer=knife m=Topf=pot n=Boot=boat m=Wagen=cart f=Uhr=clock "
    "n=Seil=rope m=Stuhl=chair f=Flasche=bottle m=Becher=cup m=Teller=plate n=Kleid=dress m=Hut=hat m=Schuh=shoe "
    "f=Decke=blanket m=Spiegel=mirror f=Kerze=candle m=Fisch=fish f=Suppe=soup m=Kuchen=cake f=Birne=pear "
    "f=Münze=coin m=Stein=stone f=Glocke=bell f=Geige=violin f=Trommel=drum n=Zelt=tent m=Krug=jug m=Löffel=spoon"
)
# German stems; the ending is -e, or -en for the masculine accusative.
ADJECTIVES = _pairs(
    "alt=old neu=new klein=small groß=big rot=red schön=beautiful jung=young schwer=heavy arm=poor reich=rich "
    "grün=green kalt=cold warm=warm still=quiet stark=strong schwarz=black weiß=white klug=clever lang=long kurz=short "
    "rund=round frisch=fresh leer=empty voll=full seltsam=strange"
)
VERBS = _pairs(
    "sieht=sees kauft=buys sucht=seeks findet=finds trägt=carries bringt=brings holt=fetches verkauft=sells "
    "hat=has braucht=needs zeigt=shows öffnet=opens putzt=cleans malt=paints versteckt=hides verliert=loses "
    "wäscht=washes bewacht=guards prüft=checks wirft=throws stiehlt=steals"
)
TIMES = (
    ("Heute", "Today"),
    ("Am Morgen", "In the morning"),
    ("Jeden Tag", "Every day"),
    ("Jetzt", "Now"),
    ("Im Sommer", "In summer"),
    ("Oft", "Often"),
    ("Am Montag", "On Monday"),
    ("Manchmal", "Sometimes"),
)
_ARTICLES = {"m": "der", "f": "die", "n": "das"}


def _noun_phrase(
    rng: random.Random, nouns: tuple[tuple[str, ...], ...], *, accusative: bool
) -> tuple[str, str]:
    gender, german, english = pick(rng, nouns, 2.2)
    strong = accusative and gender == "m"
    article_, adjective = "den" if strong else _ARTICLES[gender], ("", "")
    if rng.random() < 0.5:
        stem, meaning = pick(rng, ADJECTIVES, 2.2)
        adjective = f"{stem}{'en' if strong else 'e'} ", f"{meaning} "
    return f"{article_} {adjective[0]}{german}", f"the {adjective[1]}{english}"


def _sentence(rng: random.Random) -> tuple[str, str]:
    """Return subject, verb, object; after an expression of time, the German verb precedes its subject."""
    subject, verb = _noun_phrase(rng, PERSONS, accusative=False), pick(rng, VERBS, 2.2)
    object_ = _noun_phrase(rng, THINGS, accusative=True)
    german, english = f"{subject[0]} {verb[0]} {object_[0]}", f"{subject[1]} {verb[1]} {object_[1]}"
    if rng.random() < 0.4:
        when = pick(rng, TIMES)
        german, english = f"{when[0]} {verb[0]} {subject[0]} {object_[0]}", f"{when[1]} {english}"
    return f"{german[0].upper()}{german[1:]}.", f"{english[0].upper()}{english[1:]}."


def translation(rng: random.Random) -> SampleConversation:
    """Return one to three German sentences to translate into English."""
    german, english = zip(*(_sentence(rng) for _ in range(rng.choice((1, 2, 2, 3)))))
    answer = " ".join(english)
    return SampleConversation(
        "translation", (Exchange(f"Translate German to English: {' '.join(german)}", answer, answer),)
    )


# In Spec-Bench's order of categories; the number is the share of the sample.
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
