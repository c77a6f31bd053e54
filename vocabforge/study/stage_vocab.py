"""Stage ``vocab``: the draft vocabularies of FR-Spec and VocabTrim, and the clusters of the target's tokens.

FR-Spec's ranking counts the texts that are learnt from, as raw text; VocabTrim's counts what the target itself writes.
If fewer tokens occurred than a draft vocabulary holds, the lowest ids fill it up: in a BPE the bytes, then the earliest
merges; ``coverage.json`` says how many.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.artifact import open_artifact
from ..core.errors import DataError
from ..core.files import atomic_write_json, sha256_file
from ..corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ..vocab.counts.run import CountRun, count_corpus, partial_folder
from ..vocab.counts.table import load_counts, save_counts
from ..vocab.counts.tally import CountOptions
from ..vocab.subset.coverage import coverage_at
from ..vocab.subset.subset import load_subset
from . import steps as making
from .config import StudyConfig
from .layout import StudyLayout
from .stage_answers import COUNTS

FR, TRIM = "fr", "trim"
COVERAGE = "coverage.json"
_TRAIN = "train"  # the counts' domain of the training texts
_HELDOUT = "heldout/"  # before a held-out source's name


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Count, select, cluster; what an earlier run finished for the same inputs is taken over.

    Writes ``layout.subset`` for every R of both rankings, ``layout.clusters`` for every M, and ``coverage.json`` below
    ``layout.vocab``: for every subset its ``size``, ``forced`` and ``filled`` ids, and what share of the tokens it
    holds: of its own counts (``coverage``), of what the target itself writes (``own``), of each held-out source
    (``heldout``, None if a source is empty).

    Raises:
        MismatchError: the answers were counted with another tokenizer.
    """
    tokenizer, static = load_tokenizer(layout.target), set(config.methods.static)
    texts = _count(config, layout, tokenizer, layout.vocab / "counts-texts")
    own = layout.answers / COUNTS
    answers = load_counts(own)
    check_fingerprint(
        tokenizer.fingerprint,
        answers.fingerprint,
        expected_from=f"the target {layout.target}",
        got_from=f"the counts {own}",
        remedy="run the stage `answers` again",
    )
    domains = {name: tally.counts for name, tally in load_counts(texts).domains.items()}
    learnt = domains.pop(_TRAIN)
    rows: dict[str, Any] = {}
    for ranking, name, place, counts, sizes in (
        (FR, "FR-Spec", texts, learnt, static | {config.drafters.reduced_size}),
        (TRIM, "VocabTrim", own, answers.counts, static),
    ):
        for size in sorted(sizes):
            path = layout.subset(ranking, size)
            # The template's tokens for thinking are forced, too: it may open every answer with them, but no text does.
            made = making.subset_step(
                f"{name} of {size:,} tokens",
                counts,
                size,
                tokenizer,
                layout.target,
                path,
                tools=True,
                parents={"counts": open_artifact(place, verify=False).content_hash},
            )
            rows[path.name] = {
                **{key: made[key] for key in ("size", "forced", "filled", "coverage")},
                "own": _share(path, answers.counts),
                "heldout": {
                    key.removeprefix(_HELDOUT): _share(path, found) for key, found in domains.items()
                },
            }
    for count in config.methods.clusters:
        making.clusters_step(layout.target, tokenizer, count, layout.clusters(count))
    atomic_write_json(layout.vocab / COVERAGE, {"subsets": rows})


def _count(config: StudyConfig, layout: StudyLayout, tokenizer: TextTokenizer, output: Path) -> Path:
    """Count as ``count-freq`` does: the training texts, and each held-out source."""
    files = {_TRAIN: layout.train_texts}
    files |= {_HELDOUT + source.name: layout.heldout_texts(source.name) for source in config.data.held_out}
    if missing := [path for path in files.values() if not path.is_file()]:
        raise DataError(
            "a file of the study is missing", source=missing[0], remedy="run `vocabforge study data` first"
        )
    options = CountOptions(mode="corpus")

    def keep(run: CountRun) -> None:
        save_counts(run.table, output, overwrite=True)

    def make() -> dict[str, Any]:
        domains = {name: [str(path)] for name, path in files.items()}
        count_corpus(tokenizer, [], options, partial_folder(output), domains=domains, keep=keep)
        return {"path": str(output), "contents": making.content_hashes([output])}

    hashes = {name: sha256_file(path) for name, path in files.items()}
    key = {"texts": hashes, **options.deciding(tokenizer)}
    making.run_step("counting tokens", output.with_suffix(".json"), key, make)
    return output


def _share(path: Path, counts: making.Counts) -> float | None:
    """Share of a text's tokens that a draft vocabulary holds; None of an empty text."""
    ranked = load_subset(path).ranked
    return coverage_at(ranked, counts, [len(ranked)])[0] if counts.sum() else None
