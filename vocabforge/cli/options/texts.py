"""Options shared by commands that read texts and conversations."""

from __future__ import annotations

from typing import Literal

TextUnit = Literal["file", "line", "paragraph"]  # unit of a text file that forms a document


def check_parting(separator: str | None, text_unit: str) -> None:
    """Raise UsageError if both ways of splitting documents are given."""
    from ...core.errors import UsageError

    if separator is not None and text_unit != "file":
        raise UsageError(
            "--separator and --text-unit exclude each other",
            got=f"--text-unit {text_unit}",
            expected="one of them",
            remedy="leave --text-unit out: the separator parts documents",
        )
