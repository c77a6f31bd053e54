"""What this process is among the launched ones, read from the launcher's environment."""

from __future__ import annotations

import os


def rank() -> int:
    """Rank of this process, 0 without a launcher."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Number of launched processes, 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))
