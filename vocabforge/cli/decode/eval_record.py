"""Record the inputs of ``vocabforge eval``, and print its result tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..app import print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ...corpus.tokenizer.tokenizer import TextTokenizer
    from ...decode.build.methods import Method
    from ...decode.build.recipe import DecodingRecipe
    from ...decode.build.spec import MethodSpec
    from ...decode.proposers.interface import Wrap
    from ...evaluate.results.schema import Results
    from ...evaluate.run.evaluation import Provenance

TARGET = "target"
# field of a spec -> role of the file it names; other paths are recorded by their own hashes or names
_ROLES = {"drafter": "drafter", "vocab": "vocabulary", "head": "draft head", "overlap": "overlap"}


def parents_of(recipe: DecodingRecipe, methods: Sequence[str]) -> dict[str, str]:
    """Return hashes of the methods' inputs: the target's, then by role and method (``drafter NAME``)."""
    from ...models.target.fingerprint import target_fingerprint

    hashes = {TARGET: target_fingerprint(recipe.target)}
    known: dict[Path, str] = {}
    for name in methods:
        for field, role in _ROLES.items():
            path = getattr(recipe.methods[name], field)
            if path is not None:
                if path not in known:
                    known[path] = digest_of(path)
                hashes[f"{role} {name}"] = known[path]
    return hashes


def digest_of(path: Path) -> str:
    """Return the hash of an artefact, of a model, or of the weights in a serving layout."""
    from ...core.artifact import MANIFEST, open_artifact
    from ...decode.build.methods import kind_of
    from ...decode.build.spec import DRAFT_MODEL
    from ...models.heads.io import drafter_digest
    from ...models.target.fingerprint import target_fingerprint

    if (path / MANIFEST).is_file():
        return open_artifact(path, verify=False).content_hash
    whole = kind_of(path) in (DRAFT_MODEL, "mtp")  # too large to hash all files
    return target_fingerprint(path) if whole else drafter_digest(path)


def settings_of(spec: MethodSpec) -> str:
    """Describe a method's settings that its hashes do not cover: two runs may differ only in these."""
    from ...core.files import sha256_file

    given = spec.model_dump(mode="json", exclude_defaults=True, exclude={*_ROLES, "tree_file"})
    settings = [f"{key} {value}" for key, value in given.items()]
    if spec.tree_file is not None:
        settings.append(f"tree file hash {sha256_file(spec.tree_file)[:16]}")
    return ", ".join(settings) or "defaults"


def passes_of(wrap: Wrap | None) -> str:
    """Describe how passes were run."""
    from ...decode.accelerate.graphs import GraphCapture

    return "as they are" if wrap is None else "captured" if isinstance(wrap, GraphCapture) else "compiled"


def provenance_of(
    recipe: DecodingRecipe,
    methods: Sequence[Method],
    tokenizer: TextTokenizer,
    wrap: Wrap | None,
    device: str,
    *,
    chosen: bool,
) -> Provenance:
    """Return the inputs and settings of the figures.

    Args:
        methods: plain decoding first.
        chosen: whether threads are chosen during decoding.
    """
    from ...core.hub import model_name
    from ...evaluate.run.environment import describe_environment
    from ...evaluate.run.evaluation import Provenance

    names = [one.name for one in methods[1:]]
    parents = parents_of(recipe, names)
    return Provenance(
        target=model_name(recipe.target),
        environment=describe_environment(device=device, dtype=recipe.dtype),
        fingerprint=parents[TARGET],
        # Covers everything between a conversation and its token ids.
        tokenizer=hashlib.sha256(
            json.dumps([tokenizer.fingerprint, tokenizer.chat_template, sorted(tokenizer.eos_ids)]).encode()
        ).hexdigest(),
        parents=parents,
        facts={f"drafting of {one.name}": one.description for one in methods[1:]}
        | {f"draft head of {one.name}": one.head for one in methods if one.head is not None}
        | {"passes": passes_of(wrap)}
        | ({"threads": "chosen while decoding"} if chosen else {})
        | {f"recipe of {name}": settings_of(recipe.methods[name]) for name in names},
    )


def print_results(results: Results, output: Path, *, as_json: bool = False) -> None:
    """Print headline, figures, tasks, right answers, costs, and the places where outputs diverge."""
    if as_json:
        print_json(results.model_dump(mode="json"))
        return
    from ...core.console import console
    from ...evaluate.reports.tables import (
        category_table,
        count_lines,
        distribution_line,
        divergence_line,
        headline,
        load_table,
        overview_table,
        quality_table,
    )

    out = stdout_console()
    out.print(overview_table(results))
    if results.baseline and len(results.methods) > 1 and len(results.methods[0].summary.categories) > 1:
        out.print(category_table(results))
    if results.load:
        out.print(load_table(results))
    if (right := quality_table(results)) is not None:
        out.print(right)
    for line in count_lines(results):
        print_line(line)
    if results.failures:
        left = (
            f"{len(results.failures)} of {results.benchmark.questions} questions were left out (failures in"
        )
        console().print(f"{left} {output / 'results.json'})", style="yellow")
    for method in results.methods[1:]:
        if line := divergence_line(method):
            outputs = method.summary.outputs
            console().print(line, style="red" if outputs and outputs.faults else "yellow")
    for warning in results.warnings:
        console().print(warning, style="yellow")
    for method in results.methods[1:]:
        if line := distribution_line(method):
            console().print(line, style="yellow")
    print_line(headline(results), style="bold")
    if len(results.methods) > 2:
        print_line(f"Methods against each other: vocabforge report {output}")
    print_line(f"Report: {output / 'report.html'}")
