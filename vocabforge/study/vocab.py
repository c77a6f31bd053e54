"""Stage ``vocab``: the draft vocabularies of FR-Spec and VocabTrim, and the clusters of the target's tokens.

FR-Spec's ranking counts the texts that are learnt from, as raw text; VocabTrim's counts what the target itself writes.
Where fewer tokens occurred than a draft vocabulary holds, it is filled up in the order of ids, which in a BPE are the
bytes and then the earliest merges; ``coverage.json`` says how many.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.artifact import MANIFEST, open_artifact
from ..core.errors import DataError, UsageError
from ..core.files import atomic_write_json, sha256_file
from ..corpus.fingerprint import check_fingerprint
from ..corpus.tokenizer import TextTokenizer, load_tokenizer
from ..models.fingerprint import target_fingerprint
from ..vocab.count_run import CountRun, count_corpus, partial_folder
from ..vocab.counts import CountOptions
from ..vocab.coverage import coverage_at
from ..vocab.subset import load_subset
from ..vocab.table import CountMode, FrequencyTable, load_counts, save_counts
from . import steps as making
from .answers import COUNTS
from .config import StudyConfig
from .layout import Layout
from .steps import PlannedStep, Steps

RANKINGS = FR, TRIM = "fr", "trim"
COVERAGE = "coverage.json"
_NAMES = {FR: "FR-Spec", TRIM: "VocabTrim"}


@dataclass(frozen=True)
class _Counted:
    """Counts that draft vocabularies are made from: the artefact's content hash, and the table."""

    content: str
    table: FrequencyTable


def run(config: StudyConfig, layout: Layout) -> None:
    """Count, select, cluster; what an earlier run finished for the same inputs is taken over.

    Writes ``layout.subset`` for every R of both rankings, ``layout.clusters`` for every M, and ``coverage.json`` below
    ``layout.vocab``: for every subset its ``size``, ``forced`` and ``filled`` ids, and what share of the tokens it
    holds: of its own counts (``coverage``), of what the target itself writes (``own``), of each held-out source
    (``heldout``, None where a source is empty).

    Raises:
        UsageError: a size above the vocabulary, or a method that reads more of a ranking than the largest size.
        DataError: texts are missing, or there is nothing to count.
        MismatchError: the answers were counted with another tokenizer.
    """
    sizes = wanted_sizes(config)
    tokenizer = load_tokenizer(layout.target)
    check_sizes(config, tokenizer.vocab_size)
    target = target_fingerprint(layout.target)
    own = (layout.answers / COUNTS / MANIFEST).is_file()
    steps = Steps(_plan(config, sizes, counted_before=own))
    counted = {
        FR: _from_texts(layout, tokenizer, steps),
        TRIM: _from_target(layout, tokenizer) if own else _from_answers(layout, tokenizer, steps),
    }
    heldout = _from_heldout(config, layout, tokenizer, steps)
    selecting = _Selecting(tokenizer, layout.target, {"target": target})
    rows: dict[str, Any] = {}
    for ranking, found in counted.items():
        for size in sizes[ranking]:
            path = layout.subset(ranking, size)
            made = selecting.subset(found, size, path, steps)
            rows[path.name] = {
                **{name: made[name] for name in ("size", "forced", "filled", "coverage")},
                **_held(path, counted[TRIM].table, heldout),
            }
    for count in config.methods.clusters:
        _clusters(layout, tokenizer, count, target, steps)
    report = {"fill": making.FILL, "tokens": _tokens(counted, heldout), "subsets": rows}
    atomic_write_json(layout.vocab / COVERAGE, report)


def wanted_sizes(config: StudyConfig) -> dict[str, list[int]]:
    """R of every draft vocabulary, by ranking, ascending: the reduced drafter's is one of FR-Spec's."""
    static = config.methods.static
    return {FR: sorted({*static, config.drafters.reduced_size}), TRIM: sorted(set(static))}


def check_sizes(config: StudyConfig, vocab_size: int) -> None:
    """Refuse sizes that cannot be, before anything is counted.

    Raises:
        UsageError: above ``vocab_size``, or above the largest static size, whose ranking other methods read.
    """
    methods = config.methods
    entries = vocab_size, "the tokenizer's entries"
    most = max(methods.static), "the largest of methods.static, whose ranking is read"
    asked = [(f"methods.cores: {core}", core, most) for core in methods.cores]
    asked += [(f"methods.position: {law}", int(law.split(":")[1]), most) for law in methods.position]
    asked += [(f"methods.static: {size}", size, entries) for size in methods.static]
    asked += [(f"methods.clusters: {count}", count, entries) for count in methods.clusters]
    reduced = config.drafters.reduced_size
    asked.append((f"drafters.reduced_size: {reduced}", reduced, entries))
    for name, size, (limit, what) in asked:
        if size > limit:
            raise UsageError(
                "the study asks for more tokens than there are",
                got=name,
                expected=f"at most {limit:,}, {what}",
            )


def content_of(path: Path, stage: str) -> str:
    """SHA-256 of a file that a stage before this one made.

    Raises:
        DataError: it is not there.
    """
    if not path.is_file():
        raise DataError(
            "a file of the study is missing", source=path, remedy=f"run `vocabforge study {stage}` first"
        )
    return sha256_file(path)


def heldout_files(config: StudyConfig, layout: Layout) -> dict[str, Path]:
    """Conversations that nothing is learnt from, by source."""
    return {source.name: layout.heldout_texts(source.name) for source in config.data.held_out}


