"""What ``vocabforge eval`` records of its inputs, and the tables that it ends with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .app import stdout_console

if TYPE_CHECKING:
    from ..corpus.tokenizer import TextTokenizer
    from ..decode.build import Method
    from ..decode.build_options import BuildOptions
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
    """Hashes of what is measured, by role: of an artefact, a model, or the weights in a serving layout."""
    from ..decode.build import labelled
    from ..models.fingerprint import target_fingerprint

    hashes = {TARGET: target_fingerprint(target)}
    for role, given in (("drafter", drafters), ("vocabulary", vocabs), ("draft head", heads)):
        for label, path in map(labelled, given):
            hashes[f"{role} {label}"] = digest_of(path)
    for path in overlaps:
        hashes[f"overlap {path.name}"] = digest_of(path)
    return hashes


def digest_of(path: Path) -> str:
    """Hash of an artefact, of a model, or of the weights in a serving layout."""
    from ..core.artifact import MANIFEST, open_artifact
    from ..decode.build import is_draft_model
    from ..models.fingerprint import target_fingerprint
    from ..models.head_io import drafter_digest

    if (path / MANIFEST).is_file():
        return open_artifact(path, verify=False).content_hash
    return target_fingerprint(path) if is_draft_model(path) else drafter_digest(path)


def facts_of(options: BuildOptions) -> dict[str, str]:
    """How methods were made, as far as their descriptions do not tell it: two runs may differ in nothing else."""
    from ..core.files import sha256_file
    from ..decode.build_options import is_given, option_of
    from ..decode.graphs import GraphCapture

    wrap = options.wrap
    how = "as they are" if wrap is None else "captured" if isinstance(wrap, GraphCapture) else "compiled"
    facts = {"passes": how}
    heads = {} if options.heads is None else {**vars(options.heads), "given": None}
    for name, values in (("drafting options", vars(options.draft)), ("draft head options", heads)):
        given = [
            f"{option_of(key)} {value}" for key, value in values.items() if is_given(value) and value != ()
        ]
        if given:
            facts[name] = ", ".join(given)
    if options.verifier is not None:
        facts["verifier"] = options.verifier
    if options.draft.tree_file is not None:
        facts["tree file hash"] = sha256_file(options.draft.tree_file)[:16]
    if options.drafter_tokenizer is not None:
        facts["drafter tokenizer"] = str(options.drafter_tokenizer)
    return facts


def provenance_of(
    target: Path,
    tokenizer: TextTokenizer,
    methods: Sequence[Method],
    parents: Mapping[str, str],
    options: BuildOptions,
    *,
    device: str,
    facts: Mapping[str, str] | None = None,
) -> Provenance:
    """What the figures were made with.

    Args:
        methods: plain decoding first.
        parents: hashes by role, the target's under ``target``.
        options: that the methods were made with.
        facts: further ones.
    """
    from ..evaluate.environment import describe_environment
    from ..evaluate.evaluation import Provenance

    return Provenance(
        target=target.resolve().name,
        environment=describe_environment(device=device, dtype=options.dtype),
        fingerprint=parents[TARGET],
        tokenizer=_tokenizer_hash(tokenizer),
        parents=parents,
        facts={f"drafting of {one.name}": one.description for one in methods[1:]}
        | {f"draft head of {one.name}": one.head for one in methods if one.head is not None}
        | facts_of(options)
        | dict(facts or {}),
    )


def _tokenizer_hash(tokenizer: TextTokenizer) -> str:
    """Of everything between a conversation and its token ids: vocabulary, chat template, stop tokens."""
    parts = [tokenizer.fingerprint, tokenizer.chat_template, sorted(tokenizer.eos_ids)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def print_tables(results: Results, output: Path) -> None:
    """What an evaluation ends with: headline, figures, by task, right answers, costs, where outputs part."""

    from ..core.progress import console
    from ..evaluate.report_text import divergence_line, headline, headline_method, law_line
    from ..evaluate.terminal import category_table, count_lines, fault_methods, overview_table, quality_table

    out = stdout_console()
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
    for method in results.methods[1:]:
        if line := law_line(method):
            console().print(line, style="yellow", soft_wrap=True, markup=False)
    out.print(headline(results), style="bold", soft_wrap=True, markup=False)
    if len(results.methods) > 2:
        one = headline_method(results).name
        line = f"Methods against each other: vocabforge report {output} --reference {one}"
        out.print(line, soft_wrap=True, markup=False)
    out.print(f"Report: {output / 'report.html'}", soft_wrap=True, markup=False)
