"""What training and decoding ask of a drafter that makes all drafts of a block in one pass."""

from __future__ import annotations

from typing import Any, Literal, TypeGuard

from torch import Tensor

from ..kv_cache import CacheView
from .interface import Drafter


class ParallelDrafter(Drafter):
    """A drafter that makes all drafts of a block in one pass; ``max_steps`` is their number.

    Attributes:
        block_rows: rows of a block's own in a pass of decoding, each with a slot behind the committed ones.
        first_everywhere: draft 0 is made at every position anyway: it is (B, T, .), whatever the anchors.
    """

    parallel: Literal[True] = True
    first_everywhere: bool = False

    @property
    def block_rows(self) -> int:
        raise NotImplementedError

    def read_rows(self, drafts: Tensor) -> Tensor:
        """What the head's rows read of what :meth:`draft` gave: (..., H)."""
        raise NotImplementedError

    def token_state(self, before: Tensor) -> Tensor:
        """What ``bias_weight`` is multiplied with, by the token before a draft: (N,) -> (N, r)."""
        raise NotImplementedError

    def draft_blocks(
        self,
        context: Tensor,
        ids: Tensor,
        position: Tensor,
        document: Tensor,
        anchors: Tensor,
        attention: str,
    ) -> list[Tensor]:
        """All drafts of the blocks at some anchors, for training: g (B, A, .) of each draft.

        Args:
            context: (B, T, H) of ``fuse``.
            ids, position, document: (B, T) of the packed rows.
            anchors: int64 (B, A) positions t, -1 for none.
            attention: ``auto``, ``eager`` or ``flex``.
        """
        raise NotImplementedError

    def absorb(self, following: Tensor, states: Tensor, position: Tensor, cached: CacheView) -> Tensor | None:
        """Keep committed positions (decoding); what :meth:`draft` needs of each, (B, L, .), if anything.

        Args:
            following: (B, L) the token after each; ``states`` (B, L, .) the target's; ``position`` (B, L).
            cached: the cache of ``config.num_layers`` layers; a position sees those up to itself.
        """
        raise NotImplementedError

    def draft(self, roots: Tensor, last: Tensor | None, position: Tensor, cached: CacheView) -> Tensor:
        """All drafts behind the last committed tokens (B,): g (B, K, .) (decoding).

        Args:
            last: what :meth:`absorb` gave for the last position.
            position: (B, b) of the block's rows, whose keys go to ``cached.slots`` (B, b).
        """
        raise NotImplementedError


def is_parallel(drafter: Any) -> TypeGuard[ParallelDrafter]:
    """Whether a drafter makes all drafts of a block in one pass."""
    return getattr(drafter, "parallel", False) is True