def _plan(
    config: StudyConfig, sizes: Mapping[str, Sequence[int]], *, counted_before: bool
) -> list[PlannedStep]:
    """Every step in the order of :func:`run`, with its seconds for a large study on two cores."""
    plan = [PlannedStep("tokens of the training texts", "", 20.0)]
    if not counted_before:
        plan.append(PlannedStep("tokens of the target", "", 1.0))
    if config.data.held_out:
        plan.append(PlannedStep("tokens of held-out texts", "", 4.0))
    plan += [
        PlannedStep(f"{_NAMES[ranking]} of {size:,} tokens", "", 0.2)
        for ranking in RANKINGS
        for size in sizes[ranking]
    ]
    return plan + [PlannedStep(f"{count:,} clusters", "", 0.1 * count) for count in config.methods.clusters]


def _from_texts(layout: Layout, tokenizer: TextTokenizer, steps: Steps) -> _Counted:
    return _count(tokenizer, {"": layout.train_texts}, "corpus", layout.vocab / "counts-texts", steps)


def _from_answers(layout: Layout, tokenizer: TextTokenizer, steps: Steps) -> _Counted:
    """What the target writes, read as texts."""
    return _count(tokenizer, {"": layout.own_texts}, "assistant", layout.vocab / "counts-own", steps)


def _from_target(layout: Layout, tokenizer: TextTokenizer) -> _Counted:
    """What the target writes, as counted with the answers: of the very tokens."""
    made = layout.answers / COUNTS
    content, table = open_artifact(made, verify=False).content_hash, load_counts(made)
    check_fingerprint(
        tokenizer.fingerprint,
        table.fingerprint,
        expected_from=f"the target {layout.target}",
        got_from=f"the counts {made}",
        remedy="run the stage `answers` again",
    )
    return _Counted(content, table)


def _from_heldout(
    config: StudyConfig, layout: Layout, tokenizer: TextTokenizer, steps: Steps
) -> dict[str, FrequencyTable]:
    """A table of each held-out source."""
    files = heldout_files(config, layout)
    if not files:
        return {}
    table = _count(tokenizer, files, "corpus", layout.vocab / "counts-heldout", steps).table
    return {
        name: FrequencyTable(
            part.counts, part.documents, part.bytes, table.mode, table.fingerprint, {}, table.special
        )
        for name, part in table.domains.items()
    }


def _count(
    tokenizer: TextTokenizer, files: Mapping[str, Path], mode: CountMode, output: Path, steps: Steps
) -> _Counted:
    """Count as ``count-freq`` does, each name a domain (the empty one: none)."""
    plain = [path for name, path in files.items() if not name]
    domains = {name: [str(path)] for name, path in files.items() if name}

    def keep(run: CountRun) -> None:
        save_counts(run.table, output, overwrite=True)

    def make() -> dict[str, Any]:
        options = CountOptions(mode=mode)
        count_corpus(tokenizer, plain, options, partial_folder(output), domains=domains, keep=keep)
        return {"path": str(output), "contents": making.content_hashes([output])}

    key = {
        "texts": {
            name: content_of(path, "answers" if mode == "assistant" else "data")
            for name, path in files.items()
        },
        **CountOptions(mode=mode).deciding(tokenizer),
    }
    made = steps.run(output.with_suffix(".json"), key, make, making.still_there)
    return _Counted(made["contents"][0], load_counts(output))


@dataclass(frozen=True)
class _Selecting:
    """What every draft vocabulary is made with; the ids that are forced are looked up once, and only if need be.

    The template's tokens for thinking are forced, too: it may open every answer with them, but no text does.
    """

    tokenizer: TextTokenizer
    target: Path
    key: Mapping[str, Any]

    @functools.cached_property
    def forced(self) -> tuple[int, ...]:
        return making.forced_tokens(self.tokenizer, self.target, tools=True)

    def subset(self, counted: _Counted, size: int, path: Path, steps: Steps) -> dict[str, Any]:
        counts, fingerprint = counted.table.counts, self.tokenizer.fingerprint
        return steps.run(
            path.with_suffix(".json"),
            {**self.key, "counts": hashlib.sha256(counts.tobytes()).hexdigest(), "size": size},
            lambda: making.write_subset(
                counts, size, fingerprint, self.forced, path, parents={"counts": counted.content}
            ),
            making.still_there,
        )


def _held(path: Path, own: FrequencyTable, heldout: Mapping[str, FrequencyTable]) -> dict[str, Any]:
    """Shares of tokens that a draft vocabulary holds; None of nothing."""
    ranked = load_subset(path).ranked

    def share(table: FrequencyTable) -> float | None:
        return coverage_at(ranked, table.counts, [len(ranked)])[0] if table.tokens else None

    return {"own": share(own), "heldout": {name: share(table) for name, table in heldout.items()}}


def _clusters(layout: Layout, tokenizer: TextTokenizer, count: int, target: str, steps: Steps) -> None:
    path = layout.clusters(count)
    steps.run(
        path.with_suffix(".json"),
        {"target": target, "tokenizer": tokenizer.fingerprint, "clusters": count},
        lambda: making.write_clusters(layout.target, tokenizer, count, path),
        making.still_there,
    )


def _tokens(counted: Mapping[str, _Counted], heldout: Mapping[str, FrequencyTable]) -> dict[str, Any]:
    """How much was counted, and how many different tokens."""
    tables = {**{name: found.table for name, found in counted.items()}, **heldout}
    return {name: {"tokens": table.tokens, "different": table.seen} for name, table in tables.items()}
