"""A model-based proposer: a backend that computes states, a head that scores them, a policy that grows the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

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
        self.pending = PendingCommits()
        self._context: ContextTokens | None = None
        self._unread: dict[int, int] = {}  # prompt positions of each row not yet prefilled
        # The head, if it prepares steps; a check in every cycle would take longer than a kernel.
        self._prepares = head if isinstance(head, PreparesSteps) else None
        self._capture: GraphCapture | None = None
        self._one_pass: _OnePass | None = None  # if all drafting is wrapped
        self._mode: _Mode = _LevelByLevel(self)

    def plans(self) -> list[Plan]:
        return self.policy.plans()

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        if self._capture is not None:
            self.wrap(self._capture)  # captured passes access the old memory
        self.backend.share(cache)
        self.backend.allocate(rows, positions, self.policy.scratch)
        self._rows = rows
        if self.head.context_size:
            self._context = ContextTokens(rows, self.head.context_size, cache.device)
        self.pending = PendingCommits()
        self._mode = self._one_pass or _LevelByLevel(self)
        chain = isinstance(self.policy, ShapePolicy) and self.policy.chain
        if self._one_pass is None and chain and self.backend.chains(self.head):
            self._mode = _OneCall(self)

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        if self._rows > 1:  # the other rows' positions
            self.flush()
        self.pending = PendingCommits()
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
        self._add_context(commit.tokens)
        if commit.path is not None and not self._mode.commits:
            self.backend.commit(commit)
            return
        self.pending.add(commit)
        if self.pending.positions >= MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        """Commit the pending positions."""
        for commit in self.pending.take():
            self.backend.commit(commit)

    def _add_context(self, tokens: Sequence[Sequence[int]]) -> None:
        if self._context is not None:
            for row, new in enumerate(tokens):
                self._context.add(row, new)

    def context(self) -> Tensor | None:
        """Return the tokens of each request's text, if the head reads them; always the same tensor."""
        return None if self._context is None else self._context.tensor

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        return self._mode.propose(roots, plan, draws, lap)

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

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        """Commit drafted positions on the device; see ``DraftBackend``."""
        self.backend.advance(following, states, counts)

    def note(self, tokens: Sequence[Sequence[int]]) -> None:
        """Commit on the host: the committed tokens of each row."""
        self._add_context(tokens)
        self.backend.note(list(map(len, tokens)))

    def device_state(self) -> Sequence[Tensor]:
        return self.backend.device_state()

    def wrap(self, wrap: Wrap) -> None:
        """Speed up drafting: all of it as one pass if it is a function of tensors, otherwise its passes."""
        self._capture = wrap if isinstance(wrap, GraphCapture) else None
        self.backend.wrap(wrap)
        self._one_pass = _OnePass(self, wrap) if self.on_device() else None


class PendingCommits:
    """Commits that wait for the next draft; ``positions`` counts theirs, with padding."""

    def __init__(self) -> None:
        self._commits: list[Commit] = []
        self.positions = 0

    def add(self, commit: Commit) -> None:
        if len(commit.tokens) == 1:  # commits of a single row are joined without padding
            count = len(commit.tokens[0])
            states = None if commit.states is None else commit.states[:, :count]
            commit = replace(commit, following=commit.following[:, :count], states=states)
        self._commits.append(commit)
        self.positions += commit.following.shape[1]

    def take(self) -> list[Commit]:
        """Remove and return the commits, those of a single row as one."""
        commits, self._commits, self.positions = self._commits, [], 0
        if len(commits) < 2 or len(commits[0].tokens) > 1:
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


class _Mode(Protocol):
    """A way to run the drafting of a cycle; ``commits`` if it commits the last cycle's positions as well."""

    commits: bool

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree: ...


class _LevelByLevel:
    commits = False

    def __init__(self, proposer: ModelProposer) -> None:
        self._proposer = proposer

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        proposer, backend = self._proposer, self._proposer.backend
        proposer.flush()
        tree = proposer.grow(backend.start(roots), roots, proposer.context(), plan, draws, lap)
        exits = backend.exits(tree)
        return tree if exits is None else replace(tree, exits=exits)


class _OnePass:
    commits = False

    def __init__(self, proposer: ModelProposer, wrap: Wrap) -> None:
        self._proposer, self._wrap = proposer, wrap
        self._passes: dict[Plan, Callable[..., DraftTree]] = {}

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        proposer = self._proposer
        proposer.flush()
        if plan not in self._passes:

            def draft(roots: Tensor, view: Tensor, context: Tensor | None) -> DraftTree:
                return proposer.draft_in(roots, view, context, plan)

            self._passes[plan] = self._wrap(f"{proposer.kind} drafting of {plan.nodes} nodes", draft)
        tree = self._passes[plan](roots, proposer.backend.view(), proposer.context())
        lap("layers")
        return tree


class _OneCall:
    """Chains of one row on a CPU: one call commits the pending positions and drafts the best tokens."""

    commits = True

    def __init__(self, proposer: ModelProposer) -> None:
        self._proposer, self._otherwise = proposer, _LevelByLevel(proposer)

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        proposer, policy = self._proposer, self._proposer.policy
        if not 0 < proposer.pending.positions <= FEW:
            return self._otherwise.propose(roots, plan, draws, lap)
        (commit,) = proposer.pending.take()
        tokens, head_s = proposer.backend.chain(commit, plan.levels)
        lap("layers", head_s)
        assert isinstance(policy, ShapePolicy)
        return policy.tree(plan, tokens)


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
