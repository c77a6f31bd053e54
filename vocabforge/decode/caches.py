"""The caches of a decoder: how large they are, whether they can be trusted, and who may use them."""

from __future__ import annotations

from weakref import WeakKeyDictionary, ref

import torch

from .accelerate.graphs import GraphCapture
from .proposers.interface import PLAIN_PLAN, WrapsPasses
from .proposers.registry import Proposer
from .target_side import TargetSide

FIRST_POSITIONS = 2048  # room in new caches; longer requests make it grow

# A proposer's memory belongs to the caches that were made last with it.
_OWNERS: WeakKeyDictionary[Proposer, ref[Caches]] = WeakKeyDictionary()


class Caches:
    """A target's cache and its proposer's memory, which other decoders of the same proposer may take.

    Args:
        capture: has recorded passes over these caches, which are forgotten when they move.
        context: most positions of a request.
        grow: start with room for ``FIRST_POSITIONS``; else with the whole context.
        spare: positions beyond those of requests.
    """

    def __init__(
        self,
        side: TargetSide,
        proposer: Proposer | None,
        capture: GraphCapture | None,
        context: int,
        *,
        grow: bool,
        spare: int = 0,
    ) -> None:
        self._side, self._proposer, self._capture, self._context = side, proposer, capture, context
        self._scratch = max(proposer.plan.nodes, proposer.scratch) if proposer else PLAIN_PLAN.nodes
        self._claims, self._spare = 0, spare
        self.allocate(min(context, FIRST_POSITIONS) if grow else context)

    def allocate(self, positions: int) -> None:
        """Caches for requests of this many positions; what the old ones hold is lost."""
        self._claims += 1
        self._damaged = True  # until all of them are there: memory may run out between two
        if self._capture is not None:
            self._capture.forget()
        self._side.allocate(positions + self._spare, self._scratch)
        if self._proposer is not None:
            # Before anything of it changes: what is made by half is not the former owner's any more.
            _OWNERS[self._proposer] = ref(self)
            if self._capture is not None and isinstance(self._proposer, WrapsPasses):
                # The proposer may have been another decoder's, with that one's passes.
                self._proposer.wrap(self._capture)
            self._proposer.allocate(self._side.rows, positions + self._spare, self._side.cache)
        self._positions, self._damaged = positions, False

    def reserve(self, positions: int) -> None:
        """Grow to the next power of two that holds ``positions``, at most the context; mend what cannot be trusted."""
        size = self._positions
        if min(positions, self._context) > size:
            size = min(self._context, 1 << (positions - 1).bit_length())
        if size > self._positions or self._damaged or self._taken():
            with torch.inference_mode(False):  # as in the decoder's constructor: usable in both modes
                self.allocate(size)

    def claim(self, positions: int) -> int:
        """Room for new requests; the claim holds until the next one, or until the caches move."""
        self.reserve(positions)
        self._claims += 1
        return self._claims

    def holds(self, claim: int) -> bool:
        """Whether the caches, the proposer's memory among them, still hold what was put there under this claim."""
        return claim == self._claims and not self._taken()

    def _taken(self) -> bool:
        """Whether the proposer's memory is another decoder's by now."""
        return self._proposer is not None and _OWNERS[self._proposer]() is not self

    def distrust(self) -> None:
        """Half a cycle may be in them, or NaN: the next claim makes new ones."""
        self._damaged = True
