"""The target's half of a cycle: its cache, one pass over tree nodes, and what stays of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..models.kv_cache import causal_mask
from ..models.lean import LeanModel
from .draft import Wrap
from .masks import tree_masks, view_length
from .tree import DraftTree

PREFILL_CHUNK = 512


class Chunk(NamedTuple):
    """A part of a prompt: its length, and the states (T', .) that the proposer reads of it."""

    length: int
    states: Tensor | None


class TargetPass(NamedTuple):
    """``logits`` (B, N, V), ``hidden`` (B, N, H) after the final norm, ``aux`` (B, N, n * H) or None."""

    logits: Tensor
    hidden: Tensor
    aux: Tensor | None

    def states(self, reads: str) -> Tensor | None:
        """What a proposer reads of it."""
        return {"aux": self.aux, "hidden": self.hidden, "none": None}[reads]


class TargetSide:
    """A target with the cache of B rows.

    Args:
        target: lean model.
        aux_layers: whose outputs are wanted.
        rows: requests side by side.
        wrap: makes the pass over a tree faster; None runs it as it is.
    """

    def __init__(
        self, target: LeanModel, aux_layers: tuple[int, ...], rows: int, wrap: Wrap | None = None
    ) -> None:
        self.target, self.aux_layers, self.rows = target, aux_layers, rows
        self._pass = self._forward if wrap is None else wrap("target", self._forward)

    def allocate(self, positions: int, scratch: int) -> None:
        """A cache of ``positions`` and ``scratch`` slots behind them; what the old one holds is lost."""
        self.cache = self.target.new_cache(positions + scratch, self.rows)
        self._slots = torch.arange(self.cache.capacity, device=self.target.device)
        self.committed = torch.zeros(self.rows, dtype=torch.int64, device=self.target.device)
        self.lengths = [0] * self.rows  # the same on the host

    def _forward(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, mask: Tensor, window_mask: Tensor | None
    ) -> TargetPass:
        output = self.target.forward(
            tokens,
            positions,
            cache=self.cache,
            slots=slots,
            mask=mask,
            window_mask=window_mask,
            aux_layers=self.aux_layers,
        )
        return TargetPass(self.target.logits(output.hidden), output.hidden, output.aux)

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
        count = tree.tokens.shape[1]
        view = view_length(max(self.lengths) + count, self.cache.capacity)
        window = self.target.config.sliding_window
        slots = self.committed[:, None] + self._slots[:count]  # (B, N)
        if tree.chain and (window is None or view <= window):
            mask, near = self._slots[:view] <= slots[:, :, None], None
        else:
            mask, near = tree_masks(tree.ancestors, tree.depths, self.committed, view, window)
        result: TargetPass = self._pass(tree.tokens, self.committed[:, None] + tree.depths, slots, mask, near)
        return result

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
