"""Sections of a model card from the manifest and the evaluations of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.artifact import Artifact
from ..core.errors import MismatchError
from ..evaluate.reports.tables import overview_table
from ..evaluate.results.schema import Results, read_results
from ..evaluate.run.recipe import digest_of


def recipe_of(artifact: Artifact | None) -> dict[str, Any]:
    """Return the training configuration in a drafter's manifest; empty if there is none."""
    config = None if artifact is None else artifact.manifest.get("config")
    return dict(config) if isinstance(config, dict) else {}


def digests_of(drafter: Path, artifact: Artifact | None) -> set[str]:
    """Return the hashes that an evaluation may have recorded for a drafter: its own, and its source's."""
    if artifact is None:
        return {digest_of(drafter)}
    parents = artifact.manifest.get("parents") or {}
    return {artifact.content_hash, *([parents["drafter"]] if "drafter" in parents else [])}


def measured_sections(folders: Sequence[Path], digests: set[str], fingerprint: str) -> list[str]:
    """Return a Markdown section of the card for each evaluation that measured a drafter.

    Args:
        digests: see :func:`digests_of`.
    """
    sections = []
    for folder in folders:
        results = read_results(folder)
        if results.target.fingerprint not in (None, fingerprint):
            raise MismatchError(
                "this evaluation is of another target",
                got=f"{results.target.name}, fingerprint {str(results.target.fingerprint)[:12]}…",
                expected=f"fingerprint {fingerprint[:12]}…",
                source=folder,
            )
        parents = results.parents
        ours = [method for method in results.methods[1:] if parents.get(f"drafter {method.name}") in digests]
        if not ours:
            drafters = [role for role in parents if role.startswith("drafter ")]
            raise MismatchError(
                "this evaluation did not measure this drafter",
                got=", ".join(drafters) or "no drafter",
                expected=" or ".join(f"{digest[:12]}…" for digest in sorted(digests)),
                source=folder,
                remedy="evaluate the drafter that is exported (vocabforge eval --drafter), or leave this --eval out",
            )
        sections.append(_section(results.model_copy(update={"methods": [results.methods[0], *ours]})))
    return sections


def _section(results: Results) -> str:
    facts, temperature = results.environment, results.settings.sampling.get("temperature", 0.0)
    machine = facts.get("gpu") or f"{facts.get('processor')}, threads: {facts.get('threads')}"
    parts = [
        f"{results.answered:,} questions",
        f"temperature {temperature:g}" if temperature else "greedy",
        f"{machine}, {results.target.dtype}, {results.created[:10]}, VocabForge {results.vocabforge}",
    ]
    methods = [f"- `{method.name}`: {method.description}" for method in results.methods[1:]]
    return "\n".join(
        [
            f"## Measured on {results.benchmark.name}",
            "",
            *overview_table(results, page=True).markdown(),
            "",
            *methods,
            "",
            f"By VocabForge's own decoder: {', '.join(parts)}. Accepted length: tokens that one verification commits, "
            "the target's own included. The lines above name the draft vocabulary that was measured. Speed-up: "
            "over plain decoding on the same machine. Ranges: 95% bootstrap intervals over questions.",
        ]
    )
