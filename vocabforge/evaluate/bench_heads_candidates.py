"""The ways of drafting that ``vocabforge bench draft-heads`` compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..core.artifact import open_artifact
from ..decode.build_heads import parse_budget
from ..models.head_io import drafter_digest
from ..models.heads import HeadOptions
from .bench_heads_options import HeadBenchOptions
from .bench_heads_table import FULL


@dataclass(frozen=True)
class Candidate:
    """One way of drafting that is compared.

    Attributes:
        method: its name in the table.
        setting: what it was set to.
        drafter: folder of the drafter.
        vocab: draft vocabulary that its head is restricted to.
        head: trained draft head over it; None is the drafter's own.
        options: how that head is used.
    """

    method: str
    setting: str
    drafter: Path
    vocab: Path | None = None
    head: Path | None = None
    options: HeadOptions = field(default_factory=HeadOptions)

    def key(self) -> dict[str, Any]:
        """What its result depends on, by content."""
        return {
            "method": self.method,
            "setting": self.setting,
            "drafter": drafter_digest(self.drafter),
            "vocab": None if self.vocab is None else open_artifact(self.vocab, verify=False).content_hash,
            "head": None if self.head is None else open_artifact(self.head, verify=False).content_hash,
            "options": asdict(self.options),
        }


@dataclass(frozen=True)
class TrainedParts:
    """Everything that was trained or selected for one seed.

    Attributes:
        drafter: full vocabulary; ``heads`` by kind were trained with it.
        reduced: drafter of each size that was trained over a reduced vocabulary.
        ranker: trained alone on ``drafter``, which stayed as it was.
        router: trained on ``drafter``.
        subsets: draft vocabularies ``fr-R`` and ``trim-R``.
        vocab_size: V.
        rank: of the low-rank head; None is its default.
    """

    drafter: Path
    heads: Mapping[str, Path]
    reduced: Mapping[int, Path]
    ranker: Path
    router: Path
    subsets: Mapping[str, Path]
    vocab_size: int
    rank: int | None


def candidates(parts: TrainedParts, options: HeadBenchOptions) -> list[Candidate]:
    """Every row of the table, the full head first."""
    drafter, sizes = parts.drafter, options.draft_vocabs
    found = [Candidate(FULL, f"V = {parts.vocab_size:,}", drafter)]
    found += [Candidate("EAGLE-3 reduced", f"R = {size:,}", parts.reduced[size]) for size in sizes]
    for method, name in (("FR-Spec", "fr"), ("VocabTrim", "trim")):
        found += [
            Candidate(method, f"R = {size:,}", drafter, vocab=parts.subsets[f"{name}-{size}"])
            for size in sizes
        ]
    for method, path in (("ranker, joint", parts.heads["ranker"]), ("ranker, alone", parts.ranker)):
        found += [
            Candidate(method, f"k = {k:,}", drafter, head=path, options=HeadOptions(shortlist=k))
            for k in options.shortlists
        ]
    rank = "default rank" if parts.rank is None else f"rank {parts.rank}"
    found.append(Candidate("low-rank", rank, drafter, head=parts.heads["low-rank"]))
    for text in options.budget_texts():
        budgets = HeadOptions(budgets=parse_budget(text, options.tree.levels))
        setting = f"{text} of {options.clusters}"
        found.append(Candidate("router", setting, drafter, head=parts.router, options=budgets))
    return found
