"""Counts that proposers keep (``Proposer.counts``), as figures and as a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Figures = dict[str, int | float | None]

# count -> what it counts; others are shown by name
MEANINGS = {
    "drafted": "tokens of the drafter drawn",
    "draft_contexts": "drafter contexts for them",
    "psi": "string probabilities (psi) evaluated",
    "psi_contexts": "further drafter contexts for those",
}
CONTEXTS_PER_PSI = "contexts_per_psi"


def summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum the counts of several requests."""
    total: dict[str, int] = {}
    for counts in parts:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def figures_of(counts: Mapping[str, int]) -> Figures:
    """Add to counts the ratio ``contexts_per_psi``.

    It is the number of drafter contexts, beyond those of the drawn drafts, per SLRS string probability; None
    if none was evaluated.
    """
    figures: Figures = dict(counts)
    if "psi" in counts:
        figures[CONTEXTS_PER_PSI] = counts.get("psi_contexts", 0) / counts["psi"] if counts["psi"] else None
    return figures


def phrase_of(figures: Mapping[str, int | float | None]) -> str:
    """Describe counts, or the result of :func:`figures_of`, in one sentence; empty if all are 0."""
    counts = {name: int(count) for name, count in figures.items() if name != CONTEXTS_PER_PSI and count}
    known = [name for name in MEANINGS if name in counts]
    order = known + [name for name in counts if name not in MEANINGS]
    parts = [f"{counts[name]:,} {MEANINGS.get(name, name)}" for name in order]
    ratio = figures_of(counts).get(CONTEXTS_PER_PSI)
    if ratio is not None:
        parts.append(f"{ratio:.2f} contexts per psi")
    return ", ".join(parts)
