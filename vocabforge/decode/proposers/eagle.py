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
from ...models.kv_cache import CacheView, KVCache
from ...ops.draft_chain import runs_chains
from ..accelerate.graphs import GraphCapture
from ..interface import Commit, DraftBackend, DraftStep, Frontier, Wrap
from ..positions import CapturedPositions, OneRow, Positions, view_length
from ..trees.policies import choose_policy
from .model import ModelProposer
from .registry import ProposerParts


class _Carry(NamedTuple):
    """State of a frontier."""

    g: Tensor  # (B, W, H) states of its nodes
    # bool (B, W, scratch) draft nodes that each node attends to; None in a chain and if masks are bits
    above: Tensor | None
    used: int  # number of draft slots used
    view: Tensor  # slots that passes read


class EagleBackend(DraftBackend):
    """Draft states of an EAGLE drafter whose next state is a function of its path."""

    positions: Positions

    def __init__(self, drafter: CachedDrafter, kind: str, label: str, window: int | None = None) -> None:
        self.drafter, self.kind, self.label = drafter, kind, label
        self.window = window or getattr(drafter.config, "sliding_window", None)
        self.reads = drafter.reads
        self.aux_layers = tuple(drafter.config.aux_layers)
        self._weight = next(iter(drafter.parameters()))
        self._head: tuple[Tensor, Tensor | None] | None = None  # head rows and their ids, for chains
        self._wrap: Wrap | None = None
        self._run_extend = self._extend

    def allocate(self, rows: int, positions: int, scratch: int, cache: KVCache) -> None:
        # After the committed rows: a padded path while committing, or the nodes of a tree while drafting. A
        # row whose request has ended may be a path beyond its positions, and is drafted for with the others.
        capacity = positions + 2 * (scratch + 2)
        drafter, weight = self.drafter, self._weight
        self.cache = drafter.new_cache(rows, capacity)
        drafter.ensure_positions(capacity)
        # Captured passes read the rotary tables at fixed addresses, and another decoder may need longer ones.
        self._tables = list(drafter.buffers())
        self._scratch = max(scratch, 1)
        self._columns = torch.eye(self._scratch, dtype=torch.bool, device=weight.device)
        if isinstance(self._wrap, GraphCapture):
            angles: Tensor | None = None
            if isinstance(drafter, RotaryPositions):
                angles = torch.cat([drafter.cos[:capacity], drafter.sin[:capacity]], -1)
            self.positions = CapturedPositions(
                rows, capacity, weight.device, self.window, most=scratch + 2, angles=angles
            )
        else:
            one_row = rows == 1 and self._wrap is None
            self.positions = (OneRow if one_row else Positions)(rows, capacity, weight.device, self.window)
        self._g = torch.zeros(rows, drafter.config.hidden_size, dtype=weight.dtype, device=weight.device)
        self._g_read: Tensor | None = None  # the head's input computed from it, if known
        self._fed = torch.zeros_like(self._g)  # states that it was computed from

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        assert states is not None
        steps = self.positions.extend(row, len(following))
        view = self.positions.slots[: view_length(self.positions.lengths[row], self.cache.capacity)]
        fused = self.drafter.fuse(states)
        cache, last = self.cache.row(row), len(following) - 1

        written = last > 0 and self.drafter.write_keys(
            following[None, :last], fused[None, :last], steps[None, :last], cache
        )
        part = slice(last if written else 0, None)
        cached = CacheView(cache, steps[part], self.positions.causal(steps[None, part], view))
        g, _ = self.drafter.extend(following[None, part], fused[None, part], steps[None, part], cached)
        self._g[row], self._fed[row], self._g_read = g[0, -1], fused[-1], None

    def commit(self, commit: Commit) -> None:
        self.positions.end_pass()  # that of a draft
        super().commit(commit)

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        assert states is not None
        self._g_read = None
        self._run_extend(following, states, counts, self.positions.view(following.shape[1]))
        self.positions.committed.add_(counts)

    def device_state(self) -> Sequence[Tensor]:
        return self.positions.committed, self._g, self._fed

    def _extend(self, following: Tensor, states: Tensor, counts: Tensor, view: Tensor) -> None:
        """Write the keys of committed positions, and ``_g`` and ``_fed`` of each row's last one."""
        positions, count = self.positions, following.shape[1]
        positions.begin_pass(count)
        steps = positions.ahead(0, count)  # (B, L)
        fused = self.drafter.fuse(states)
        cached = CacheView(self.cache, steps, positions.line_mask(steps, 0, view))
        g, read = self.drafter.extend(following, fused, steps, cached)
        positions.end_pass()
        if isinstance(positions, OneRow) and count == int(counts):
            self._g.copy_(g[:, -1])
            self._fed.copy_(fused[:, -1])
            self._g_read = read[:, -1]
            return
        last = counts[:, None, None].expand(-1, 1, g.shape[-1])  # an idle row keeps its state
        for state, made in ((self._g[:, None], g), (self._fed[:, None], fused)):
            torch.gather(torch.cat([state, made], 1), 1, last, out=state)

    def chains(self, head: DraftHead) -> bool:
        self._head = head.table() if isinstance(head, FullHead) else None
        if not isinstance(self.positions, OneRow) or not isinstance(self.drafter, Eagle3Drafter):
            return False
        if self.drafter.cache_layers > 1 or self._head is None or not runs_chains(self._weight):
            return False
        if self.positions.window is not None:  # the op attends to all positions
            return False
        return {self._head[0].dtype, self._weight.dtype, self.drafter.embedding.dtype} == {torch.float32}

    def chain(self, commit: Commit, count: int) -> tuple[Tensor, float]:
        assert commit.states is not None
        assert self._head is not None
        assert isinstance(self.drafter, Eagle3Drafter)
        head, ids = self._head
        following, start = commit.following[0], self.positions.lengths[0]
        tokens, head_s = self.drafter.chain(
            following, commit.states[0], start, count, cache=self.cache, head=head, head_ids=ids
        )
        self.positions.extend(0, len(following))
        return tokens[None], float(head_s)

    def wrap(self, wrap: Wrap) -> None:
        self._wrap = wrap
        self._run_extend = wrap(f"{self.kind} commit", self._extend)

    def view(self) -> Tensor:
        return self.positions.view(self._scratch)

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        self.positions.begin_pass()
        g = self._g[:, None]
        read = self.drafter.read(g) if self._g_read is None else self._g_read[:, None]
        return DraftStep(read, roots[:, None], self._fed[:, None], _Carry(g, None, 0, view))

    def fed(self, frontier: Frontier, step: DraftStep) -> Tensor:
        g: Tensor = step.carry.g
        if g.shape[1] == 1:
            return g.expand(-1, frontier.tokens.shape[1], -1)
        return g.gather(1, frontier.parents[:, :, None].expand(-1, -1, g.shape[-1]))

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        carry: _Carry = step.carry
        positions, width, used = self.positions, frontier.tokens.shape[1], carry.used
        slots = positions.ahead(used, width)  # (B, W)
        above: Tensor | None = None
        if width == 1 and used == level - 1:  # a chain node attends to all nodes before it
            position, mask = slots, positions.line_mask(slots, used, carry.view)
        else:
            position = positions.ahead(level - 1, 1).expand(-1, width)
            if not positions.bits:
                pick = frontier.parents[:, :, None].expand(-1, -1, self._scratch)
                above = self._above(carry).gather(1, pick) | self._columns[used : used + width]
            mask = positions.tree_mask(above, frontier.words, level - 1, position, carry.view)
        g = self.fed(frontier, step)
        state, read = self.drafter.extend(frontier.tokens, g, position, CacheView(self.cache, slots, mask))
        return DraftStep(read, frontier.tokens, g, _Carry(state, above, used + width, carry.view))

    def _above(self, carry: _Carry) -> Tensor:
        """Return ``above`` of the last frontier; after a chain, all its nodes."""
        if carry.above is not None:
            return carry.above
        return self._columns[: carry.used].any(0).expand(len(self._g), 1, -1)


def _build(kind: str, label: str, default_tree: str, parts: ProposerParts) -> ModelProposer:
    head = parts.head or exact_head(parts.drafter)
    policy = choose_policy(parts.options, default_tree, None)
    return ModelProposer(EagleBackend(parts.drafter, kind, label, parts.options.draft_window), head, policy)


build_eagle1 = partial(_build, "eagle1", "EAGLE-1", "static")
build_eagle2 = partial(_build, "eagle2", "EAGLE-2", "dynamic")  # for an EAGLE-1 drafter
build_eagle3 = partial(_build, "eagle3", "EAGLE-3", "dynamic")
build_mtp = partial(_build, "mtp", "MTP", "dynamic")
