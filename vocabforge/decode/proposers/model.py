"""A model-based proposer: a backend that computes states, a head that scores them, a policy that grows the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...models.heads.interface import PreparesSteps
from ...models.heads.on_ops import MOST_K, MOST_ROWS
from ...models.heads.registry import DraftHead, DraftState
from ...models.kv_cache import KVCache
from ...ops.few_rows import MOST_ROWS as FEW
from ..accelerate.graphs import GraphCapture
from ..tree import DraftTree
from ..trees.fixed import ShapePolicy
from .context import ContextTokens
from .interface import (
    Commit,
    DraftBackend,
    DraftPolicy,
    DraftStep,
    Draw,
    Frontier,
    Plan,
    Wrap,
)
from .registry import Lap

MOST_PENDING = 1024  # positions committed without a draft that may accumulate before the next draft


class ModelProposer:
    """Proposer that drafts with a model, level by level: backend, head and policy work in turn.

    Raises:
        UsageError: the tree is wider than the draft vocabulary or deeper than the backend can draft.
    """

    def __init__(self, backend: DraftBackend, head: DraftHead, policy: DraftPolicy) -> None:
        check_tree(backend, head, policy)
        self.backend, self.head, self.policy = backend, head, policy
        self.kind, self.label = backend.kind, backend.label
        self.reads, self.aux_layers = backend.reads, backend.aux_layers
        self.plan, self.samples = policy.plan, policy.samples
        self.scratch = policy.scratch + 1 if backend.shares_cache else 0
        self._context: ContextTokens | None = None
        self._pending: list[Commit] = []
        self._waiting = 0  # positions in ``_pending``
        self._unread: dict[int, int] = {}  # prompt positions of each row not yet prefilled
        self._wrap: Wrap | None = None
        # The head, if it prepares steps; a check in every cycle would take longer than a kernel.
        self._prepares = head if isinstance(head, PreparesSteps) else None
        self.by_steps = False  # no single-call chains, so that steps can be timed
        # For chains that commit and draft in one call.
        self._chain: ShapePolicy | None = None
        self._captured: GraphCapture | None = None
        self._whole: dict[Plan, Callable[..., DraftTree]] = {}

    def plans(self) -> list[Plan]:
        return self.policy.plans()

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        if self._captured is not None:
            self.wrap(self._captured)  # captured passes access the old memory
        self.backend.share(cache)
        self.backend.allocate(rows, positions, self.policy.scratch)
        if self.head.context_size:
            self._context = ContextTokens(rows, self.head.context_size, cache.device)
        self._pending, self._waiting = [], 0
        policy, self._chain = self.policy, None
        eager = self._wrap is None and not self.by_steps
        if eager and isinstance(policy, ShapePolicy) and policy.chain and self.backend.chains(self.head):
            self._chain = policy

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        if self._chain is None:
            self._flush()  # commit the other rows' positions
        self._pending, self._waiting = [], 0
        self.backend.begin(row, prompt_ids)
        self._unread[row] = len(prompt_ids)
        if self._context is not None:
            self._context.begin(row, prompt_ids)

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        self.backend.prefill(row, following, states)
        self._unread[row] -= len(following)
        if self._context is not None and self._unread[row] == 0:  # the prompt itself is already known
            self._context.add(row, following[-1:].tolist())

    def commit(self, commit: Commit) -> None:
        """Keep accepted positions; without a draft, they may wait until the next one."""
        self._meet(commit.tokens)
        if self._chain is None and commit.path is not None:
            self.backend.commit(commit)
            return
        commit = _trimmed(commit) if len(commit.tokens) == 1 else commit  # a joined row has no padding
        self._pending.append(commit)
        self._waiting += commit.following.shape[1]
        if self._waiting >= MOST_PENDING:
            self._flush()

    def _meet(self, tokens: Sequence[Sequence[int]]) -> None:
        if self._context is not None:
            for row, found in enumerate(tokens):
                self._context.add(row, found)

    def _flush(self) -> None:
        if not self._pending:
            return
        if len(self._pending[0].counts) == 1:  # one row has no padding between its parts
            self.backend.commit(_joined(self._pending))
        else:
            for commit in self._pending:
                self.backend.commit(commit)
        self._pending, self._waiting = [], 0

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        if self._chain is not None and 0 < self._waiting <= FEW:
            commit = _joined(self._pending)
            self._pending, self._waiting = [], 0
            tokens = self.backend.chain(commit, plan.levels)
            lap("layers")
            return self._chain.tree(plan, tokens)
        self._flush()
        context = None if self._context is None else self._context.tensor
        whole = self._whole_pass(plan)
        if whole is not None:
            tree: DraftTree = whole(roots, self.backend.view(), context)
            lap("layers")
            return tree
        tree = self._draft(self.backend.start(roots), roots, context, plan, draws, lap)
        exits = self.backend.exits(tree)
        return tree if exits is None else replace(tree, exits=exits)

    def _draft(
        self,
        step: DraftStep,
        roots: Tensor,
        context: Tensor | None,
        plan: Plan,
        draws: Sequence[Draw] | None,
        lap: Lap,
    ) -> DraftTree:
        growth = self.policy.grow(len(roots), plan, draws, self._captured is not None)
        level = 0
        state = DraftState(0, step.tokens.flatten(), step.previous.flatten(0, 1), len(roots), context)
        lap("layers")
        while True:
            frontier = growth.add(self.head, step.hidden, state)
            lap("head")
            if frontier is None:
                break
            level += 1
            if not self.backend.worth(frontier, level):
                break
            ahead = self._prepared(frontier, step, state)
            step = self.backend.expand(frontier, step, level)
            fed = step.tokens.flatten(), step.previous.flatten(0, 1)
            state = ahead or DraftState(level, *fed, len(roots), context)
            lap("layers")
        tree = growth.finish(roots)
        lap("draft")
        return tree

    def _prepared(self, frontier: Frontier, step: DraftStep, state: DraftState) -> DraftState | None:
        """Return the state of the step after ``state`` if the head can start before the backend's pass."""
        if self._prepares is None or (previous := self.backend.fed(frontier, step)) is None:
            return None
        tokens, previous = frontier.tokens.flatten(), previous.flatten(0, 1)
        fed = DraftState(state.step + 1, tokens, previous, state.requests, state.context)
        return self._prepares.prepare(fed)

    def on_device(self) -> bool:
        """Return whether drafting and committing can be parts of one pass over tensors with static shapes."""
        if self.samples or self.backend.ends_chains or not getattr(self.head, "static_shapes", False):
            return False
        # For wider trees, a head on the ops may not have a static form; see ``DraftHead``.
        fits = self.policy.width <= MOST_K and self.policy.broadest <= MOST_ROWS
        return fits or not getattr(self.head, "on_ops", False)

    def prepare(self) -> None:
        """Move the host's data to the device before a cycle on the device."""
        self._flush()
        self._told = None if self._context is None else self._context.tensor  # always the same tensor
        self._view = self.backend.view()

    def draft(self, roots: Tensor, plan: Plan) -> DraftTree:
        """Draft trees under the last committed tokens (B,) on the device; call :meth:`prepare` first."""
        return self._draft(self.backend.start_in(roots, self._view), roots, self._told, plan, None, _no_lap)

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        """Commit drafted positions on the device; see ``DraftBackend``."""
        self.backend.advance(following, states, counts)

    def note(self, tokens: Sequence[Sequence[int]]) -> None:
        """Commit on the host: the committed tokens of each row."""
        self._meet(tokens)
        self.backend.note([len(found) for found in tokens])

    def device_state(self) -> Sequence[Tensor]:
        return self.backend.device_state()

    def wrap(self, wrap: Wrap) -> None:
        """Speed up drafting: all of it as one pass if it is a function of tensors, otherwise its passes."""
        self._whole = {}
        self._captured = wrap if isinstance(wrap, GraphCapture) else None
        self.backend.wrap(wrap)
        if self.on_device():
            self._wrap = wrap

    def _whole_pass(self, plan: Plan) -> Callable[..., DraftTree] | None:
        if self._wrap is None:
            return None
        if plan not in self._whole:

            def draft(roots: Tensor, view: Tensor, context: Tensor | None) -> DraftTree:
                return self._draft(self.backend.start_in(roots, view), roots, context, plan, None, _no_lap)

            self._whole[plan] = self._wrap(f"{self.kind} drafting of {plan.nodes} nodes", draft)
        return self._whole[plan]


