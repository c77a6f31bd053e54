"""Which rows a process works on: the batch of a step is the same however it is divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import ConfigError
from .config import OptimConfig


@dataclass(frozen=True)
class Division:
    """How the rows of a step are divided.

    Attributes:
        rank, size: this process and their number.
        share: rows of one process a step.
        micro: rows of one forward pass.
    """

    rank: int
    size: int
    share: int
    micro: int

    @property
    def passes(self) -> int:
        """Forward passes a step."""
        return self.share // self.micro

    def own(self, rows: Sequence[int]) -> list[list[int]]:
        """This process's micro-batches of a step's rows."""
        mine = rows[self.rank * self.share : (self.rank + 1) * self.share]
        return [list(mine[at : at + self.micro]) for at in range(0, self.share, self.micro)]


def divide(config: OptimConfig, rank: int, size: int) -> Division:
    """Divide ``optim.batch_size`` rows over processes and micro-batches.

    Raises:
        ConfigError: they cannot be divided evenly.
    """
    share = config.batch_size // size
    if share * size != config.batch_size:
        raise ConfigError(
            "the batch cannot be shared evenly",
            got=f"optim.batch_size {config.batch_size} over {size} processes",
            expected=f"a multiple of {size}",
            remedy=f"optim.batch_size={(share + 1) * size}, or launch as many processes as divide it",
        )
    micro = share if config.micro_batch_size is None else min(config.micro_batch_size, share)
    if share % micro:
        whole = -(-share // micro) * micro * size
        raise ConfigError(
            "the micro-batches do not fill a process's share",
            got=f"optim.micro_batch_size {micro} of {share} rows",
            expected=f"a divisor of {share}",
            remedy=f"optim.batch_size={whole}, or optim.micro_batch_size={_divisor(share, micro)}",
        )
    return Division(rank, size, share, micro)


def _divisor(share: int, most: int) -> int:
    """The largest divisor of ``share`` that is not above ``most``."""
    return next(size for size in range(most, 0, -1) if share % size == 0)
