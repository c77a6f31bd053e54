"""Frequency tables as the commands are given them: ``DIR``, ``DIR=WEIGHT``, ``NAME=DIR``, domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...vocab.counts.mixtures import TablePart
    from ...vocab.counts.table import FrequencyTable


@dataclass(frozen=True, eq=False)
class TableInput:
    """A frequency table and what it was made from.

    Attributes:
        table: the counts that a command works on.
        parents: content hashes of the artefacts by role.
        given: the options as facts, for ``--json``.
    """

    table: FrequencyTable
    parents: dict[str, str]
    given: list[dict[str, Any]]


def split_weight(text: str, option: str, known: Sequence[str] = ()) -> tuple[str, float | None]:
    """``X=0.7`` -> (X, 0.7); ``X`` -> (X, None). What is ``known``, or exists as a path, is never split.

    Raises:
        UsageError: what follows the last ``=`` is no number.
    """
    from ...core.errors import UsageError

    head, separator, tail = text.rpartition("=")
    if not separator or text in known or Path(text).exists():
        return text, None
    try:
        return head, float(tail)
    except ValueError as error:
        raise UsageError(
            "the weight is no number", got=text, source=option, expected=f"{option} {head}=0.7"
        ) from error


def load_part(name: str, path: Path, weight: float = 1.0) -> TablePart:
    """One table with the hash of its artefact.

    Raises:
        ArtifactError: no frequency table.
    """
    from ...core.artifact import open_artifact
    from ...vocab.counts.mixtures import TablePart
    from ...vocab.counts.table import load_counts

    table = load_counts(path)
    return TablePart(name, table, weight, open_artifact(path, "counts", verify=False).content_hash)


def load_table(counts: Sequence[str], domains: Sequence[str] = ()) -> TableInput:
    """The table of ``--counts`` options (one, or several with weights) and ``--domain`` options.

    Raises:
        UsageError: several tables without weights, an unknown domain, weights for some only.
        VocabForgeError: tables that are missing or do not belong together.
    """
    from ...core.errors import UsageError
    from ...vocab.counts.mixtures import choose_domains, mix_tables

    given = [split_weight(text, "--counts") for text in counts]
    if len(given) > 1 and any(weight is None for _, weight in given):
        raise UsageError(
            "several frequency tables need a weight each",
            got=", ".join(counts),
            expected="--counts DIR=0.7 --counts OTHER=0.3",
            remedy="or add them first: vocabforge merge-freq DIR OTHER --output BOTH",
        )
    parts = [load_part(path, Path(path), 1.0 if weight is None else weight) for path, weight in given]
    table = parts[0].table if len(parts) == 1 else mix_tables(parts)
    if domains:
        wanted = [split_weight(text, "--domain", list(table.domains)) for text in domains]
        table = choose_domains(table, dict(wanted))
    roles = ["counts"] if len(parts) == 1 else [f"counts {number}" for number in range(1, len(parts) + 1)]
    parents = {role: str(part.content_hash) for role, part in zip(roles, parts)}
    facts = [{"path": path, "weight": weight} for path, weight in given]
    return TableInput(table, parents, facts)
