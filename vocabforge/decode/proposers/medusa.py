"""Medusa proposer: a tree over independent heads on the target's last hidden state (Cai et al. 2024).

Head k's distribution is the same whatever the path, so all nodes of a level have one state: the heads run once a
cycle, and their states are scored once, all levels in one call where the draft head allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...models.drafters.medusa import MedusaDrafter
from ...models.heads.registry import DraftHead, DraftState, exact_head
from ..trees.policies import choose_policy
from .interface import Commit, DraftStep, Frontier
from .model import ModelProposer
from .registry import ProposerParts

Answer = tuple[Tensor, Tensor]


class MedusaBackend:
    """Draft states of Medusa heads: those of a level are the same for all its nodes; None takes all ``levels``."""

    kind, label = "medusa", "Medusa"
    reads: Literal["aux", "hidden", "none"] = "hidden"
    aux_layers: tuple[int, ...] = ()

    def __init__(self, drafter: MedusaDrafter, levels: int | None = None) -> None:
        self.drafter = drafter
        self.most_levels: int | None = drafter.config.medusa_heads
        self.levels = min(levels or self.most_levels, self.most_levels)

    def allocate(self, rows: int, positions: int, scratch: int) -> None:
        weight = self.drafter.head_weight
        size = self.drafter.config.hidden_size
        self._h = torch.zeros(rows, size, dtype=weight.dtype, device=weight.device)

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        """Nothing to forget: the prompt's last state takes the old one's place."""

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        assert states is not None
        self._h[row] = states[-1]

    def commit(self, commit: Commit) -> None:
        states, counts = commit.states, commit.counts
        assert states is not None
        last = (counts - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[-1])
        self._h = torch.where((counts == 0)[:, None], self._h, states.gather(1, last)[:, 0])

    def start(self, roots: Tensor) -> DraftStep:
        states = self.drafter.read(self.drafter.heads(self._h, self.levels))
        self.states = states.transpose(0, 1)  # (B, levels, H)
        return DraftStep(self.states[:, :1], roots[:, None], self._h[:, None], None)

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        """Head ``level``'s state for every node: all heads were fed the same token and state."""
        width = frontier.tokens.shape[1]
        return DraftStep(
            self.states[:, level : level + 1].expand(-1, width, -1),
            step.tokens[:, :1].expand(-1, width),
            step.previous[:, :1].expand(-1, width, -1),
            None,
        )


class MedusaHead:
    """A draft head asked once for all levels, or once a level if its answer depends on the step, for ``width`` tokens
    at most; ``backend`` has all levels' states from the drafting's start."""

    def __init__(self, head: DraftHead, backend: MedusaBackend, width: int) -> None:
        self._head, self._backend, self._width = head, backend, width
        self.size, self.context_size, self.by_step = head.size, head.context_size, head.by_step
        self._kept: list[Answer] = []  # of each level, one row a request

    @property
    def target_ids(self) -> Tensor:
        return self._head.target_ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> Answer:
        """As the head's own: the nodes of a level are of one mind."""
        logprobs, ids = self._ask(self._head.topk, hidden, k, state)
        return logprobs[:, :k], ids[:, :k]

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> Answer:
        return self._ask(self._head.scores, hidden, k, state)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self._head.log_probs(hidden, state)

    def _ask(
        self,
        ask: Callable[[Tensor, int, DraftState | None], Answer],
        hidden: Tensor,
        k: int,
        state: DraftState | None,
    ) -> Answer:
        assert state is not None
        rows, width = state.requests, len(hidden) // state.requests
        # One node a request: all of them are alike.
        first = DraftState(state.step, state.tokens[::width], state.previous[::width], rows, state.context)
        if self._head.by_step:
            return _repeat(ask(hidden[::width], k, first), width)
        if state.step == 0:
            self._kept = self._all_levels(ask, first)
        return _repeat(self._kept[state.step], width)

    def _all_levels(
        self, ask: Callable[[Tensor, int, DraftState | None], Answer], state: DraftState
    ) -> list[Answer]:
        """Every level's answers, (B, .) each, from one call over B * levels rows."""
        levels, states = self._backend.levels, self._backend.states
        fed = DraftState(
            0,
            state.tokens.repeat_interleave(levels),
            state.previous.repeat_interleave(levels, 0),
            state.requests,
            state.context,
        )
        values, ids = ask(states.flatten(0, 1), self._width, fed)
        return [
            (values[level::levels], ids if ids.dim() == 1 else ids[level::levels]) for level in range(levels)
        ]


def _repeat(answer: Answer, width: int) -> Answer:
    """The same for every one of ``width`` nodes a request; ids (C,) that all rows share stay so."""
    values, ids = answer
    if width == 1:
        return values, ids
    return values.repeat_interleave(width, 0), ids if ids.dim() == 1 else ids.repeat_interleave(width, 0)


def build(parts: ProposerParts) -> ModelProposer:
    """Medusa heads; a fixed tree if none is asked for."""
    if not isinstance(parts.drafter, MedusaDrafter):
        raise UsageError(
            "the Medusa proposer needs a Medusa drafter",
            got="none"
            if parts.drafter is None
            else getattr(parts.drafter, "kind", type(parts.drafter).__name__),
            expected="--drafter with trained Medusa heads",
        )
    policy = choose_policy(parts.options, "static", parts.drafter.config.medusa_heads)
    backend = MedusaBackend(parts.drafter, policy.plan.levels)
    head = parts.head or exact_head(parts.drafter)
    return ModelProposer(backend, MedusaHead(head, backend, policy.width), policy)
