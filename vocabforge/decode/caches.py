"""The caches of a decoder: their size, validity and owner."""

from __future__ import annotations

from weakref import WeakKeyDictionary, ref

import torch

from .accelerate.graphs import GraphCapture
from .interface import PLAIN_PLAN
from .proposers.registry import Proposer
from .target_side import TargetSide

FIRST_POSITIONS = 2048  # initial room in new caches; longer requests grow them

# A proposer's memory belongs to the caches that allocated it last.
_OWNERS: WeakKeyDictionary[Proposer, ref[Caches]] = WeakKeyDictionary()


class Caches:
    """A target's cache and its proposer's memory, which other decoders of the same proposer may take over.

    Args:
        capture: records passes over these caches; they are dropped when the caches are reallocated.
        context: maximum positions of a request.
        grow: start with room for ``FIRST_POSITIONS`` instead of the whole context.
    """

    def __init__(
        self,
        side: TargetSide,
        proposer: Proposer | None,
        capture: GraphCapture | None,
        context: int,
        *,
        grow: bool,
    ) -> None:
        self._side, self._proposer, self._capture, self._context = side, proposer, capture, context
        self._scratch = max(proposer.plan.nodes, proposer.scratch) if proposer else PLAIN_PLAN.nodes
        self._claims = 0
        self.allocate(min(context, FIRST_POSITIONS) if grow else context)

    def allocate(self, positions: int) -> None:
        """Allocate caches for requests of this many positions; the old contents are lost."""
        self._claims += 1
        self._damaged = True  # until all caches exist: memory may run out in between
        if self._capture is not None:
            self._capture.forget()
        self._side.allocate(positions, self._scratch)
        if self._proposer is not None:
            # Take ownership before changing anything: a partial allocation invalidates the former owner's
            # data.
            _OWNERS[self._proposer] = ref(self)
            if self._capture is not None:
                # Another decoder may have wrapped the proposer with its own passes.
                self._proposer.wrap(self._capture)
            self._proposer.allocate(self._side.rows, positions, self._side.cache)
        self._positions, self._damaged = positions, False

    def reserve(self, positions: int) -> None:
        """Grow to a power of two that holds ``positions``, at most the context; replace invalid caches."""
        size = self._positions
        if min(positions, self._context) > size:
            size = min(self._context, 1 << (positions - 1).bit_length())
        if size > self._positions or self._damaged or self._taken():
            with torch.inference_mode(False):  # as in the decoder's constructor: usable in both modes
                self.allocate(size)

    def claim(self, positions: int) -> int:
        """Reserve room for new requests; return a claim, valid until the next one or a reallocation."""
        self.reserve(positions)
        self._claims += 1
        return self._claims

    def holds(self, claim: int) -> bool:
        """Return whether all data written under this claim is still there, the proposer's included."""
        return claim == self._claims and not self._taken()

    def _taken(self) -> bool:
        """Return whether another decoder has taken over the proposer's memory."""
        return self._proposer is not None and _OWNERS[self._proposer]() is not self

    def distrust(self) -> None:
        """Invalidate the caches, which may hold half a cycle or NaN; the next claim replaces them."""
        self._damaged = True
