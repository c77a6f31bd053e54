"""Write the sample: training and held-out conversations, and questions in Spec-Bench's format."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ....core.config import StrictModel
from ....core.files import atomic_write
from .families import FAMILIES, SampleConversation

Count = Annotated[int, Field(ge=1)]
FIRST_QUESTION_ID = 81
TRAIN, HELDOUT, QUESTIONS = "train.jsonl", "heldout.jsonl", "question.jsonl"


class SampleSizes(StrictModel):
    """Number of conversations to write, and of questions per category."""

    train: Count = 4200
    heldout: Count = 240
    questions_per_category: Count = 5


def _stream(seed: int, split: str, family: str) -> Iterator[SampleConversation]:
    """Yield an infinite, reproducible stream of a family's conversations for one split."""
    rng = random.Random(f"{seed}/{split}/{family}")
    make = FAMILIES[family][0]
    while True:
        yield make(rng)


def _take(
    stream: Iterator[SampleConversation], count: int, taken: set[str], blocked: set[str]
) -> list[SampleConversation]:
    """Return the next ``count`` conversations whose first prompt is neither blocked nor used."""
    found: list[SampleConversation] = []
    for conversation in stream:
        key = conversation.exchanges[0].prompt
        if key in blocked or key in taken:
            continue
        taken.add(key)
        found.append(conversation)
        if len(found) == count:
            break
    return found


def _mixed(seed: int, split: str, count: int, blocked: set[str], *, unique: bool) -> list[SampleConversation]:
    """Return ``count`` conversations of all families by their shares, in a seeded random order."""
    rng = random.Random(f"{seed}/{split}/order")
    names, shares = list(FAMILIES), [share for _, share in FAMILIES.values()]
    order = rng.choices(names, shares, k=count)
    streams = {name: _stream(seed, split, name) for name in names}
    seen: set[str] = set()
    found = []
    for name in order:
        found += _take(streams[name], 1, seen if unique else set(), blocked)
    return found


def _jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def spec_bench_rows(conversations: list[SampleConversation]) -> list[dict[str, object]]:
    """Return rows of ``question.jsonl`` in Spec-Bench's format; ``reference`` only if every turn has one."""
    rows: list[dict[str, object]] = []
    for number, conversation in enumerate(conversations, FIRST_QUESTION_ID):
        row: dict[str, object] = {
            "question_id": number,
            "category": conversation.category,
            "turns": [exchange.prompt for exchange in conversation.exchanges],
        }
        references = [exchange.reference for exchange in conversation.exchanges]
        if None not in references:
            row["reference"] = references
        rows.append(row)
    return rows


def sample_questions(seed: int = 0, per_category: int = 5) -> list[SampleConversation]:
    """Return the conversations whose prompts ``write_sample`` writes to ``question.jsonl``."""
    taken: set[str] = set()
    questions: list[SampleConversation] = []
    for name in FAMILIES:
        questions += _take(_stream(seed, "questions", name), per_category, taken, set())
    return questions


def write_sample(folder: Path, seed: int = 0, sizes: SampleSizes | None = None) -> dict[str, Path]:
    """Write ``train.jsonl``, ``heldout.jsonl`` and ``question.jsonl``; return their paths by name.

    The bytes depend only on the arguments. First prompts of the questions and the held-out set never occur in
    the training set. Prompts may repeat within the training set, so that frequent facts are seen often.
    """
    sizes = sizes or SampleSizes()
    questions = sample_questions(seed, sizes.questions_per_category)
    blocked = {conversation.exchanges[0].prompt for conversation in questions}
    heldout = _mixed(seed, "heldout", sizes.heldout, blocked, unique=True)
    blocked |= {conversation.exchanges[0].prompt for conversation in heldout}
    train = _mixed(seed, "train", sizes.train, blocked, unique=False)
    texts = {
        TRAIN: _jsonl([{"messages": conversation.messages()} for conversation in train]),
        HELDOUT: _jsonl([{"messages": conversation.messages()} for conversation in heldout]),
        QUESTIONS: _jsonl(spec_bench_rows(questions)),
    }
    for name, text in texts.items():
        atomic_write(folder / name, text)
    return {name: folder / name for name in texts}
