"""What ``vocabforge eval`` records of its inputs, and the tables that it ends with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..corpus.tokenizer import TextTokenizer
    from ..decode.build import Method
    from ..evaluate.evaluation import Provenance
    from ..evaluate.results import Results

TARGET = "target"


def parents_of(
    target: Path,
    drafters: Sequence[str],
    vocabs: Sequence[str],
    heads: Sequence[str],
    overlaps: Sequence[Path] = (),
) -> dict[str, str]:
    """Hashes of what is measured, by role; folders that are no artefact of ours have none."""
    from ..core.artifact import MANIFEST, open_artifact
    from ..decode.build import is_draft_model
    from ..models.fingerprint import target_fingerprint

    hashes = {TARGET: target_fingerprint(target)}
    for role, given in (("drafter", drafters), ("vocabulary", vocabs), ("draft head", heads)):
        for text in given:
            label, separator, folder = text.partition("=")
            path = Path(folder if separator and not Path(text).exists() else text)
            key = f"{role} {label if path != Path(text) else path.name}"
            if (path / MANIFEST).is_file():
                hashes[key] = open_artifact(path, verify=False).content_hash
            elif is_draft_model(path):
                hashes[key] = target_fingerprint(path)
    for path in overlaps:
        hashes[f"overlap {path.name}"] = open_artifact(path, verify=False).content_hash
    return hashes


def provenance_of(
    target: Path,
    tokenizer: TextTokenizer,
    methods: Sequence[Method],
    parents: Mapping[str, str],
    facts: Mapping[str, str],
    *,
    device: str,
    dtype: str,
) -> Provenance:
    """What the figures were made with.

    Args:
        methods: plain decoding first.
        parents: hashes by role, the target's under ``target``.
        facts: further settings in words.
    """
    from ..evaluate.environment import describe_environment
    from ..evaluate.evaluation import Provenance

    return Provenance(
        target=target.resolve().name,
        environment=describe_environment(device=device, dtype=dtype),
        fingerprint=parents[TARGET],
        tokenizer=_tokenizer_hash(tokenizer),
        parents=parents,
        facts={f"drafting of {one.name}": one.description for one in methods[1:]}
        | {f"draft head of {one.name}": one.head for one in methods if one.head is not None}
        | dict(facts),
    )


def _tokenizer_hash(tokenizer: TextTokenizer) -> str:
    """Of everything between a conversation and its token ids: vocabulary, chat template, stop tokens."""
    parts = [tokenizer.fingerprint, tokenizer.chat_template, sorted(tokenizer.eos_ids)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def print_tables(results: Results, output: Path) -> None:
    """What an evaluation ends with: headline, figures, by task, right answers, costs, where outputs part."""
    from rich.console import Console

    from ..core.progress import console
    from ..evaluate.report_text import divergence_line, headline
    from ..evaluate.terminal import category_table, count_lines, fault_methods, overview_table, quality_table

    out = Console(highlight=False)
    out.print(overview_table(results))
    if len(results.methods) > 1 and len(results.methods[0].summary.categories) > 1:
        out.print(category_table(results))
    if (right := quality_table(results)) is not None:
        out.print(right)
    for line in count_lines(results):
        out.print(line, soft_wrap=True, markup=False)
    if results.failures:
        left = (
            f"{len(results.failures)} of {results.benchmark.questions} questions were left out (failures in"
        )
        console().print(f"{left} {output / 'results.json'})", style="yellow", soft_wrap=True, markup=False)
    faulty = fault_methods(results)
    for method in results.methods[1:]:
        if line := divergence_line(method):
            style = "red" if method.name in faulty else "yellow"
            console().print(line, style=style, soft_wrap=True, markup=False)
    out.print(headline(results), style="bold", soft_wrap=True, markup=False)
    out.print(f"Report: {output / 'report.html'}", soft_wrap=True, markup=False)
