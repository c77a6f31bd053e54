"""Writes the sample: conversations for training and for checking, and questions in Spec-Bench's format."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ...core.config import StrictModel
from ...core.files import atomic_write
from .families import FAMILIES, SampleConversation

Count = Annotated[int, Field(ge=1)]
FIRST_QUESTION_ID = 81
TRAIN, HELDOUT, QUESTIONS = "train.jsonl", "heldout.jsonl", "question.jsonl"


class SampleSizes(StrictModel):
    """How many conversations to write, and how many questions of each category."""

    train: Count = 4200
    heldout: Count = 240
    questions_per_category: Count = 5


def _stream(seed: int, split: str, family: str) -> Iterator[SampleConversation]:
    """The endless stream of a family's conversations for one split; equal arguments give equal streams."""
    rng = random.Random(f"{seed}/{split}/{family}")
    make = FAMILIES[family][0]
    while True:
        yield make(rng)


def _take(
    stream: Iterator[SampleConversation], count: int, taken: set[str], blocked: set[str]
) -> list[SampleConversation]:
    """The next ``count`` conversations whose first prompt is neither blocked nor taken."""
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
    """``count`` conversations over all families by their shares, in an order drawn from the seed."""
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
    """Rows of ``question.jsonl`` as Spec-Bench writes them; ``reference`` only where every turn has one."""
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
    """The conversations whose prompts ``write_sample`` puts into ``question.jsonl``."""
    taken: set[str] = set()
    questions: list[SampleConversation] = []
    for name in FAMILIES:
        questions += _take(_stream(seed, "questions", name), per_category, taken, set())
    return questions


def write_sample(folder: Path, seed: int = 0, sizes: SampleSizes | None = None) -> dict[str, Path]:
    """Write ``train.jsonl``, ``heldout.jsonl`` (OpenAI ``messages``), ``question.jsonl`` (Spec-Bench); paths by name.

    The bytes depend on the arguments alone. No first prompt of the questions or of the held-out set stands in the
    training set. Prompts may repeat within the training set: what is frequent is seen often.
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
