"""What this process is among the launched ones, read from the launcher's environment."""

from __future__ import annotations

import os

from .errors import UsageError


def rank() -> int:
    """Rank of this process, 0 without a launcher."""
    return _number("RANK", 0)


def world_size() -> int:
    """Number of launched processes, 1 without a launcher."""
    return _number("WORLD_SIZE", 1)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError as error:
        raise UsageError(
            "the launcher's environment is broken",
            got=f"{name}={text!r}",
            expected="a whole number",
            remedy=f"unset {name}",
        ) from error
