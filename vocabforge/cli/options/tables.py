"""Frequency tables as the commands are given them: ``DIR``, ``DIR=WEIGHT``, ``NAME=DIR``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...vocab.counts.mixtures import TablePart


def split_weight(text: str, option: str, known: Sequence[str] = ()) -> tuple[str, float | None]:
    """``X=0.7`` -> (X, 0.7); ``X`` -> (X, None). What is ``known``, or exists as a path, is never split."""
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
    """One table with the hash of its artefact."""
    from ...core.artifact import open_artifact
    from ...vocab.counts.mixtures import TablePart
    from ...vocab.counts.table import load_counts

    table = load_counts(path)
    return TablePart(name, table, weight, open_artifact(path, "counts", verify=False).content_hash)
