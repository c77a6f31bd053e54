"""A draft head for drafters with one state per level, available from the start of drafting."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...models.heads.registry import DraftHead, DraftState
from ..interface import DraftBackend, DraftStep, Frontier

Answer = tuple[Tensor, Tensor]


def level_step(states: Tensor, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
    """Return the state of ``level`` in (B, levels, H) for every frontier node; inputs are ``step``'s."""
    width = frontier.tokens.shape[1]
    return DraftStep(
        states[:, level : level + 1].expand(-1, width, -1),
        step.tokens[:, :1].expand(-1, width),
        step.previous[:, :1].expand(-1, width, -1),
        None,
    )


class LevelHead:
    """Draft head called once for all levels, or once per level if its output depends on the step.

    It returns at most ``width`` tokens; ``backend`` has the ``states``.
    """

    def __init__(self, head: DraftHead, backend: DraftBackend, width: int) -> None:
        self.head, self._backend, self._width = head, backend, width
        self.size, self.context_size, self.by_step = head.size, head.context_size, head.by_step
        self.static_shapes = getattr(head, "static_shapes", False)
        self.on_ops = getattr(head, "on_ops", False)
        self._kept: list[Answer] = []  # outputs of each level, one row per request

    @property
    def target_ids(self) -> Tensor:
        return self.head.target_ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> Answer:
        """Return the head's top k, which are the same for all nodes of a level."""
        logprobs, ids = self._ask(self.head.topk, hidden, k, state)
        return logprobs[:, :k], ids[:, :k]

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> Answer:
        return self._ask(self.head.scores, hidden, k, state)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self.head.log_probs(hidden, state)

    def _ask(
        self,
        ask: Callable[[Tensor, int, DraftState | None], Answer],
        hidden: Tensor,
        k: int,
        state: DraftState | None,
    ) -> Answer:
        assert state is not None
        rows, width = state.requests, len(hidden) // state.requests
        # One node per request: all of them are equal.
        first = DraftState(state.step, state.tokens[::width], state.previous[::width], rows, state.context)
        if self.head.by_step:
            return _repeat(ask(hidden[::width], k, first), width)
        if state.step == 0:
            self._kept = self._all_levels(ask, first)
        return _repeat(self._kept[state.step], width)

    def _all_levels(
        self, ask: Callable[[Tensor, int, DraftState | None], Answer], state: DraftState
    ) -> list[Answer]:
        """Return every level's outputs, (B, .) each, from one call over B * levels rows."""
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
    """Repeat outputs for ``width`` nodes per request; ids (C,) shared by all rows stay as they are."""
    values, ids = answer
    if width == 1:
        return values, ids
    return values.repeat_interleave(width, 0), ids if ids.dim() == 1 else ids.repeat_interleave(width, 0)
