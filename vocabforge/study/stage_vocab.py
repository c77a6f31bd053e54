"""Stage ``vocab``: the draft vocabularies of FR-Spec and VocabTrim, and the clusters of the target's tokens.

FR-Spec's ranking counts the texts that are learnt from, as raw text; VocabTrim's counts what the target itself writes.
Where fewer tokens occurred than a draft vocabulary holds, it is filled up in the order of ids, which in a BPE are the
bytes and then the earliest merges; ``coverage.json`` says how many.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.artifact import open_artifact
from ..core.errors import DataError, UsageError
from ..core.files import atomic_write_json, sha256_file
from ..corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ..vocab.counts.run import CountRun, count_corpus, partial_folder
from ..vocab.counts.table import FrequencyTable, load_counts, save_counts
from ..vocab.counts.tally import CountOptions
from ..vocab.subset.coverage import coverage_at
from ..vocab.subset.subset import load_subset
from . import steps as making
from .config import StudyConfig
from .layout import StudyLayout
from .stage_answers import COUNTS

FR, TRIM = "fr", "trim"
COVERAGE = "coverage.json"
_NAMES = {FR: "FR-Spec", TRIM: "VocabTrim"}


class _Counted(NamedTuple):
    """Counts that draft vocabularies are made from: the artefact's content hash, and the table."""

    content: str
    table: FrequencyTable


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Count, select, cluster; what an earlier run finished for the same inputs is taken over.

    Writes ``layout.subset`` for every R of both rankings, ``layout.clusters`` for every M, and ``coverage.json`` below
    ``layout.vocab``: for every subset its ``size``, ``forced`` and ``filled`` ids, and what share of the tokens it
    holds: of its own counts (``coverage``), of what the target itself writes (``own``), of each held-out source
    (``heldout``, None if a source is empty).

    Raises:
        UsageError: a size above the vocabulary, or a method that reads more of a ranking than the largest size.
        DataError: texts are missing, or there is nothing to count.
        MismatchError: the answers were counted with another tokenizer.
    """
    static, reduced = config.methods.static, config.drafters.reduced_size
    sizes = {FR: sorted({*static, reduced}), TRIM: sorted(set(static))}
    tokenizer = load_tokenizer(layout.target)
    check_sizes(config, tokenizer.vocab_size)
    texts = _count(tokenizer, {"": layout.train_texts}, layout.vocab / "counts-texts")
    answers = _from_target(layout, tokenizer)
    heldout = _from_heldout(config, layout, tokenizer)
    rows: dict[str, Any] = {}
    for ranking, found in ((FR, texts), (TRIM, answers)):
        for size in sizes[ranking]:
            path = layout.subset(ranking, size)
            # The template's tokens for thinking are forced, too: it may open every answer with them, but no text does.
            made = making.subset_step(
                f"{_NAMES[ranking]} of {size:,} tokens",
                found.table.counts,
                size,
                tokenizer,
                layout.target,
                path,
                tools=True,
                parents={"counts": found.content},
            )
            rows[path.name] = {
                **{name: made[name] for name in ("size", "forced", "filled", "coverage")},
                "own": _share(path, answers.table),
                "heldout": {name: _share(path, table) for name, table in heldout.items()},
            }
    for count in config.methods.clusters:
        making.clusters_step(layout.target, tokenizer, count, layout.clusters(count))
    tables = {FR: texts.table, TRIM: answers.table, **heldout}
    tokens = {name: {"tokens": table.tokens, "different": table.seen} for name, table in tables.items()}
    atomic_write_json(layout.vocab / COVERAGE, {"fill": making.FILL, "tokens": tokens, "subsets": rows})


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


def heldout_files(config: StudyConfig, layout: StudyLayout) -> dict[str, Path]:
    """Conversations that nothing is learnt from, by source."""
    return {source.name: layout.heldout_texts(source.name) for source in config.data.held_out}


def _from_target(layout: StudyLayout, tokenizer: TextTokenizer) -> _Counted:
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
    config: StudyConfig, layout: StudyLayout, tokenizer: TextTokenizer
) -> dict[str, FrequencyTable]:
    """A table of each held-out source."""
    files = heldout_files(config, layout)
    if not files:
        return {}
    table = _count(tokenizer, files, layout.vocab / "counts-heldout").table
    return {
        name: FrequencyTable(
            part.counts, part.documents, part.bytes, table.mode, table.fingerprint, {}, table.special
        )
        for name, part in table.domains.items()
    }


def _count(tokenizer: TextTokenizer, files: Mapping[str, Path], output: Path) -> _Counted:
    """Count as ``count-freq`` does, each name a domain (the empty one: none)."""
    plain = [path for name, path in files.items() if not name]
    domains = {name: [str(path)] for name, path in files.items() if name}
    options = CountOptions(mode="corpus")

    def keep(run: CountRun) -> None:
        save_counts(run.table, output, overwrite=True)

    def make() -> dict[str, Any]:
        count_corpus(tokenizer, plain, options, partial_folder(output), domains=domains, keep=keep)
        return {"path": str(output), "contents": making.content_hashes([output])}

    texts = {name: content_of(path, "data") for name, path in files.items()}
    key = {"texts": texts, **options.deciding(tokenizer)}
    made = making.run_step(f"counting tokens: {output.name}", output.with_suffix(".json"), key, make)
    return _Counted(made["contents"][0], load_counts(output))


def _share(path: Path, table: FrequencyTable) -> float | None:
    """Share of a text's tokens that a draft vocabulary holds; None of an empty text."""
    ranked = load_subset(path).ranked
    return coverage_at(ranked, table.counts, [len(ranked)])[0] if table.tokens else None
