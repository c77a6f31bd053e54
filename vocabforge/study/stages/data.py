"""Stage ``data``: conversations to learn from, held-out ones by source, and the questions."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.artifact import write_artifact
from ...core.console import say
from ...core.errors import DataError
from ...core.files import atomic_write, sha256_file
from ...corpus.sources.bytes import ByteSpan
from ...corpus.sources.inputs import PACKED_SUFFIXES
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ...demo.target.build import TOKENIZER_FILES
from ...evaluate.benchmarks import Benchmark, load_benchmark, spread
from ..config import RARE, StudyConfig, StudyDataConfig, StudyLayout
from ..sources import OVERLAP, SourceTexts, Talk, read_source, runs
from ..steps import is_finished

KIND = "study-data"
_VERSION = 4  # counts up when the same inputs are made into other texts

Row = dict[str, Any]


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.data``, an artefact of kind ``study-data``; its ``sources`` say what was left out and why.

    Raises:
        DataError: a file is missing, damaged or without a conversation, or nothing is left to learn from.
    """
    own = config.data
    benchmarks = {
        name: load_benchmark(name, limit or None, data=own.root, offline=True)
        for name, limit in own.benchmarks.items()
    }
    tokenizer = _tokenizer_files(config)
    parents = _parents(own, benchmarks) | {
        f"tokenizer {name}": sha256_file(f) for name, f in tokenizer.items()
    }
    settings = own.model_dump(mode="json", exclude={"root"})  # the files' hashes stand for the folder
    key = {"version": _VERSION, "parents": parents, "config": settings}
    if is_finished(layout.data, KIND, key):
        say(f"data: {layout.data} is up to date")
        return
    meta: Row = {"key": key}
    with write_artifact(layout.data, KIND, meta, parents=parents, config=settings, overwrite=True) as folder:
        for name, file in tokenizer.items():
            place = folder / layout.tokenizer.name / name
            place.parent.mkdir(exist_ok=True)
            atomic_write(place, b"".join(block for _, block in ByteSpan(file).blocks()))
        given = load_tokenizer(folder / layout.tokenizer.name) if tokenizer else None
        files, meta["sources"] = make(own, benchmarks, given)
        for name, rows in files.items():
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            atomic_write(folder / f"{name}.jsonl", "".join(lines))
    asked = sum(len(rows) for name, rows in files.items() if name.startswith("questions-"))
    say(f"data: {len(files['train']):,} conversations to learn from, {asked:,} questions in {layout.data}")


def make(
    config: StudyDataConfig, benchmarks: Mapping[str, Benchmark], tokenizer: TextTokenizer | None
) -> tuple[dict[str, list[Row]], Row]:
    """All rows from the sources, by file, and what became of each source.

    Conversations are ``{"messages": [...], "source": NAME}`` with ``tools`` if there are any; questions are as
    Spec-Bench writes them; those of the set ``rare`` are the prompts of the sources of that role.
    """
    read = [read_source(source, config, tokenizer) for source in config.sources]
    others = [one for one in read if one.source.role != "train"]
    asked: dict[str, list[Row]] = {
        name: [
            {"question_id": one.question_id, "category": one.category, "turns": list(one.turns)}
            for one in benchmark.questions
        ]
        for name, benchmark in benchmarks.items()
    }
    if rare := _rare([one for one in others if one.source.role == RARE], config.rare_questions):
        asked[RARE] = rare
    held = {run for names in asked.values() for row in names for run in runs(row["turns"])}
    held |= {run for one in others for talk in one.talks for run in runs(talk.texts)}
    train: list[Row] = []
    sources: Row = {}
    for one in read:
        kept = one.talks
        if one.source.role == "train":
            kept = [talk for talk in one.talks if held.isdisjoint(runs(talk.texts))]
            train += _rows(one.source.name, kept)
        left_out = len(one.talks) - len(kept)
        sources[one.source.name] = {"conversations": len(kept), "left_out": left_out, "skipped": one.skipped}
    if not train:
        raise DataError(
            "nothing is left to learn from",
            got="only conversations that share text with what is held out",
            expected=f"texts that do not have {OVERLAP} words in a row in common",
            remedy="hold other sources out",
        )
    random.Random(0).shuffle(train)
    files = {"train": train}
    files |= {f"heldout-{one.source.name}": _rows(one.source.name, one.talks) for one in others}
    return files | {f"questions-{name}": rows for name, rows in asked.items()}, sources


def _rows(source: str, talks: Iterable[Talk]) -> list[Row]:
    return [
        {"messages": talk.messages, "source": source, **({"tools": talk.tools} if talk.tools else {})}
        for talk in talks
    ]


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


def _parents(config: StudyDataConfig, benchmarks: Mapping[str, Benchmark]) -> dict[str, str]:
    """Hashes of the texts that are read, by role."""
    found = {f"questions {name}": benchmark.sha256 for name, benchmark in benchmarks.items()}
    for source in config.sources:
        if source.path is not None:
            path = config.file(source.path)
            if not path.is_file():
                raise DataError(
                    f"the file of the source {source.name} is missing",
                    expected=path,
                    source="data.sources",
                    remedy="check data.root and the source's path, or take --size ci, which needs no data",
                )
            found[f"source {source.name}"] = sha256_file(path)
    return found


def _tokenizer_files(config: StudyConfig) -> dict[str, Path]:
    """The files of the given tokenizer, maybe packed, by their names; none if a small one is made."""
    own = config.data
    folder = config.target.path or (None if own.tokenizer is None else own.file(own.tokenizer))
    if folder is None:
        return {}
    found: dict[str, Path] = {}
    for name in TOKENIZER_FILES:
        for suffix in ("", *PACKED_SUFFIXES):
            if name not in found and (path := folder / f"{name}{suffix}").is_file():
                found[name] = path
    if "tokenizer.json" not in found:
        raise DataError(
            "the folder holds no tokenizer.json",
            expected=f"tokenizer.json, or packed as {', '.join(PACKED_SUFFIXES)}",
            source=folder,
            remedy="check data.root and data.tokenizer, or target.path",
        )
    return found
