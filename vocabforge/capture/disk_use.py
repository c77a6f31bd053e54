"""How much room captured states need and have."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UsageError

_SPARE = 1 << 28


@dataclass(frozen=True)
class DiskUse:
    """Bytes that the cache takes, that are there already, and that are free."""

    total: int
    done: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether the rest fits, with 256 MiB to spare."""
        return self.total - self.done + _SPARE <= self.free


def disk_use(output: Path, total: int, done: int) -> DiskUse:
    """What a cache of ``total`` bytes at ``output`` needs, ``done`` of them being there."""
    where = output.absolute()
    there = next(folder for folder in (where, *where.parents) if folder.exists())
    return DiskUse(total, done, shutil.disk_usage(there).free)


def check_disk(use: DiskUse, output: Path) -> None:
    """Refuse a cache that does not fit.

    Raises:
        UsageError: naming what is needed and what is free.
    """
    if not use.fits:
        raise UsageError(
            "the captured states do not fit on the disk",
            got=f"{gigabytes(use.free)} free",
            expected=f"{gigabytes(use.total - use.done)} more for this cache",
            source=output,
            remedy="use --store-dtype bfloat16, less data, or an --output on another disk; "
            "or train online (capture.cache left out)",
        )


def gigabytes(size: float) -> str:
    """``1.5 GB``, smaller sizes in MB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
