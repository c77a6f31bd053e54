"""Stage ``data``: conversations to learn from, held-out ones by source, and the questions."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.artifact import write_artifact
from ..core.console import say
from ..core.errors import DataError
from ..core.files import atomic_write_json, sha256_file
from ..corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ..evaluate.benchmarks import Benchmark, Question, load_benchmark, spread
from .config import RARE, StudyConfig, StudyDataConfig
from .layout import StudyLayout
from .sources.overlap import HeldoutOverlap
from .sources.registry import NO_TOOLS, SourceTexts, Talk, read_source
from .stage_target import tokenizer_hashes, unpack_tokenizer
from .steps import is_finished

KIND = "study-data"
SUMMARY = "summary.json"
_VERSION = 2  # counts up where the same inputs are made into other texts
_SHUFFLE_SEED = 0

Row = dict[str, Any]


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.data`` and, where one is given, ``layout.tokenizer``.

    ``train.jsonl``, ``heldout-NAME.jsonl`` and ``questions-NAME.jsonl``: see :func:`make`; ``summary.json``: how many
    of all, and what was left out and why. What is there already and made from the same files and settings is left.

    Raises:
        DataError: a file is missing, damaged or without a conversation, or nothing is left to learn from.
        UsageError: a source has no file, a benchmark is not known, or the folder cannot be written to.
    """
    if config.data.tokenizer is not None:
        unpack_tokenizer(_tokenizer_folder(config.data), layout.tokenizer)
    benchmarks = {name: _benchmark(config.data, name) for name in config.data.benchmarks}
    parents = _parents(config.data, benchmarks)
    settings = config.data.model_dump(mode="json", exclude={"root"})  # the files' hashes stand for the folder
    key = {"version": _VERSION, "parents": parents, "config": settings}
    if is_finished(layout.data, KIND, key):
        say(f"data: {layout.data} is up to date")
        return
    tokenizer = None if config.data.tokenizer is None else load_tokenizer(layout.tokenizer)
    made = make(config.data, benchmarks, tokenizer)
    meta = {"key": key, "train": len(made.train), "questions": made.summary["questions"]}
    with write_artifact(layout.data, KIND, meta, parents=parents, config=settings, overwrite=True) as folder:
        _write(folder / layout.train_texts.name, made.train)
        for name, rows in made.heldout.items():
            _write(folder / layout.heldout_texts(name).name, rows)
        for name, rows in made.questions.items():
            _write(folder / layout.questions(name).name, rows)
        atomic_write_json(folder / SUMMARY, made.summary)
    asked = sum(map(len, made.questions.values()))
    say(f"data: {len(made.train):,} conversations to learn from, {asked:,} questions in {layout.data}")


