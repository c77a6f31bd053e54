"""The interface of parallel drafters, which compute all drafts of a block in one pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, TypeGuard

from torch import Tensor

from ..kv_cache import CacheView
from .interface import Drafter


class ParallelDrafter(Drafter, ABC):
    """A drafter that computes all drafts of a block in one pass; ``max_steps`` is their number.

    Attributes:
        block_rows: rows of a block in a decoding pass, each with a slot after the committed ones.
        first_everywhere: draft 0 is computed at every position regardless of the anchors: (B, T, .).
    """

    parallel: Literal[True] = True
    first_everywhere: bool = False

    @property
    @abstractmethod
    def block_rows(self) -> int: ...

    @abstractmethod
    def read_rows(self, drafts: Tensor) -> Tensor:
        """Return the LM head's input for the output of :meth:`draft`: (..., H)."""

    def token_state(self, before: Tensor) -> Tensor:
        """Return the factors of ``bias_weight`` for the token before a draft: (N,) -> (N, r), none without it."""
        return self.embedding.new_empty(*before.shape, 0)

    @abstractmethod
    def draft_blocks(
        self,
        context: Tensor,
        ids: Tensor,
        position: Tensor,
        document: Tensor,
        anchors: Tensor,
        attention: str,
    ) -> list[Tensor]:
        """Compute all drafts of the blocks at some anchors, for training: g (B, A, .) of each draft.

        Args:
            context: (B, T, H) output of ``fuse``.
            ids, position, document: (B, T) of the packed rows.
            anchors: int64 (B, A) positions t, -1 for none.
            attention: ``auto``, ``eager`` or ``flex``.
        """

    @abstractmethod
    def absorb(self, following: Tensor, states: Tensor, position: Tensor, cached: CacheView) -> Tensor | None:
        """Store committed positions (decoding); return their states (B, L, .) for :meth:`draft`, if any.

        Args:
            following: (B, L) the token after each position.
            states: (B, L, .) the target's states.
            position: (B, L).
            cached: the cache of ``config.num_layers`` layers; a position attends to those up to itself.
        """

    @abstractmethod
    def draft(self, roots: Tensor, last: Tensor | None, position: Tensor, cached: CacheView) -> Tensor:
        """Compute all drafts after the last committed tokens (B,) (decoding): g (B, K, .).

        Args:
            last: output of :meth:`absorb` for the last position.
            position: (B, b) of the block's rows, whose keys are written to ``cached.slots`` (B, b).
        """


def is_parallel(drafter: Any) -> TypeGuard[ParallelDrafter]:
    """Return whether a drafter computes all drafts of a block in one pass."""
    return getattr(drafter, "parallel", False) is True
