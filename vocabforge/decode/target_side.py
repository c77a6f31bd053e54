"""The target's half of a cycle: its cache, one pass over tree nodes, and what stays of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..models.kv_cache import causal_mask
from ..models.lean import LeanModel
from .draft import Wrap
from .masks import block_mask, near_mask, view_length
from .tree import DraftTree
from .verify import decide_greedy

PREFILL_CHUNK = 512


class Chunk(NamedTuple):
    """A part of a prompt: its length, and the states (T', .) that the proposer reads of it."""

    length: int
    states: Tensor | None


class TargetPass(NamedTuple):
    """``hidden`` (B, N, H) after the final norm, ``aux`` (B, N, n * H) or None, ``logits`` (B, N, V) or None."""

    hidden: Tensor
    aux: Tensor | None
    logits: Tensor | None = None

    def states(self, reads: str) -> Tensor | None:
        """What a proposer reads of it."""
        return {"aux": self.aux, "hidden": self.hidden, "none": None}[reads]


class TargetSide:
    """A target with the cache of B rows.

    Args:
        target: lean model.
        aux_layers: whose outputs are wanted.
        rows: requests side by side.
        wrap: makes the passes over trees faster; None runs them as they are.
    """

    def __init__(
        self, target: LeanModel, aux_layers: tuple[int, ...], rows: int, wrap: Wrap | None = None
    ) -> None:
        self.target, self.aux_layers, self.rows = target, aux_layers, rows
        self._wrap = wrap
        self._passes: dict[tuple[object, ...], Callable[..., Any]] = {}

    def allocate(self, positions: int, scratch: int) -> None:
        """A cache of ``positions`` and ``scratch`` slots behind them; what the old one holds is lost."""
        self.cache = self.target.new_cache(positions + scratch, self.rows)
        self._slots = torch.arange(self.cache.capacity, device=self.target.device)
        self.committed = torch.zeros(self.rows, dtype=torch.int64, device=self.target.device)
        self.lengths = [0] * self.rows  # the same on the host

    def prefill(self, row: int, ids: Tensor, reads: str) -> tuple[Tensor, list[Chunk]]:
        """Read the next prompt tokens (T,) of a row in chunks.

        Returns:
            logits (V,) after the last token, and what was read chunk by chunk.
        """
        chunks: list[Chunk] = []
        cache, window = self.cache.row(row), self.target.config.sliding_window
        start = self.lengths[row]
        output = None
        for part in ids.split(PREFILL_CHUNK):
            positions = self._slots[start : start + len(part)]
            view = self._slots[: view_length(start + len(part), self.cache.capacity)]
            output = self.target.forward(
                part[None],
                positions[None],
                cache=cache,
                slots=positions,
                mask=causal_mask(positions, view),
                window_mask=None if window is None else causal_mask(positions, view, window),
                aux_layers=self.aux_layers,
            )
            found = {"aux": output.aux, "hidden": output.hidden, "none": None}[reads]
            chunks.append(Chunk(len(part), None if found is None else found[0]))
            start += len(part)
        assert output is not None
        self.set_length(row, start)
        return self.target.logits(output.hidden[0, -1]), chunks

    def set_length(self, row: int, length: int) -> None:
        """Committed positions of a row: 0 for a new or an idle one."""
        self.lengths[row] = length
        self.committed[row] = length

    def verify_pass(self, tree: DraftTree) -> TargetPass:
        """One pass over all nodes; they lie in the slots behind the committed ones."""
        states, _ = self._run(tree, None)
        return states

    def judged_pass(self, tree: DraftTree, levels: int) -> tuple[TargetPass, tuple[Tensor, Tensor]]:
        """The same with the device's half of greedy verification (``verify.decide_greedy``); it has no logits."""
        states, decision = self._run(tree, levels)
        assert decision is not None
        return states, decision

    def _run(self, tree: DraftTree, levels: int | None) -> tuple[TargetPass, tuple[Tensor, Tensor] | None]:
        count = tree.tokens.shape[1]
        view = self._slots[: view_length(max(self.lengths) + count, self.cache.capacity)]
        key = levels, tree.chain
        if key not in self._passes:
            made = self._make_pass(levels, tree.chain)
            self._passes[key] = made if self._wrap is None else self._wrap("target", made)
        result: tuple[TargetPass, tuple[Tensor, Tensor] | None] = self._passes[key](
            tree.tokens, tree.parents, tree.depths, tree.ancestors, view, tree.alive
        )
        return result

    def _make_pass(self, levels: int | None, chain: bool) -> Callable[..., Any]:
        """A pure function of trees; everything else that it reads stays where it is."""
        window = self.target.config.sliding_window

        def run(
            tokens: Tensor,
            parents: Tensor,
            depths: Tensor,
            ancestors: Tensor,
            view: Tensor,
            alive: Tensor | None = None,
        ) -> tuple[TargetPass, tuple[Tensor, Tensor] | None]:
            slots = self.committed[:, None] + self._slots[: tokens.shape[1]]  # (B, N)
            near: Tensor | None = None
            if chain:
                mask = view <= slots[:, :, None]
            else:
                mask = block_mask(ancestors, self.committed, view.shape[0])
            # By the cache's size, not by the view: that changes in a compiled pass.
            if window is not None and self.cache.capacity > window:
                near = mask & near_mask(depths, self.committed, view, window)
            output = self.target.forward(
                tokens,
                self.committed[:, None] + depths,
                cache=self.cache,
                slots=slots,
                mask=mask,
                window_mask=near,
                aux_layers=self.aux_layers,
            )
            logits = self.target.logits(output.hidden)
            if levels is None:
                return TargetPass(output.hidden, output.aux, logits), None
            tree = DraftTree(tokens, parents, depths, ancestors, alive)
            return TargetPass(output.hidden, output.aux), decide_greedy(tree, logits, levels)

        return run

    def keep(self, tree: DraftTree, path: Tensor, counts: Tensor, lengths: list[int]) -> None:
        """Compaction: the accepted path moves right behind the committed slots.

        Args:
            path: (B, L) nodes of the path, the last repeated.
            counts: (B,) how many of them are real; ``lengths`` the same on the host.
        """
        if not tree.chain:  # a chain's path lies where it belongs
            self.cache.move(
                self.committed[:, None] + path, self.committed[:, None] + self._slots[: path.shape[1]]
            )
        self.committed = self.committed + counts
        self.lengths = [old + more for old, more in zip(self.lengths, lengths)]
