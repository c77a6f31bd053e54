"""What the commands that read texts and conversations share."""

from __future__ import annotations

from typing import Literal

TextUnit = Literal["file", "line", "paragraph"]  # what one document of a text file is


def check_parting(separator: str | None, text_unit: str) -> None:
    """Raises: UsageError: two ways of parting documents."""
    from ...core.errors import UsageError

    if separator is not None and text_unit != "file":
        raise UsageError(
            "--separator and --text-unit exclude each other",
            got=f"--text-unit {text_unit}",
            expected="one of them",
            remedy="leave --text-unit out: the separator parts documents",
        )
