"""The target's half of a cycle: its cache, one pass over tree nodes, compaction, and attention masks.

Lengths are rounded up to multiples of ``VIEW_STEP`` slots, so that shapes repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..models.kv_cache import Mask, TreeMask, causal_mask, near_rule
from ..models.lean.model import LeanModel
from ..models.target.interface import Target
from .accelerate.graphs import GraphCapture
from .interface import Wrap
from .positions import block_mask, near_mask, view_length
from .tree import DraftTree
from .verify.greedy import decide_greedy

PREFILL_CHUNK = 512


class TargetPass(NamedTuple):
    """``hidden`` (B, N, H) after the final norm, ``aux`` (B, N, n * H) or None, ``logits`` (B, N, V) or None.

    ``decision``: path and numbers of ``decide_greedy``, instead of the logits.
    """

    hidden: Tensor
    aux: Tensor | None
    logits: Tensor | None = None
    decision: tuple[Tensor, Tensor] | None = None

    def states(self, reads: str) -> Tensor | None:
        """Return the states that a proposer reads."""
        return {"aux": self.aux, "hidden": self.hidden, "none": None}[reads]


class TargetSide:
    """A target with the cache of B rows.

    Passes also return the outputs of ``aux_layers``; ``wrap`` speeds up passes over trees.
    """

    def __init__(
        self, target: Target, aux_layers: tuple[int, ...], rows: int, wrap: Wrap | None = None
    ) -> None:
        self.target, self.aux_layers, self.rows = target, aux_layers, rows
        self._wrap, self.eager = wrap, wrap is None
        self._captured = isinstance(wrap, GraphCapture)
        # Captured passes of lean models take lengths and bits instead of mask tensors.
        self._lean = isinstance(target, LeanModel)
        if wrap is not None and isinstance(target, LeanModel):
            target.widen()
        self._bits = self._captured and self._lean
        config = target.config
        self._near = near_rule(config.sliding_window, config.chunk)
        self._near_size = config.chunk or config.sliding_window or 0
        self._passes: dict[tuple[object, ...], Callable[..., Any]] = {}

    def allocate(self, positions: int, scratch: int) -> None:
        """Allocate ``positions`` slots followed by ``scratch`` slots; the old contents are lost."""
        self.cache: Any = self.target.new_cache(positions + scratch, self.rows)
        self._slots = torch.arange(self.cache.capacity, device=self.target.device)
        self.committed = torch.zeros(self.rows, dtype=torch.int64, device=self.target.device)
        self.lengths = [0] * self.rows  # host copy of ``committed``

    def prefill(self, row: int, ids: Tensor, reads: str) -> tuple[Tensor, list[Tensor | None]]:
        """Prefill the next prompt tokens (T,) of a row in chunks of :data:`PREFILL_CHUNK`.

        Returns:
            the last logits (V,), and the states (T', .) of each chunk that the proposer reads.
        """
        chunks: list[Tensor | None] = []
        cache = self.cache.row(row)
        start = self.lengths[row]
        output = None
        for part in ids.split(PREFILL_CHUNK):
            used = start + len(part)
            positions, view = self._slots[start:used], self._slots[:used]
            mask: Tensor | int = used  # for a single token
            near = None
            if len(part) > 1 or self._reaches(used):
                mask = causal_mask(positions, view)
                if self._near is not None and self._reaches(used):
                    near = mask & self._near(positions[:, None], view[None])
            output = self.target.forward(
                part[None],
                positions[None],
                cache=cache,
                slots=positions,
                mask=mask,
                window_mask=near,
                aux_layers=self.aux_layers,
            )
            states = TargetPass(output.hidden, output.aux).states(reads)
            chunks.append(None if states is None else states[0])
            start = used
        assert output is not None
        self.set_length(row, start)
        return self.target.logits(output.hidden[0, -1]), chunks

    def set_length(self, row: int, length: int) -> None:
        """Set the committed positions of a row; 0 for a new or an idle row."""
        self.lengths[row] = length
        self.committed[row] = length
        if length == 0:
            self.cache.restart(row)

    def verify_pass(self, tree: DraftTree, levels: int | None = None) -> TargetPass:
        """Run :meth:`look` in the slots after the committed ones."""
        count = tree.tokens.shape[1]
        self.cache.attempt(count)
        used = max(self.lengths) + count
        if self._wrap is None:
            return self.look(tree, self._slots[:used], levels)
        used = self.cache.capacity if self._captured else view_length(used, self.cache.capacity)
        chain = tree.chain
        if (levels, chain) not in self._passes:
            # A pure function of trees: all other tensors that it reads keep their addresses.
            def run(
                tokens: Tensor, parents: Tensor, depths: Tensor, ancestors: Tensor, view: Tensor, alive: Any
            ) -> TargetPass:
                return self.look(DraftTree(tokens, parents, depths, ancestors, alive, chain), view, levels)

            self._passes[levels, chain] = self._wrap("target", run)
        result: TargetPass = self._passes[levels, chain](
            tree.tokens, tree.parents, tree.depths, tree.ancestors, self._slots[:used], tree.alive
        )
        return result

    def look(self, tree: DraftTree, view: Tensor | None = None, levels: int | None = None) -> TargetPass:
        """Run all nodes of trees; write keys and values after the committed slots.

        Args:
            view: slots that are read; None: all, which is valid for all lengths.
            levels: also run the device's half of greedy verification, over these levels, and return no logits.
        """
        view = self._slots if view is None else view
        count = tree.tokens.shape[1]
        # With one eager row, use the length on the host: this takes fewer calls, which matters on a CPU.
        told = self.eager and self.rows == 1
        if told and tree.chain:
            slots = positions = self._slots[self.lengths[0] :][:count][None]
        else:
            slots = self.committed[:, None] + self._slots[:count]  # (B, N)
            positions = slots if tree.chain else self.committed[:, None] + tree.depths
        last = told and (count == 1 or (tree.chain and self._lean))
        mask, near = self._masks(tree, slots, positions, view, last)
        forward: Any = self.target.forward if tree.exits is None else partial(tree.exits.forward, self.target)
        output = forward(
            tree.tokens,
            positions,
            cache=self.cache,
            slots=slots,
            mask=mask,
            window_mask=near,
            aux_layers=self.aux_layers,
        )
        logits = self.target.logits(output.hidden)
        if levels is None:
            return TargetPass(output.hidden, output.aux, logits)
        return TargetPass(output.hidden, output.aux, decision=decide_greedy(tree, logits, levels))

    def _masks(
        self, tree: DraftTree, slots: Tensor, positions: Tensor, view: Tensor, last: bool
    ) -> tuple[Mask, Tensor | None]:
        """Return the masks of a pass; ``last``: consecutive tokens of one row, at the end of ``view``."""
        # A compiled pass serves all views, so the cache's size decides whether windows apply.
        limited = self._reaches(view.shape[0] if self.eager else self.cache.capacity)
        if last and not limited:
            return view.shape[0], None
        if self._bits and tree.chain:
            return TreeMask.chain(slots), None
        if self._bits:
            return TreeMask(self.committed, tree.ancestor_words(), positions), None
        if tree.chain:
            mask = view <= slots[:, :, None]
        else:
            mask = block_mask(tree.ancestors, self.committed, view.shape[0])
        if self._near is None or not limited:
            return mask, None
        return mask, mask & near_mask(tree.depths, self.committed, view, self._near)

    def _reaches(self, used: int) -> bool:
        return self._near is not None and used > self._near_size

    def keep(self, tree: DraftTree, path: Tensor, counts: Tensor) -> None:
        """Compact the cache: move the accepted path to the slots right after the committed ones.

        The host must also call :meth:`note`. ``counts`` (B,) are the numbers of real nodes in ``path`` (B,
        L), whose last node is repeated as padding.
        """
        if not tree.chain:  # a chain is already in place
            self.cache.move(
                self.committed[:, None] + path, self.committed[:, None] + self._slots[: path.shape[1]]
            )
        self.committed.add_(counts)

    def note(self, counts: Sequence[int]) -> None:
        """Add committed positions of each row on the host."""
        self.cache.settle(counts)
        self.lengths = [old + more for old, more in zip(self.lengths, counts)]
