"""Passes of a language model over draft nodes: they lie in cache slots behind the committed positions.

Slot i holds position i up to and with the root, the last committed token at slot C. Draft nodes follow in the
order in which they are expanded, whatever their depth; their rotary position is C + depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...models.kv_cache import KVCache, Sight, line_sight
from ...models.lean.model import LeanModel
from ...ops.trees import WORD
from ..target_side import block_mask, view_length
from .interface import Frontier


class NodeCarry(NamedTuple):
    """The nodes of one drafting so far: the slots looked at, ``used`` nodes over all levels, what each node of the last
    level sees, itself included (``above`` bool (B, W, S); None in a line), and the tokens (B, 1) of the levels at the
    top that have one node each (``line``)."""

    view: Tensor
    used: int = 0
    above: Tensor | None = None
    line: tuple[Tensor, ...] = ()


class NodeStates(NamedTuple):
    """``hidden`` (B, T, H) after the final norm, ``fed`` (B, T, H), the tokens' input embeddings, and, if the passes
    tell it, ``residual`` (B, T, H), the output of the last layer before that norm."""

    hidden: Tensor
    fed: Tensor
    residual: Tensor | None = None


class NodePasses:
    """A model, the cache it drafts in, and the committed length of every row.

    ``layers`` draft (None: all); ``reach`` is the most positions that a layer sees, the token itself included.
    """

    def __init__(self, model: LeanModel, layers: range | None = None, reach: int | None = None) -> None:
        self.model, self.layers, self.reach = model, layers, reach
        self.bits = False  # what nodes see is told by lengths and bits, not by masks
        self.tells_residual = False

    def allocate(self, cache: KVCache, rows: int, positions: int, scratch: int) -> None:
        """Draft in this cache, which has room for the root and ``scratch`` nodes behind all positions."""
        self.cache, device = cache, self.model.device
        self.slots = torch.arange(cache.capacity, device=device)
        size = self._scratch = max(scratch, 1)
        self._own = torch.eye(size, dtype=torch.bool, device=device)
        self.committed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.lengths = [0] * rows  # the same on the host
        self._most = cache.capacity - 1 - scratch
        window = self.model.config.sliding_window
        # Whether there are limits does not depend on the view: a compiled pass serves all views.
        self._window = window if window is not None and cache.capacity > window else None
        self._reach = self.reach if self.reach is not None and positions > self.reach else None
        # The expanded nodes of the last drafted tree, for finding those of the accepted path.
        self._trees = False
        self._tokens = torch.zeros(rows, size, dtype=torch.int64, device=device)
        self._above = torch.zeros(rows, size, size, dtype=torch.bool, device=device)
        self._depths = torch.zeros(size, dtype=torch.int64, device=device)  # 0: no node

    def set_length(self, row: int, length: int) -> None:
        """Committed positions of a row, without its root."""
        self.lengths[row] = length
        self.committed[row] = length

    def forget(self, row: int, padding: int) -> None:
        """Zero a row's keys and values, up to ``padding`` slots behind its nodes.

        Masks are additive, so that NaN of one request would reach the next one through hidden slots.
        """
        used = self.lengths[row] + 1 + self._scratch + padding
        for memory in (self.cache.k, self.cache.v):
            memory[:, row, :, :used] = 0

    def add(self, counts: Tensor) -> None:
        """More committed positions: ``counts`` (B,). The host must :meth:`note` them, too."""
        # A row whose request has ended may lie beyond its positions; its nodes must still find room.
        self.committed.add_(counts).clamp_(max=self._most)

    def note(self, counts: Sequence[int]) -> None:
        """The same on the host."""
        self.lengths = [min(old + new, self._most) for old, new in zip(self.lengths, counts)]

    def view(self, used: int | None = None) -> Tensor:
        """(S',) slots that a pass looks at: the first ``used``, or all that a drafting uses now."""
        if used is None:
            used = self.cache.capacity if self.bits else max(self.lengths) + 1 + self._scratch
        return self.slots[: view_length(used, self.cache.capacity)]

    def line(self, tokens: Tensor, slots: Tensor, view: Tensor, cache: KVCache | None = None) -> NodeStates:
        """Run tokens (B, T) at slots (B, T) that are their positions, in ``cache`` if that is a part of the rows."""
        # A part of a prompt is too long for bits.
        masks = self._line_masks(slots, view, self.bits and cache is None and slots.shape[1] <= WORD)
        return self._run(tokens, slots, slots, masks, cache)

    def begin(self, view: Tensor) -> NodeCarry:
        """A drafting without nodes."""
        self._depths.zero_()
        return NodeCarry(view)

    def expand(self, frontier: Frontier, before: NodeCarry, level: int) -> tuple[NodeStates, NodeCarry]:
        """Run the children (B, W) of the level before, ``level`` levels below the root."""
        tokens, view, used = frontier.tokens, before.view, before.used
        width = tokens.shape[1]
        slots = (self.committed[:, None] + 1) + self.slots[used : used + width]  # (B, W)
        if width == 1 and used == level - 1:  # a line sees all nodes before it
            states = self._run(tokens, slots, slots, self._line_masks(slots, view, self.bits))
            return states, NodeCarry(view, used + 1, None, (*before.line, tokens))
        above = self._own[used : used + width].expand(len(tokens), -1, -1)
        if used:
            pick = frontier.parents[:, :, None].expand(-1, -1, self._scratch)
            above = self._seen(before).gather(1, pick) | above
        self._note(before, tokens, above, level)
        positions = (self.committed + level)[:, None].expand(-1, width)
        if self.bits:
            assert frontier.words is not None
            sight = Sight(self.committed + 1, frontier.words, positions, self._reach)
            states = self._run(tokens, positions, slots, (sight, None))
        else:
            states = self._run(tokens, positions, slots, self._tree_masks(above, positions, view))
        return states, NodeCarry(view, used + width, above)

    def _seen(self, carry: NodeCarry) -> Tensor:
        """bool (B, W, S): what the nodes of the last level see."""
        if carry.above is not None:
            return carry.above
        return self._own[: carry.used].any(0).expand(len(self.committed), 1, -1)

    def _note(self, before: NodeCarry, tokens: Tensor, above: Tensor, level: int) -> None:
        """Write a level, and a line above it, down where a captured pass writes them again.

        What a line's nodes see is not needed: they lie where they belong.
        """
        self._trees = True
        for place, one in enumerate(before.line):
            self._tokens[:, place : place + 1] = one
            # As a slice: a number for one element would be copied from the host.
            self._depths[place : place + 1] = place + 1
        end = before.used + tokens.shape[1]
        self._tokens[:, before.used : end] = tokens
        # Not as a slice: torch's compiler makes invalid code of a disjunction that is written to one (torch 2.13).
        self._above.index_copy_(1, self.slots[before.used : end], above)
        self._depths[before.used : end] = level

    def compact(self, following: Tensor) -> None:
        """Move the keys of the accepted path's nodes to their positions; those of a line are there.

        The path is known by its tokens ``following`` (B, L), as the children of a node differ; L is above the depth of
        every expanded node.
        """
        if not self._trees:
            return
        wrong = self._tokens != following.index_select(1, (self._depths - 1).clamp_(min=0))
        off = (self._above & wrong[:, None]).any(-1)  # (B, S)
        belongs = self.committed[:, None] + self.slots[: following.shape[1]]
        nodes = (self.committed[:, None] + 1) + self.slots[: self._scratch]
        # Column 0 takes what is off the path or no node; levels where nothing is on it stay as they are.
        lies = belongs.scatter(1, torch.where(off, 0, self._depths), nodes)
        self.cache.move(lies[:, 1:], belongs[:, 1:])

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        masks: tuple[Tensor | Sight, Tensor | None],
        cache: KVCache | None = None,
    ) -> NodeStates:
        fed, ran = self.model.embed(tokens), self.layers or range(self.model.config.num_layers)
        output = self.model.forward(
            tokens,
            positions,
            cache=self.cache if cache is None else cache,
            slots=slots,
            mask=masks[0],
            window_mask=masks[1],
            aux_layers=(ran.stop - 1,) if self.tells_residual else (),
            layers=self.layers,
            x=fed,
        )
        return NodeStates(output.hidden, fed, output.aux)

    def _line_masks(self, slots: Tensor, view: Tensor, bits: bool) -> tuple[Tensor | Sight, Tensor | None]:
        if bits:
            return line_sight(slots, self._reach), None
        queries = slots[:, :, None]  # (B, T, 1)
        return self._limited(view <= queries, queries, view)

    def _tree_masks(
        self, above: Tensor, positions: Tensor, view: Tensor
    ) -> tuple[Tensor | Sight, Tensor | None]:
        mask = block_mask(above, self.committed + 1, len(view))
        if self._reach is None and self._window is None:
            return mask, None
        behind = view - (self.committed[:, None] + 1)  # (B, view)
        depths = self._depths[behind.clamp(0, self._scratch - 1)]
        keys = torch.where(behind < 0, view, self.committed[:, None] + depths)
        return self._limited(mask, positions[:, :, None], keys[:, None])

    def _limited(self, mask: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """The masks of full and of windowed layers, from what is visible and the positions on both sides."""
        if self._reach is None and self._window is None:
            return mask, None
        distance = queries - keys
        if self._reach is not None:
            mask = mask & (distance < self._reach)
        return mask, None if self._window is None else mask & (distance < self._window)
