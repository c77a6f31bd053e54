"""Passes of a language model over draft nodes in the cache slots after the committed positions.

Slot i holds position i up to and including the root, the last committed token, at slot C. Draft nodes follow
in the order of their expansion, regardless of depth; their rotary position is C + depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...models.kv_cache import TreeMask
from ...models.lean.model import LeanModel
from ...models.target.interface import Target
from ...ops.trees import WORD
from ..accelerate.graphs import GraphCapture
from ..interface import Frontier, Wrap
from ..positions import block_mask, view_length


class NodeCarry(NamedTuple):
    """The nodes of a draft so far."""

    view: Tensor  # slots that passes read
    used: int = 0  # number of nodes over all levels
    # bool (B, W, S) nodes that each node of the last level attends to, including itself; None in a line
    above: Tensor | None = None
    line: tuple[Tensor, ...] = ()  # tokens (B, 1) of the top levels that have one node each


class NodeStates(NamedTuple):
    """Outputs of a pass."""

    hidden: Tensor  # (B, T, H) after the final norm
    fed: Tensor  # (B, T, H) input embeddings of the tokens
    # (B, T, H) output of the last layer before that norm, if the passes return it.
    residual: Tensor | None = None


class NodePasses:
    """A model, the cache in which it drafts, and the committed length of every row.

    ``layers`` draft (None: all; some: a lean model only); ``reach`` is the maximum number of positions that a
    layer attends to, the token itself included.
    """

    def __init__(self, model: Target, layers: range | None = None, reach: int | None = None) -> None:
        self.model, self.layers, self.reach = model, layers, reach
        self._captured = False
        self.bits = False  # attention takes lengths and bits instead of masks
        self.tells_residual = False

    def wrap(self, wrap: Wrap) -> None:
        self._captured = isinstance(wrap, GraphCapture)
        if isinstance(self.model, LeanModel):
            self.model.widen()
        self.bits = self._captured and isinstance(self.model, LeanModel)

    def allocate(self, cache: Any, rows: int, positions: int, scratch: int) -> None:
        """Draft in this cache, which has room for the root and ``scratch`` nodes after all positions."""
        self.cache, device = cache, self.model.device
        self.slots = torch.arange(cache.capacity, device=device)
        size = self._scratch = max(scratch, 1)
        self._own = torch.eye(size, dtype=torch.bool, device=device)
        self.committed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.lengths = [0] * rows  # host copy of ``committed``
        self._most = cache.capacity - 1 - scratch
        window = self.model.config.sliding_window
        # Whether limits apply does not depend on the view: a compiled pass serves all views.
        self._window = window if window is not None and cache.capacity > window else None
        self._reach = self.reach if self.reach is not None and positions > self.reach else None
        # Expanded nodes of the last drafted tree, used to find those of the accepted path.
        self._trees = False
        self._tokens = torch.zeros(rows, size, dtype=torch.int64, device=device)
        self._above = torch.zeros(rows, size, size, dtype=torch.bool, device=device)
        self._depths = torch.zeros(size, dtype=torch.int64, device=device)  # 0: no node

    def set_length(self, row: int, length: int) -> None:
        """Set the committed positions of a row, without its root."""
        self.lengths[row] = length
        self.committed[row] = length

    def forget(self, row: int, padding: int) -> None:
        """Zero a row's keys and values, up to ``padding`` slots after its nodes.

        Masks are additive, so NaN of one request would reach the next through hidden slots.
        """
        self.cache.zero(row, self.lengths[row] + 1 + self._scratch + padding)

    def add(self, counts: Tensor) -> None:
        """Add ``counts`` (B,) committed positions; the host must also call :meth:`note`."""
        # A row whose request has ended may be beyond its positions; its nodes must still fit.
        self.committed.add_(counts).clamp_(max=self._most)

    def note(self, counts: Sequence[int]) -> None:
        """Add committed positions on the host."""
        self.lengths = [min(old + new, self._most) for old, new in zip(self.lengths, counts)]

    def view(self, used: int | None = None) -> Tensor:
        """Return the slots (S',) that a pass reads: the first ``used``, or all that a draft uses now."""
        if used is None:
            used = self.cache.capacity if self._captured else max(self.lengths) + 1 + self._scratch
        return self.slots[: view_length(used, self.cache.capacity)]

    def line(self, tokens: Tensor, slots: Tensor, view: Tensor, cache: Any = None) -> NodeStates:
        """Run tokens (B, T) at slots (B, T) equal to their positions; ``cache``: for a part of the rows."""
        # A part of a prompt is too long for bits.
        masks = self._line_masks(slots, view, self.bits and cache is None and slots.shape[1] <= WORD)
        return self._run(tokens, slots, slots, masks, cache)

    def begin(self, view: Tensor) -> NodeCarry:
        """Start a draft without nodes."""
        self._depths.zero_()
        return NodeCarry(view)

    def expand(self, frontier: Frontier, before: NodeCarry, level: int) -> tuple[NodeStates, NodeCarry]:
        """Run the children (B, W) of the previous level, ``level`` levels below the root."""
        tokens, view, used = frontier.tokens, before.view, before.used
        width = tokens.shape[1]
        slots = (self.committed[:, None] + 1) + self.slots[used : used + width]  # (B, W)
        if width == 1 and used == level - 1:  # nodes of a line attend to all nodes before them
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
            mask = TreeMask(self.committed + 1, frontier.words, positions, self._reach)
            states = self._run(tokens, positions, slots, (mask, None))
        else:
            states = self._run(tokens, positions, slots, self._tree_masks(above, positions, view))
        return states, NodeCarry(view, used + width, above)

    def _seen(self, carry: NodeCarry) -> Tensor:
        """Return the nodes that each node of the last level attends to, bool (B, W, S)."""
        if carry.above is not None:
            return carry.above
        return self._own[: carry.used].any(0).expand(len(self.committed), 1, -1)

    def _note(self, before: NodeCarry, tokens: Tensor, above: Tensor, level: int) -> None:
        """Record a level, and a line above it, in tensors that a captured pass writes in every replay.

        Ancestors are not recorded for the nodes of a line, which are already in place.
        """
        self._trees = True
        for place, line_tokens in enumerate(before.line):
            self._tokens[:, place : place + 1] = line_tokens
            # Assigning to a slice avoids copying the number from the host.
            self._depths[place : place + 1] = place + 1
        end = before.used + tokens.shape[1]
        self._tokens[:, before.used : end] = tokens
        # Not a slice assignment: torch's compiler generates invalid code for a disjunction there (torch
        # 2.13).
        self._above.index_copy_(1, self.slots[before.used : end], above)
        self._depths[before.used : end] = level

    def compact(self, following: Tensor) -> None:
        """Move the keys of the accepted path's nodes to their positions; those of a line are in place.

        The path is identified by its tokens ``following`` (B, L), because siblings differ; L is above the
        depth of every expanded node.
        """
        if not self._trees:
            return
        wrong = self._tokens != following.index_select(1, (self._depths - 1).clamp_(min=0))
        off = (self._above & wrong[:, None]).any(-1)  # (B, S)
        belongs = self.committed[:, None] + self.slots[: following.shape[1]]
        nodes = (self.committed[:, None] + 1) + self.slots[: self._scratch]
        # Column 0 collects nodes off the path and empty entries; levels without a node on it do not change.
        lies = belongs.scatter(1, torch.where(off, 0, self._depths), nodes)
        self.cache.move(lies[:, 1:], belongs[:, 1:])

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        masks: tuple[Tensor | TreeMask, Tensor | None],
        cache: Any = None,
    ) -> NodeStates:
        fed, ran = self.model.embed(tokens), self.layers or range(self.model.config.num_layers)
        part = {"layers": self.layers, "x": fed} if isinstance(self.model, LeanModel) else {}
        output = self.model.forward(
            tokens,
            positions,
            cache=self.cache if cache is None else cache,
            slots=slots,
            mask=masks[0],
            window_mask=masks[1],
            aux_layers=(ran.stop - 1,) if self.tells_residual else (),
            **part,
        )
        return NodeStates(output.hidden, fed, output.aux)

    def _line_masks(self, slots: Tensor, view: Tensor, bits: bool) -> tuple[Tensor | TreeMask, Tensor | None]:
        if bits:
            return TreeMask.chain(slots, self._reach), None
        queries = slots[:, :, None]  # (B, T, 1)
        return self._limited(view <= queries, queries, view)

    def _tree_masks(
        self, above: Tensor, positions: Tensor, view: Tensor
    ) -> tuple[Tensor | TreeMask, Tensor | None]:
        mask = block_mask(above, self.committed + 1, len(view))
        if self._reach is None and self._window is None:
            return mask, None
        behind = view - (self.committed[:, None] + 1)  # (B, view)
        depths = self._depths[behind.clamp(0, self._scratch - 1)]
        keys = torch.where(behind < 0, view, self.committed[:, None] + depths)
        return self._limited(mask, positions[:, :, None], keys[:, None])

    def _limited(self, mask: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the masks of full and windowed layers from visible slots and positions of both sides."""
        if self._reach is None and self._window is None:
            return mask, None
        distance = queries - keys
        if self._reach is not None:
            mask = mask & (distance < self._reach)
        return mask, None if self._window is None else mask & (distance < self._window)
