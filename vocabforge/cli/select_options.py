"""What ``select-vocab`` is asked for: where the ids come from, and which sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UsageError
from ..vocab.coverage import size_for_coverage
from ..vocab.schedule import schedule_sizes
from ..vocab.select import Ids


@dataclass(frozen=True)
class Inputs:
    """Where the ids come from: frequency tables, a text of counts, or a finished list."""

    counts: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    counts_text: Path | None = None
    from_list: Path | None = None
    tokenizer: Path | None = None

    def check(self) -> None:
        """Exactly one source, with the tokenizer that it needs.

        Raises:
            UsageError: none, or several that exclude each other.
        """
        sources = {"--counts": self.counts, "--counts-text": self.counts_text, "--from-list": self.from_list}
        given = [option for option, value in sources.items() if value]
        if len(given) != 1:
            raise UsageError(
                "a draft vocabulary is made from one source",
                got=" and ".join(given) or "none",
                expected=" or ".join(sources),
            )
        if self.domains and not self.counts:
            raise UsageError(f"{given[0]} has no domains", got=f"--domain {self.domains[0]}")
        if not self.counts and self.tokenizer is None:
            raise UsageError(
                f"{given[0]} needs the tokenizer of its ids",
                expected="--tokenizer PATH, or --target with a tokenizer.json in it",
            )


@dataclass(frozen=True)
class Choice:
    """Which sizes are asked for."""

    sizes: tuple[int, ...] = ()
    coverages: tuple[float, ...] = ()
    law: str | None = None
    k_max: int | None = None
    k_min: int | None = None
    steps: int = 7

    def check(self, inputs: Inputs) -> None:
        """Sizes, coverages, or a schedule; nothing with a finished list.

        Raises:
            UsageError: none of them, or some that exclude each other.
        """
        asked = [
            option
            for option, value in (
                ("--size", self.sizes),
                ("--coverage", self.coverages),
                ("--schedule", self.law),
                ("--k-max", self.k_max),
                ("--k-min", self.k_min),
            )
            if value
        ]
        if inputs.from_list is not None:
            if asked:
                raise UsageError("an imported list has its size already", got=", ".join(asked))
        elif not asked:
            raise UsageError(
                "the size of the draft vocabulary is missing",
                expected="--size N, --coverage SHARE, or --schedule LAW --k-max N",
            )
        elif (self.law is None) != (self.k_max is None) or (self.k_min is not None and self.law is None):
            raise UsageError(
                "a schedule needs its law and its largest size",
                got=", ".join(asked),
                expected="--schedule LAW --k-max N",
            )
        elif self.law is not None and (self.sizes or self.coverages):
            raise UsageError(
                "a schedule makes one artefact, of size --k-max",
                got=", ".join(asked),
                remedy="leave the others out",
            )

    def schedule(self) -> tuple[int, ...]:
        """B(0), B(1), ..., empty without a schedule.

        Raises:
            UsageError: an unknown law, or sizes out of order.
        """
        if self.law is None or self.k_max is None:
            return ()
        return schedule_sizes(self.law, self.k_max, self.k_min, self.steps)

    def plan(self, counts: Ids, forced: Sequence[int]) -> list[tuple[int, str]]:
        """(size, what was asked for), in order."""
        if self.law is not None and self.k_max is not None:
            return [(self.k_max, f"schedule {self.law}")]
        plan = [(size, f"size {size}") for size in dict.fromkeys(self.sizes)]
        shares = dict.fromkeys(self.coverages)
        return plan + [(size_for_coverage(counts, share, forced), f"coverage {share:g}") for share in shares]
