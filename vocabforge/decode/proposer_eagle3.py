"""EAGLE proposer: a drafter with its cache (EAGLE-3 or EAGLE-1/2), growing a dynamic tree each cycle.

Row t of the drafter's cache holds the step-0 key of position t: what it reads of the target there with token
x_{t+1}. Draft nodes use the slots behind the committed rows and are overwritten by the next cycle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.drafter import CachedDrafter
from ..models.heads import DraftHead, DraftState
from ..models.kv_cache import KVCache
from .masks import view_length
from .tree import DraftTree, TreeGrowth, TreeSettings


class Eagle3Proposer:
    """Drafts a tree from the target's features, a step at a time.

    Args:
        drafter: the trained module; any kind whose next state is a function of its path.
        head: draft head that scores its states (full or restricted).
        settings: tree shape.
        context: positions to begin with; :meth:`reserve` makes more.

    Raises:
        UsageError: the tree is wider than the draft vocabulary.
    """

    def __init__(self, drafter: CachedDrafter, head: DraftHead, settings: TreeSettings, context: int) -> None:
        settings.check_width(head.size)
        self.drafter, self.head, self.settings = drafter, head, settings
        self.reads, self.aux_layers = drafter.reads, drafter.config.aux_layers
        self._weight = weight = next(drafter.parameters())
        self._device = weight.device
        self._scratch = settings.depth * settings.topk
        self._node_columns = torch.eye(self._scratch, dtype=torch.bool, device=self._device)
        self.rows = 0  # committed rows
        self._g = torch.zeros(1, drafter.config.hidden_size, dtype=weight.dtype, device=self._device)
        self._fed = self._g  # what made it
        self._allocate(context)

    def reserve(self, positions: int) -> None:
        """Make room for requests of this length; forgets the last request if that takes a new cache."""
        if positions > self._positions:
            self._allocate(positions)

    def _allocate(self, positions: int) -> None:
        # Behind the committed rows: a padded path while committing, or the nodes of a tree while drafting.
        capacity = positions + max(self.settings.levels + 1, self._scratch)
        c, weight = self.drafter.config, self._weight
        self.cache = KVCache(1, 1, c.num_kv_heads, capacity, c.head_dim, weight.dtype, weight.device)
        self.drafter.ensure_positions(capacity)
        self._positions, self.rows = positions, 0

    def reset(self) -> None:
        """Forget the last request."""
        self.rows = 0

    def advance(self, tokens: Tensor, features: Tensor, count: int) -> None:
        """Commit rows: target features of positions and the tokens that follow them.

        Args:
            tokens: (N,) int64, token x_{t+1} of each row.
            features: (N, n_aux * H) or (N, H), as the drafter reads them.
            count: rows that are real; the others are padding to a fixed N and stay invisible.
        """
        number, start = len(tokens), self.rows
        steps = torch.arange(start, start + number, device=self._device)
        view = torch.arange(view_length(start + number, self.cache.capacity), device=self._device)
        fused = self.drafter.fuse(features)
        g = self.drafter.extend(
            tokens[None],
            fused[None],
            steps[None],
            cache=self.cache,
            slots=steps,
            mask=view[None] <= steps[:, None],
        )
        self.rows = start + count
        self._g, self._fed = g[0, count - 1 : count], fused[count - 1 : count]

    def propose(self, root_token: Tensor) -> DraftTree:
        """Grow the tree under the last committed token.

        Args:
            root_token: (1,) int64, the token of the last committed row.
        """
        k, depth = self.settings.topk, self.settings.depth
        growth = TreeGrowth(self.settings)
        state = DraftState(0, root_token, self._fed)
        logprobs, ids = self.head.topk(self.drafter.read(self._g), k, state)
        growth.seed(logprobs[0], ids[0])
        scratch = self._scratch
        view = view_length(self.rows + scratch, self.cache.capacity)
        committed = (torch.arange(view, device=self._device) < self.rows).expand(k, view)
        above = self._node_columns.new_zeros(k, scratch)  # draft nodes each frontier node may see
        g = self._g.expand(k, -1)
        for step in range(depth):
            own = slice(step * k, (step + 1) * k)
            above = above | self._node_columns[own]
            mask = committed.clone()
            mask[:, self.rows : self.rows + scratch] = above
            slots = torch.arange(self.rows + own.start, self.rows + own.stop, device=self._device)
            position = torch.full((1, k), self.rows + step, device=self._device)
            state = DraftState(step + 1, growth.frontier_tokens, g)
            g = self.drafter.extend(
                state.tokens[None], g[None], position, cache=self.cache, slots=slots, mask=mask
            )[0]
            parent = growth.grow(*self.head.topk(self.drafter.read(g), k, state))
            g, above = g[parent], above[parent]
        return growth.finish(root_token)
