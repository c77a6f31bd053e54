"""The model card of ``vocabforge export``: what manifests and evaluations say of a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...core.artifact import Artifact
    from ...evaluate.results.schema import Figure, MethodResults, Outputs, Results
    from ...export.card import MeasuredMethod


def recipe_of(artifact: Artifact | None) -> dict[str, Any]:
    """The configuration that a drafter was trained with, as its manifest has it; empty where it has none."""
    config = None if artifact is None else artifact.manifest.get("config")
    return dict(config) if isinstance(config, dict) else {}


def digests_of(drafter: Path, artifact: Artifact | None) -> set[str]:
    """Hashes that an evaluation may have recorded for a drafter: its own, and what it was exported from."""
    from ...models.heads.io import drafter_digest

    if artifact is None:
        return {drafter_digest(drafter)}
    parents = artifact.manifest.get("parents") or {}
    return {artifact.content_hash, *([parents["drafter"]] if "drafter" in parents else [])}


def measured_in(
    folders: Sequence[Path], digests: set[str], fingerprint: str, rows: int, vocab: str | None
) -> list[MeasuredMethod]:
    """The methods of evaluations that drafted with a drafter.

    Those with the exported draft vocabulary, if an evaluation has one; else all of them.

    Args:
        digests: see :func:`digests_of`. fingerprint: of the target.
        rows: of the exported head. vocab: content hash of the subset artefact it was restricted to.

    Raises:
        DataError: no results there.
        MismatchError: another target, or a run without this drafter.
    """
    from ...core.errors import MismatchError
    from ...evaluate.results.schema import read_results

    found = []
    for folder in folders:
        results = read_results(folder)
        if results.target.fingerprint not in (None, fingerprint):
            raise MismatchError(
                "this evaluation is of another target",
                got=f"{results.target.name}, fingerprint {str(results.target.fingerprint)[:12]}…",
                expected=f"fingerprint {fingerprint[:12]}…",
                source=folder,
            )
        ours = [one for one in results.methods[1:] if results.parents.get(f"drafter {one.name}") in digests]
        if not ours:
            drafters = [role for role in results.parents if role.startswith("drafter ")]
            raise MismatchError(
                "this evaluation did not measure this drafter",
                got=", ".join(drafters) or "no drafter",
                expected=" or ".join(f"{digest[:12]}…" for digest in sorted(digests)),
                source=folder,
                remedy="evaluate the drafter that is exported (vocabforge eval --drafter), or leave this --eval out",
            )
        same = [one for one in ours if _is_same(one, results, rows, vocab)]
        found += [_row(one, results, bool(same)) for one in same or ours]
    return found


def _is_same(method: MethodResults, results: Results, rows: int, vocab: str | None) -> bool:
    """Whether a method scored the exported head: by its vocabulary's hash if it used one, else by its size."""
    found, used = method.vocabulary, results.parents.get(f"vocabulary {method.name}")
    if found is None or found.kind not in ("full", "static") or found.size != rows:
        return False
    return used is None or vocab is None or used == vocab


def _row(method: MethodResults, results: Results, same: bool) -> MeasuredMethod:
    from ...export.card import MeasuredMethod

    overall, found = method.summary.overall, method.vocabulary
    facts, sampling = results.environment, results.settings.sampling
    machine = facts.get("gpu") or f"{facts.get('processor')}, {facts.get('threads')} threads"
    temperature = sampling.get("temperature", 0.0)
    law = f"temperature {temperature:g}" if temperature else "greedy"
    verifier = f", verifier {method.verifier}" if method.verifier else ""
    answered = results.answered
    return MeasuredMethod(
        benchmark=f"{results.benchmark.name}, {answered:,} question{'' if answered == 1 else 's'}",
        decoding=f"{', '.join(method.description.split(', ')[:2])}, {law}{verifier}",
        vocabulary="–" if found is None else f"{found.size:,} of {found.of:,} ({found.kind})",
        accepted=_with(overall.accepted_length),
        speedup=_with(overall.speedup),
        tokens_per_s=_with(overall.tokens_per_s, 1),
        outputs=_outputs(method.summary.outputs) if method.lossless else "not lossless",
        made=f"{machine}, {results.target.dtype}, {results.created[:10]}, VocabForge {results.vocabforge}",
        same=same,
    )


def _with(figure: Figure, digits: int = 2) -> str:
    from ...evaluate.reports.tables import interval, number

    between = interval(figure, digits)
    return number(figure.value, digits) + (f" [{between}]" if between else "")


def _outputs(outputs: Outputs | None) -> str:
    from ...evaluate.reports.tables import judgements

    if outputs is None:
        return "sampled, not compared"
    others = judgements(outputs)
    said = f"{outputs.identical:,} of {outputs.compared:,} identical to plain decoding's"
    return f"{said} ({others})" if others else said
