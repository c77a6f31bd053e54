"""EAGLE proposers: a drafter with its own key cache (EAGLE-3, or EAGLE-1/2) that reads the target's states.

Row t of the drafter's cache holds the step-0 key of position t, from the target's states there and token
x_{t+1}. Draft nodes use the slots after the committed rows and are overwritten by the next cycle.

EAGLE-1 drafts a fixed tree (Li et al. 2024, "EAGLE"), EAGLE-2 the dynamic one (Li et al. 2024, "EAGLE-2");
both read the target's last hidden states. EAGLE-3 (Li et al. 2025) reads three layers and drafts a dynamic
tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...models.drafters.eagle3 import Eagle3Drafter
from ...models.drafters.interface import CachedDrafter
from ...models.drafters.parts import RotaryPositions
from ...models.heads.exact import FullHead
from ...models.heads.registry import DraftHead, exact_head
from ...models.kv_cache import CacheView, Mask, TreeMask
from ...ops.draft_chain import runs_chains
from ...ops.trees import WORD
from ..accelerate.graphs import GraphCapture
from ..target_side import block_mask, view_length
from ..trees.policies import choose_policy
from .interface import Commit, DraftBackend, DraftStep, Frontier, Wrap
from .model import ModelProposer
from .registry import ProposerParts


class _Carry(NamedTuple):
    """State of a frontier.

    Attributes:
        g: (B, W, H) states of its nodes.
        above: bool (B, W, scratch) draft nodes that each node attends to; None in a chain and if masks are
            bits.
        used: number of draft slots used.
        view: slots that passes read.
    """

    g: Tensor
    above: Tensor | None
    used: int
    view: Tensor


class EagleBackend(DraftBackend):
    """Draft states of an EAGLE drafter whose next state is a function of its path."""

    def __init__(self, drafter: CachedDrafter, kind: str, label: str) -> None:
        self.drafter, self.kind, self.label = drafter, kind, label
        self.reads = drafter.reads
        self.aux_layers = tuple(drafter.config.aux_layers)
        self._weight = next(iter(drafter.parameters()))
        self._device = self._weight.device
        self._head: tuple[Tensor, Tensor | None] | None = None  # head rows and their ids, for chains
        self._bits = False  # attention takes lengths and bits instead of masks
        self._told = True  # use the length on the host for a single row: fewer calls
        self._run_extend = self._extend

    def allocate(self, rows: int, positions: int, scratch: int) -> None:
        # After the committed rows: a padded path while committing, or the nodes of a tree while drafting. A
        # row whose request has ended may be a path beyond its positions, and is drafted for with the others.
        capacity = positions + 2 * (scratch + 2)
        c, weight = self.drafter.config, self._weight
        self.cache = self.drafter.new_cache(rows, capacity)
        self.drafter.ensure_positions(capacity)
        # Captured passes read the rotary tables at fixed addresses, and another decoder may need longer ones.
        self._tables = list(self.drafter.buffers())
        self._scratch = max(scratch, 1)
        self._columns = torch.eye(self._scratch, dtype=torch.bool, device=self._device)
        # For captured passes: (P, 2 D) cosines and signed sines; slots (B, M) that a cycle may write, and
        # their angles.
        self._angles: Tensor | None = None
        if self._bits and isinstance(self.drafter, RotaryPositions):
            self._angles = torch.cat([self.drafter.cos[:capacity], self.drafter.sin[:capacity]], -1)
        self._most = scratch + 2
        self._steps: Tensor | None = None
        self._turns: Tensor | None = None
        self._slots = torch.arange(capacity, device=self._device)
        self.rows = torch.zeros(rows, dtype=torch.int64, device=self._device)  # committed rows
        self.lengths = [0] * rows  # host copy of ``rows``
        self._g = torch.zeros(rows, c.hidden_size, dtype=weight.dtype, device=self._device)
        self._read: Tensor | None = None  # the head's input computed from it, if known
        self._fed = torch.zeros_like(self._g)  # states that it was computed from

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        assert states is not None
        start, count = self.lengths[row], len(following)
        steps = self._slots[start : start + count]
        view = self._slots[: view_length(start + count, self.cache.capacity)]
        fused = self.drafter.fuse(states)
        cached = CacheView(self.cache.row(row), steps, view[None] <= steps[:, None])
        g, _ = self.drafter.extend(following[None], fused[None], steps[None], cached)
        self._g[row], self._fed[row], self._read = g[0, -1], fused[-1], None
        self.rows[row] += count
        self.lengths[row] += count

    def commit(self, commit: Commit) -> None:
        self._steps = None  # those of a draft belong to another pass
        super().commit(commit)

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        assert states is not None
        self._read = None
        self._run_extend(following, states, counts, self._view(following.shape[1]))
        self.rows.add_(counts)

    def device_state(self) -> Sequence[Tensor]:
        return self.rows, self._g, self._fed

    def _extend(self, following: Tensor, states: Tensor, counts: Tensor, view: Tensor) -> None:
        """Write the keys of committed positions, and ``_g`` and ``_fed`` of each row's last one."""
        count = following.shape[1]
        alone = self._told and len(self.lengths) == 1 and count == int(counts)
        if self._bits and self._steps is None:
            self._look_ahead(count)
        steps = self._ahead(0, count)  # (B, L)
        fused = self.drafter.fuse(states)
        bits = self._bits and steps.shape[1] <= WORD
        if alone and count == 1:
            mask: Mask = self.lengths[0] + 1
        else:
            mask = TreeMask.chain(steps, angles=self._turned(0, count)) if bits else view <= steps[:, :, None]
        g, read = self.drafter.extend(following, fused, steps, CacheView(self.cache, steps, mask))
        self._steps = None
        if alone:
            self._g.copy_(g[:, -1])
            self._fed.copy_(fused[:, -1])
            self._read = read[:, -1]
            return
        last = counts[:, None, None].expand(-1, 1, g.shape[-1])  # an idle row keeps its state
        for state, made in ((self._g[:, None], g), (self._fed[:, None], fused)):
            torch.gather(torch.cat([state, made], 1), 1, last, out=state)

    def chains(self, head: DraftHead) -> bool:
        self._head = head.table() if isinstance(head, FullHead) else None
        one = self._told and len(self.lengths) == 1 and isinstance(self.drafter, Eagle3Drafter)
        if not one or self.drafter.cache_layers > 1 or self._head is None or not runs_chains(self._weight):
            return False
        return {self._head[0].dtype, self._weight.dtype, self.drafter.embedding.dtype} == {torch.float32}

    def chain(self, commit: Commit, count: int) -> Tensor:
        assert commit.states is not None
        assert self._head is not None
        assert isinstance(self.drafter, Eagle3Drafter)
        head, ids = self._head
        start, following = self.lengths[0], commit.following[0]
        tokens = self.drafter.chain(
            following, commit.states[0], start, count, cache=self.cache, head=head, head_ids=ids
        )
        self.rows.add_(len(following))
        self.note([len(following)])
        return tokens[None]

    def _ahead(self, used: int, count: int) -> Tensor:
        """Return ``count`` slots (B, count), ``used`` slots after the committed ones."""
        if self._told and len(self.lengths) == 1:
            return self._slots[self.lengths[0] + used :][:count][None]
        if self._bits and self._steps is not None:
            return self._steps[:, used : used + count]
        return self.rows[:, None] + self._slots[used : used + count]

    def _look_ahead(self, count: int) -> None:
        """Compute slots and angles of a whole captured pass, which writes at most ``count`` slots."""
        self._steps = self.rows[:, None] + self._slots[: max(count, self._most)]
        self._turns = None if self._angles is None else self._angles[self._steps]

    def _turned(self, first: int, count: int, width: int = -1) -> tuple[Tensor, Tensor] | None:
        """Return angles (B, count, D) from position ``first`` after the committed ones.

        A single position's angles are repeated ``width`` times.
        """
        if self._turns is None:
            return None
        cos, sin = self._turns[:, first : first + count].expand(-1, width, -1).chunk(2, -1)
        return cos, sin

    def _view(self, ahead: int) -> Tensor:
        """Return the slots that a pass with ``ahead`` new slots reads."""
        if self._bits:
            return self._slots
        if self._told and len(self.lengths) == 1:
            return self._slots[: self.lengths[0] + ahead]
        return self._slots[: view_length(max(self.lengths) + ahead, self.cache.capacity)]

    def wrap(self, wrap: Wrap) -> None:
        self._bits, self._told = isinstance(wrap, GraphCapture), False
        self._run_extend = wrap(f"{self.kind} commit", self._extend)

    def view(self) -> Tensor:
        return self._view(self._scratch)

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        if self._bits:
            self._look_ahead(0)
        g = self._g[:, None]
        read = self.drafter.read(g) if self._read is None else self._read[:, None]
        return DraftStep(read, roots[:, None], self._fed[:, None], _Carry(g, None, 0, view))

    def fed(self, frontier: Frontier, step: DraftStep) -> Tensor:
        g: Tensor = step.carry.g
        if g.shape[1] == 1:
            return g.expand(-1, frontier.tokens.shape[1], -1)
        return g.gather(1, frontier.parents[:, :, None].expand(-1, -1, g.shape[-1]))

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        carry: _Carry = step.carry
        width = frontier.tokens.shape[1]
        view = carry.view
        slots = self._ahead(carry.used, width)  # (B, W)
        above: Tensor | None = None
        if width == 1 and carry.used == level - 1:  # a chain node attends to all nodes before it
            position = slots
            if self._told and len(self.lengths) == 1:
                mask: Mask = self.lengths[0] + level
            elif self._bits:
                mask = TreeMask.chain(slots, angles=self._turned(level - 1, 1))
            else:
                mask = view <= slots[:, :, None]
        else:
            position = self._ahead(level - 1, 1).expand(-1, width)
            if self._bits:
                assert frontier.words is not None
                mask = TreeMask(self.rows, frontier.words, position, angles=self._turned(level - 1, 1, width))
            else:
                pick = frontier.parents[:, :, None].expand(-1, -1, self._scratch)
                above = self._above(carry).gather(1, pick) | self._columns[carry.used : carry.used + width]
                mask = block_mask(above, self.rows, len(view))
        g = self.fed(frontier, step)
        cached = CacheView(self.cache, slots, mask)
        state, read = self.drafter.extend(frontier.tokens, g, position, cached)
        return DraftStep(read, frontier.tokens, g, _Carry(state, above, carry.used + width, view))

    def _above(self, carry: _Carry) -> Tensor:
        """Return ``above`` of the last frontier; after a chain, all its nodes."""
        if carry.above is not None:
            return carry.above
        return self._columns[: carry.used].any(0).expand(len(self.rows), 1, -1)


def _build(kind: str, label: str, default_tree: str, parts: ProposerParts) -> ModelProposer:
    head = parts.head or exact_head(parts.drafter)
    policy = choose_policy(parts.options, default_tree, None)
    return ModelProposer(EagleBackend(parts.drafter, kind, label), head, policy)


build_eagle1 = partial(_build, "eagle1", "EAGLE-1", "static")
build_eagle2 = partial(_build, "eagle2", "EAGLE-2", "dynamic")  # for an EAGLE-1 drafter
build_eagle3 = partial(_build, "eagle3", "EAGLE-3", "dynamic")
build_mtp = partial(_build, "mtp", "MTP", "dynamic")