def _no_lap(part: str) -> None:
    """Ignore laps, because the parts of a single pass cannot be timed."""


def check_tree(backend: DraftBackend, head: DraftHead, policy: DraftPolicy) -> None:
    """Reject trees that are wider than the draft vocabulary, or deeper than the backend can draft."""
    if policy.width > head.size:
        raise UsageError(
            "the draft tree is wider than the draft vocabulary",
            got=f"topk {policy.width}",
            expected=f"at most {head.size}",
            remedy="lower --topk",
        )
    if backend.most_levels is not None and policy.plan.levels > backend.most_levels:
        raise UsageError(
            f"the draft tree is deeper than the {backend.label} drafter can draft",
            got=f"depth {policy.plan.levels - 1}, which takes {policy.plan.levels} levels",
            expected=f"at most depth {backend.most_levels - 1}",
            remedy="lower --depth",
        )


def _trimmed(commit: Commit) -> Commit:
    count = len(commit.tokens[0])
    if commit.following.shape[1] == count:
        return commit
    states = None if commit.states is None else commit.states[:, :count]
    return replace(commit, following=commit.following[:, :count], states=states)


def _joined(commits: Sequence[Commit]) -> Commit:
    """Join consecutive commits of one row."""
    if len(commits) == 1:
        return commits[0]
    first = commits[0]
    return replace(
        first,
        following=torch.cat([one.following for one in commits], 1),
        states=None
        if first.states is None
        else torch.cat([one.states for one in commits if one.states is not None], 1),
        counts=torch.stack([one.counts for one in commits]).sum(0),
        tokens=[[token for one in commits for token in one.tokens[0]]],
    )
