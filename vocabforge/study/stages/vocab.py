"""Stage ``vocab``: the draft vocabularies of FR-Spec and VocabTrim, and the clusters of the target's tokens.

FR-Spec's ranking counts the texts that are learnt from, as raw text; VocabTrim's counts what the target itself writes.
If fewer tokens occurred than a draft vocabulary holds, the lowest ids fill it up: in a BPE the bytes, then the earliest
merges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...core.artifact import open_artifact
from ...core.files import sha256_file
from ...corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ...vocab.counts.run import CountRun, count_corpus, partial_folder
from ...vocab.counts.table import load_counts, save_counts
from ...vocab.counts.tally import CountOptions
from .. import steps as making
from ..config import StudyConfig, StudyLayout
from .answers import COUNTS

FR, TRIM = "fr", "trim"


def run(config: StudyConfig, layout: StudyLayout) -> None:
    """Write ``layout.subset`` for every R of both rankings, and ``layout.clusters`` for every M."""
    tokenizer, static = load_tokenizer(layout.target), set(config.methods.static)
    texts, own = _count(layout, tokenizer, layout.vocab / "counts-texts"), layout.answers / COUNTS
    for ranking, name, place, sizes in (
        (FR, "FR-Spec", texts, static | {config.drafters.reduced_size}),
        (TRIM, "VocabTrim", own, static),
    ):
        table = load_counts(place)
        check_fingerprint(
            tokenizer.fingerprint,
            table.fingerprint,
            expected_from=f"the target {layout.target}",
            got_from=f"the counts {place}",
            remedy="run the stage `answers` again",
        )
        for size in sorted(sizes):
            # The template's tokens for thinking are forced, too: it may open every answer with them, but no text does.
            making.subset_step(
                f"{name} of {size:,} tokens",
                table.counts,
                size,
                tokenizer,
                layout.target,
                layout.subset(ranking, size),
                tools=True,
                parents={"counts": open_artifact(place, verify=False).content_hash},
            )
    for count in config.methods.clusters:
        making.clusters_step(layout.target, tokenizer, count, layout.clusters(count))


def _count(layout: StudyLayout, tokenizer: TextTokenizer, output: Path) -> Path:
    options = CountOptions(mode="corpus")

    def keep(run: CountRun) -> None:
        save_counts(run.table, output, overwrite=True)

    def make() -> dict[str, Any]:
        count_corpus(tokenizer, [str(layout.train_texts)], options, partial_folder(output), keep=keep)
        return {"path": str(output), "contents": making.content_hashes([output])}

    key = {"texts": sha256_file(layout.train_texts), **options.deciding(tokenizer)}
    making.run_step("counting tokens", output.with_suffix(".json"), key, make)
    return output