@dataclass
class StudyTexts:
    """The files' rows.

    Attributes:
        train: conversations of all ``train`` sources, shuffled.
        heldout: of each other source, in its order.
        questions: of each benchmark, and of the rare sources.
        summary: for people and for the report.
    """

    train: list[Row] = field(default_factory=list)
    heldout: dict[str, list[Row]] = field(default_factory=dict)
    questions: dict[str, list[Row]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


def make(
    config: StudyDataConfig, benchmarks: Mapping[str, Benchmark], tokenizer: TextTokenizer | None
) -> StudyTexts:
    """All rows from the sources.

    Conversations are ``{"messages": [...], "source": NAME}`` with the tool list beside where there is one, questions as
    Spec-Bench writes them with all turns; beside these a benchmark's own system message stands as ``system``, which
    Spec-Bench's reader passes over. The questions ``rare`` are the prompts of the sources of that role, at most
    ``rare_questions`` of a category, evenly spread.

    Raises:
        DataError: see :func:`run`.
    """
    made = StudyTexts()
    read = []
    for source in config.sources:
        limit = config.limits.get(source.name, source.documents)
        limited = source.model_copy(update={"documents": limit})
        read.append(read_source(limited, config.root, config.answer_characters, tokenizer))
    asked = {name: benchmark.questions for name, benchmark in benchmarks.items()}
    made.questions = {name: [_question(one) for one in questions] for name, questions in asked.items()}
    if rare := _rare([one for one in read if one.source.role == RARE], config.rare_questions):
        made.questions[RARE] = rare
    others = [one for one in read if one.source.role != "train"]
    made.heldout = {one.source.name: _rows(one, one.talks) for one in others}
    sets: dict[str, Iterable[Sequence[str]]] = {
        f"questions {name}": [one.turns for one in questions] for name, questions in asked.items()
    }
    sets |= {f"heldout {one.source.name}": [talk.texts for talk in one.talks] for one in others}
    overlap = HeldoutOverlap(sets, config.overlap)
    sources: list[dict[str, Any]] = []
    for one in read:
        kept, met = one.talks, Counter[str]()
        if one.source.role == "train":
            shared = [overlap.met(talk.texts) for talk in one.talks]
            met.update(name for names in shared for name in names)
            kept = [talk for talk, names in zip(one.talks, shared) if not names]
            made.train += _rows(one, kept)
        sources.append(
            {
                **{name: getattr(one.source, name) for name in ("name", "kind", "role")},
                "categories": dict(Counter(talk.category for talk in kept)),
                "documents": len(kept),
                "characters": sum(talk.characters for talk in kept),
                "of": one.of,
                "left_out": len(one.talks) - len(kept),
                "met": dict(met),
                "skipped": one.skipped,
            }
        )
    if not made.train:
        raise DataError(
            "nothing is left to learn from",
            got=f"all {sum(one['left_out'] for one in sources):,} conversations share text with what is held out",
            expected=f"texts that do not have {config.overlap} words in a row in common",
            remedy="let data.overlap be longer, or hold other sources out",
        )
    random.Random(_SHUFFLE_SEED).shuffle(made.train)
    made.summary = {
        "train": {
            "conversations": len(made.train),
            "characters": sum(one["characters"] for one in sources if one["role"] == "train"),
        },
        "sources": sources,
        "questions": {
            name: {
                "questions": len(rows),
                "of": benchmarks[name].of if name in benchmarks else len(rows),
                "categories": dict(Counter(row["category"] for row in rows)),
            }
            for name, rows in made.questions.items()
        },
    }
    return made


def _rows(read: SourceTexts, talks: Sequence[Talk]) -> list[Row]:
    return [
        {"messages": talk.messages, "source": read.source.name}
        | ({} if talk.tools in NO_TOOLS else {"tools": talk.tools})
        for talk in talks
    ]


def _question(question: Question) -> Row:
    row: Row = {
        "question_id": question.question_id,
        "category": question.category,
        "turns": list(question.turns),
    }
    if question.reference is not None:
        row["reference"] = list(question.reference)
    if question.system is not None:
        row["system"] = question.system
    return row


def _rare(sources: Sequence[SourceTexts], most: int) -> list[Row]:
    """Questions from rare sources, at most so many of a category."""
    talks: defaultdict[str, list[Talk]] = defaultdict(list)
    for source in sources:
        for talk in source.talks:
            talks[talk.category].append(talk)
    chosen = [talk for category in sorted(talks) for talk in spread(talks[category], most)]
    return [
        {"question_id": number, "category": talk.category, "turns": talk.prompts}
        for number, talk in enumerate(chosen, start=1)
    ]


def _benchmark(config: StudyDataConfig, name: str) -> Benchmark:
    return load_benchmark(name, config.benchmarks[name] or None, data=config.root, offline=True)


def _tokenizer_folder(config: StudyDataConfig) -> Path:
    assert config.tokenizer is not None
    return config.tokenizer if config.root is None else config.root / config.tokenizer


def _parents(config: StudyDataConfig, benchmarks: Mapping[str, Benchmark]) -> dict[str, str]:
    """Hashes of everything that is read, by role.

    Raises:
        DataError: a source's file is missing.
    """
    found = {f"questions {name}": benchmark.sha256 for name, benchmark in benchmarks.items()}
    for source in config.sources:
        if source.path is not None and config.root is not None:
            path = config.root / source.path
            if not path.is_file():
                raise DataError(
                    f"the file of the source {source.name} is missing",
                    expected=path,
                    source="data.sources",
                    remedy="check data.root and the source's path",
                )
            found[f"source {source.name}"] = sha256_file(path)
    if config.tokenizer is not None:
        found |= tokenizer_hashes(_tokenizer_folder(config))
    return found


def _write(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as handle:
        for row in rows:
            handle.write(json.dumps(row, ensure_ascii=False) + "\n")
