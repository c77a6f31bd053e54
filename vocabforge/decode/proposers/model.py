"""A model-based proposer: a backend that computes states, a head that scores them, a policy that grows the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...core.errors import UsageError
from ...models.heads.interface import PreparesSteps
from ...models.heads.on_ops import MOST_K, MOST_ROWS
from ...models.heads.registry import DraftHead, DraftState
from ...models.kv_cache import KVCache
from ...ops.few_rows import MOST_ROWS as FEW
from ..accelerate.graphs import GraphCapture
from ..interface import Commit, DraftBackend, DraftPolicy, DraftStep, Draw, Frontier, Plan, Wrap
from ..tree import DraftTree
from ..trees.fixed import ShapePolicy
from .context import ContextTokens
from .registry import Lap, Proposer

MOST_PENDING = 1024  # positions committed without a draft that may accumulate before the next draft


class ModelProposer(Proposer):
    """Proposer that drafts with a model, level by level: backend, head and policy work in turn.

    Raises:
        UsageError: the tree is wider than the draft vocabulary or deeper than the backend can draft.
    """

    head: DraftHead

    def __init__(self, backend: DraftBackend, head: DraftHead, policy: DraftPolicy) -> None:
        check_tree(backend, head, policy)
        self.backend, self.head, self.policy = backend, head, policy
        self.kind, self.label = backend.kind, backend.label
        self.reads, self.aux_layers = backend.reads, backend.aux_layers
        self.plan, self.samples = policy.plan, policy.samples
        self.scratch = policy.scratch + 1 if backend.shares_cache else 0
        self._pending: list[Commit] = []  # they wait for the next draft
        self._waiting = 0  # positions of these, with padding
        self._context: ContextTokens | None = None
        # The head, if it prepares steps; a check in every cycle would take longer than a kernel.
        self._prepares = head if isinstance(head, PreparesSteps) else None
        self._capture: GraphCapture | None = None
        self._one_pass: Wrap | None = None  # if all drafting is one pass
        self._passes: dict[Plan, Callable[..., DraftTree]] = {}
        self._one_call = False  # chains of one row on a CPU: a call commits and drafts the best tokens

    def plans(self) -> list[Plan]:
        return self.policy.plans()

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        if self._capture is not None:
            self.wrap(self._capture)  # captured passes access the old memory
        self.backend.allocate(rows, positions, self.policy.scratch, cache)
        self._rows = rows
        if self.head.context_size:
            self._context = ContextTokens(rows, self.head.context_size, cache.device)
        self._pending, self._waiting = [], 0
        chain = isinstance(self.policy, ShapePolicy) and self.policy.chain
        self._one_call = self._one_pass is None and chain and self.backend.chains(self.head)

    def begin(self, row: int, ids: Sequence[int]) -> None:
        if self._rows > 1:  # the other rows' positions
            self.flush()
        self._pending, self._waiting = [], 0
        self.backend.begin(row, ids)
        if self._context is not None:
            self._context.begin(row, ids[:-1])
            self._context.add(row, ids[-1:])

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        self.backend.prefill(row, following, states)

    def commit(self, commit: Commit) -> None:
        """Keep accepted positions; without a draft, they may wait until the next one."""
        self._add_context(commit.tokens)
        if commit.path is not None and not self._one_call:
            self.backend.commit(commit)
            return
        if self._rows == 1:  # commits of a single row are joined without padding
            count = len(commit.tokens[0])
            states = None if commit.states is None else commit.states[:, :count]
            commit = replace(commit, following=commit.following[:, :count], states=states)
        self._pending.append(commit)
        self._waiting += commit.following.shape[1]
        if self._waiting >= MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        """Commit the pending positions."""
        for commit in self._take_pending():
            self.backend.commit(commit)

    def _take_pending(self) -> list[Commit]:
        """Remove and return the pending commits, those of a single row as one."""
        commits, self._pending, self._waiting = self._pending, [], 0
        if len(commits) < 2 or self._rows > 1:
            return commits
        states = [commit.states for commit in commits if commit.states is not None]
        joined = replace(
            commits[0],
            following=torch.cat([commit.following for commit in commits], 1),
            states=torch.cat(states, 1) if states else None,
            counts=torch.stack([commit.counts for commit in commits]).sum(0),
            tokens=[[token for commit in commits for token in commit.tokens[0]]],
        )
        return [joined]

    def _add_context(self, tokens: Sequence[Sequence[int]]) -> None:
        if self._context is not None:
            for row, new in enumerate(tokens):
                self._context.add(row, new)

    def context(self) -> Tensor | None:
        """Return the tokens of each request's text, if the head reads them; always the same tensor."""
        return None if self._context is None else self._context.tensor

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        if self._one_call and 0 < self._waiting <= FEW:
            (commit,) = self._take_pending()
            tokens, head_s = self.backend.chain(commit, plan.levels)
            lap("layers", head_s)
            assert isinstance(self.policy, ShapePolicy)
            return self.policy.tree(plan, tokens)
        self.flush()
        if self._one_pass is not None:
            if plan not in self._passes:
                name = f"{self.kind} drafting of {plan.nodes} nodes"
                self._passes[plan] = self._one_pass(name, partial(self.draft_in, plan=plan))
            tree = self._passes[plan](roots, self.backend.view(), self.context())
            lap("layers")
            return tree
        tree = self.grow(self.backend.start(roots), roots, self.context(), plan, draws, lap)
        exits = self.backend.exits(tree)
        return tree if exits is None else replace(tree, exits=exits)

    def grow(
        self,
        step: DraftStep,
        roots: Tensor,
        context: Tensor | None,
        plan: Plan,
        draws: Sequence[Draw] | None,
        lap: Lap,
    ) -> DraftTree:
        """Grow trees from the states at the roots: score and select children, expand them, and so on."""
        growth = self.policy.grow(len(roots), plan, draws, self._capture is not None)
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
            prepared = self._prepared(frontier, step, state)
            step = self.backend.expand(frontier, step, level)
            fed = step.tokens.flatten(), step.previous.flatten(0, 1)
            state = prepared or DraftState(level, *fed, len(roots), context)
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
        self.flush()
        self._inputs = self.backend.view(), self.context()

    def draft(self, roots: Tensor, plan: Plan) -> DraftTree:
        """Draft trees under the last committed tokens (B,) on the device; call :meth:`prepare` first."""
        return self.draft_in(roots, *self._inputs, plan)

    def draft_in(self, roots: Tensor, view: Tensor, context: Tensor | None, plan: Plan) -> DraftTree:
        """Draft as a function of tensors; ``view``: see ``DraftBackend``."""
        return self.grow(self.backend.start_in(roots, view), roots, context, plan, None, _no_lap)

    def note(self, tokens: Sequence[Sequence[int]]) -> None:
        """Commit on the host: the committed tokens of each row."""
        self._add_context(tokens)
        self.backend.note(list(map(len, tokens)))

    def wrap(self, wrap: Wrap) -> None:
        """Speed up drafting: all of it as one pass if it is a function of tensors, otherwise its passes."""
        self._capture = wrap if isinstance(wrap, GraphCapture) else None
        self.backend.wrap(wrap)
        self._one_pass = wrap if self.on_device() else None
        self._passes = {}


def _no_lap(part: str, head_s: float = 0.0, /) -> None:
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
