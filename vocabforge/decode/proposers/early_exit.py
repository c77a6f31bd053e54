"""Early-exit proposer: the target's own first layers and LM head draft (LayerSkip, Elhoushi et al. 2024).

It needs neither a second model nor a second cache. Draft nodes write the first layers' keys into the target's
cache, after the committed slots, and pass them with their states to verification, which runs only the other
layers (``exit_states.py``). Compiled or captured passes run all layers again.

Acceptance depends on the target: a target trained with LayerSkip's early-exit loss predicts well from its
first layers, other targets hardly do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...models.heads.registry import base_of_model, exact_head_of
from ...models.kv_cache import KVCache
from ...models.lean.config import FAMILIES
from ...models.lean.model import LeanModel
from ..exit_states import ExitStates, places_of
from ..interface import DraftBackend, DraftStep, Frontier, Wrap
from ..tree import DraftTree
from ..trees.policies import choose_policy
from .model import ModelProposer
from .node_passes import NodePasses, NodeStates
from .registry import ProposerParts


class EarlyExitBackend(DraftBackend):
    """Draft states from the target's first layers (1 to all) and its final norm."""

    kind, label = "early-exit", "early exit"
    shares_cache = True

    def __init__(self, target: LeanModel, layers: int) -> None:
        self.layers = layers
        self.passes = NodePasses(target, range(layers))
        # Not for compiled or captured passes, and of no use if all layers draft.
        self.passes.tells_residual = layers < target.config.num_layers
        # Levels run for this draft: nodes, and states (B, W, H) after the last drafting layer, before the norm.
        self._levels: list[tuple[Frontier, Tensor]] = []

    def allocate(self, rows: int, positions: int, scratch: int, cache: KVCache) -> None:
        self.passes.allocate(cache, rows, positions, scratch)

    def wrap(self, wrap: Wrap) -> None:
        self.passes.wrap(wrap)
        self.passes.tells_residual = False

    def begin(self, row: int, ids: Sequence[int]) -> None:
        self.passes.set_length(row, 0)

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        self.passes.set_length(row, self.passes.lengths[row] + len(following))

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        self.passes.add(counts)

    def note(self, counts: Sequence[int]) -> None:
        self.passes.note(counts)

    def device_state(self) -> Sequence[Tensor]:
        return (self.passes.committed,)

    def view(self) -> Tensor:
        return self.passes.view()

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        tokens = roots[:, None]
        states = self.passes.line(tokens, self.passes.committed[:, None], view)
        self._levels = []
        self._keep(Frontier(tokens, tokens), states)
        return DraftStep(states.hidden, tokens, states.fed, self.passes.begin(view))

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        states, carry = self.passes.expand(frontier, step.carry, level)
        self._keep(frontier, states)
        return DraftStep(states.hidden, frontier.tokens, states.fed, carry)

    def _keep(self, frontier: Frontier, states: NodeStates) -> None:
        if states.residual is not None:
            self._levels.append((frontier, states.residual))

    def exits(self, tree: DraftTree) -> ExitStates | None:
        if not self._levels:
            return None
        _, *levels = nodes = [level for level, _ in self._levels]
        states = torch.cat([state for _, state in self._levels], 1)
        if tree.chain or not levels:  # with one level, all nodes except the root are leaves
            return ExitStates(self.layers, states, None)
        starts = [0, *accumulate(level.tokens.shape[1] for level in nodes)]  # of each level
        tokens = torch.cat([level.tokens for level in levels], 1)
        parents = torch.cat([level.parents + start for level, start in zip(levels, starts)], 1)
        return ExitStates(self.layers, states, places_of(tree, tokens, parents, len(levels)))


def build(parts: ProposerParts) -> ModelProposer:
    """Build the proposer: the target's first layers (default: a third) draft a chain or the options' tree.

    Raises:
        UsageError: the target has fewer layers, or the tree cannot be filled.
    """
    if not isinstance(parts.target, LeanModel):
        raise UsageError(
            "an early exit needs a target that the lean decoder computes",
            got=parts.target.config.architecture,
            expected=", ".join(FAMILIES),
            remedy="draft with n-gram, a draft model or a trained drafter",
        )
    count = parts.target.config.num_layers
    layers = max(1, count // 3) if parts.options.exit_layers is None else parts.options.exit_layers
    if not 1 <= layers <= count:
        raise UsageError(
            "the early exit does not lie within the target",
            got=f"{layers} layers",
            expected=f"1 to {count}",
            remedy="change --exit-layers",
        )
    head = parts.head or exact_head_of(base_of_model(parts.target))
    return ModelProposer(
        EarlyExitBackend(parts.target, layers), head, choose_policy(parts.options, "chain", None)
    )
