"""States that early-exit drafting passes to verification: the target's first layers at the expanded nodes.

Verification runs these layers only for the other nodes (mostly leaves), and the layers above for all nodes:
LayerSkip's self-speculation, Elhoushi et al. 2024.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..models.kv_cache import KVCache
from ..models.target.interface import TargetOutput

if TYPE_CHECKING:
    from ..models.lean.model import LeanModel
    from .tree import DraftTree


class NodeInputs(NamedTuple):
    """Nodes of a pass: ``ids``, ``positions`` and ``slots`` (B, N), and masks as in ``LeanModel.forward``."""

    ids: Tensor
    positions: Tensor
    slots: Tensor
    mask: Tensor | int
    window_mask: Tensor | None

    def behind(self, count: int) -> NodeInputs:
        """Drop the first ``count`` nodes."""
        return NodeInputs._make(part[:, count:] if isinstance(part, Tensor) else part for part in self)

    def at(self, nodes: Tensor) -> NodeInputs:
        """Select nodes by index (B, M); the masks must be tensors."""

        def rows(mask: Tensor) -> Tensor:
            return mask.gather(1, nodes[:, :, None].expand(-1, -1, mask.shape[-1]))

        assert isinstance(self.mask, Tensor)
        near = None if self.window_mask is None else rows(self.window_mask)
        ids, positions, slots = (tensor.gather(1, nodes) for tensor in (self.ids, self.positions, self.slots))
        return NodeInputs(ids, positions, slots, rows(self.mask), near)


class ExitStates(NamedTuple):
    """Outputs of the target's first ``layers`` layers at the M nodes that drafting expanded, root first."""

    layers: int
    # (B, M, H) residual stream after them; the keys and values of node m are in slot m (0-based) after the
    # committed ones.
    states: Tensor
    # (B, N) index of each tree node among the expanded nodes, -1 if it was not expanded. None: the expanded
    # nodes are the tree's first M nodes, as in a chain.
    places: Tensor | None

    def forward(
        self,
        target: LeanModel,
        ids: Tensor,
        positions: Tensor,
        *,
        cache: KVCache,
        slots: Tensor,
        mask: Tensor | int,
        window_mask: Tensor | None = None,
        aux_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run ``target.forward`` over all N nodes of each row, in the slots after the committed ones.

        The first layers run only for nodes without states, unless their outputs are also requested.
        """
        nodes = NodeInputs(ids, positions, slots, mask, window_mask)
        if min(aux_layers, default=self.layers) < self.layers:
            return target.forward(**nodes._asdict(), cache=cache, aux_layers=aux_layers)
        above = range(self.layers, target.config.num_layers)
        x = self._completed(target, nodes, cache)
        return target.forward(**nodes._asdict(), cache=cache, layers=above, x=x, aux_layers=aux_layers)

    def _completed(self, target: LeanModel, nodes: NodeInputs, cache: KVCache) -> Tensor:
        """Return the states (B, N, H) of all nodes; compute those that drafting did not expand."""

        def first(some: NodeInputs) -> Tensor:
            last = (self.layers - 1,)
            output = target.forward(**some._asdict(), cache=cache, layers=range(self.layers), aux_layers=last)
            assert output.aux is not None
            return output.aux

        if self.places is None:
            rest = nodes.behind(self.states.shape[1])
            return torch.cat([self.states, first(rest)], 1) if rest.ids.shape[1] else self.states
        places, root = self.places, nodes.slots[:, :1]
        # The tree orders nodes differently from the draft passes; missing nodes stay and are overwritten.
        cache.move(torch.where(places < 0, nodes.slots, root + places), nodes.slots, self.layers)
        x = self.states.gather(1, places.clamp(min=0)[:, :, None].expand(-1, -1, self.states.shape[-1]))
        most = int((places < 0).sum(1).amax())
        if not most:
            return x
        # A row with fewer missing nodes recomputes some of its others.
        missing = (places >= 0).int().argsort(dim=1, stable=True)[:, :most]
        return x.scatter(1, missing[:, :, None].expand(-1, -1, x.shape[-1]), first(nodes.at(missing)))


def places_of(tree: DraftTree, tokens: Tensor, parents: Tensor, levels: int) -> Tensor:
    """Return each tree node's index among the root and the expanded nodes, -1 if absent, (B, N).

    Args:
        tokens: (B, S) tokens of the expanded nodes; node s has index s + 1, the root 0.
        parents: (B, S) indices of their parents.
        levels: number of expanded levels, without the root's.
    """
    places = torch.full_like(tree.tokens, -1)
    places[:, 0] = 0
    same = tree.tokens[:, :, None] == tokens[:, None]  # (B, N, S)
    for _ in range(levels):  # siblings differ, so a path identifies a node
        matches = same & (places.gather(1, tree.parents)[:, :, None] == parents[:, None])
        places = torch.where(matches.any(-1), matches.int().argmax(-1) + 1, -1)
        places[:, 0] = 0
    return places
