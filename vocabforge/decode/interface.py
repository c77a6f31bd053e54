"""Interfaces for drafting: a backend computes states, a head scores them, a policy grows a tree.

Backend (EAGLE, draft model, early exit, Medusa) x head (``models/heads/registry.py``) x policy (dynamic tree,
fixed shape, chain; best or sampled children) = a model-based proposer, assembled in ``proposers/model.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from ..models.heads.registry import DraftHead, DraftState
from ..models.kv_cache import KVCache
from .exit_states import ExitStates
from .positions import Positions
from .request import SamplingParams
from .sampling import Chance
from .tree import DraftTree

# (name, pure function of tensors with static shapes) -> a faster version of it (compiled, captured).
Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Plan:
    """Size of a cycle's draft: levels below the root (0: plain decoding), verified nodes with the root."""

    levels: int
    nodes: int
    by: str = ""  # the proposer that drafts, if there are several


PLAIN_PLAN = Plan(0, 1)


def shallower_plans(full: Plan) -> list[Plan]:
    """Return plans of 1 .. ``full.levels`` levels with a proportional number of nodes, ``full`` last."""
    sizes = range(1, full.levels)
    return [*(Plan(n, max(n + 1, full.nodes * n // full.levels)) for n in sizes), full]


@dataclass(frozen=True)
class Draw:
    """Randomness of one row, for policies that sample: its sampling parameters and random stream."""

    sampling: SamplingParams
    chance: Chance


@dataclass(frozen=True)
class Commit:
    """The positions that one cycle commits in B rows, padded to L per row."""

    following: Tensor  # (B, L) int64 token after each committed position; the first follows the root
    states: Tensor | None  # (B, L, .) the target's states at these positions, if the proposer reads any
    counts: Tensor  # (B,) int64 real positions of each row (0 for an idle row); the rest is padding
    # (B, L) int64 nodes of the last proposed tree, root first; None if there was none
    path: Tensor | None
    tokens: Sequence[Sequence[int]]  # the real tokens of ``following``, on the host


class Frontier(NamedTuple):
    """Nodes to expand next."""

    tokens: Tensor  # (B, W) int64
    parents: Tensor  # (B, W) indices in the previous frontier
    # (B, W, words) int64, for passes whose masks are bits: bit j % 64 of word j // 64 is set if a node is the
    # j-th expanded node below the root or is below it.
    words: Tensor | None = None


class DraftStep(NamedTuple):
    """States of one frontier."""

    hidden: Tensor  # (B, W, H) input of the head
    tokens: Tensor  # (B, W) that were fed,
    previous: Tensor  # (B, W, H) together with these states
    carry: Any  # data that the backend needs for the expansion


class DraftBackend:
    """Base class of backends, which compute draft states level by level for B rows at once.

    ``start_in``, ``expand`` and ``advance`` are functions of tensors with static shapes, so that drafting,
    and committing drafts, can be compiled or captured.
    """

    kind: str  # name of its proposer
    label: str  # name shown to users
    # States of the target that it reads: of auxiliary layers, or the last hidden ones.
    reads: Literal["aux", "hidden", "none"] = "none"
    aux_layers: tuple[int, ...] = ()  # 0-based layers of ``aux``
    most_levels: int | None = None  # deepest tree it can draft
    shares_cache = False  # whether it drafts in the target's own cache
    ends_chains = False  # see ``worth``

    positions: Positions | None = None  # of its cache; created by ``allocate``
    # For drafters with one state per level: (B, levels, H), available once a draft has started.
    levels: int
    states: Tensor

    def allocate(self, rows: int, positions: int, scratch: int, cache: KVCache) -> None:
        """Allocate memory for B rows of ``positions`` and ``scratch`` draft nodes; discard all state.

        ``cache`` is the target's.
        """
        raise NotImplementedError

    def begin(self, row: int, ids: Sequence[int]) -> None:
        """Start a new request in a row and discard the last one; see ``Proposer``."""
        if self.positions is not None:
            self.positions.reset(row)

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        """Process a row's next T prompt positions: the tokens (T,) after them, the target's states (T, .)."""
        raise NotImplementedError

    def commit(self, commit: Commit) -> None:
        """Keep the accepted positions."""
        self.advance(commit.following, commit.states, commit.counts)
        self.note([len(tokens) for tokens in commit.tokens])

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        """Run the device's half of a commit, in place; see :class:`Commit`."""
        raise NotImplementedError

    def note(self, counts: Sequence[int]) -> None:
        """Run the host's half of a commit: add committed positions of each row."""
        if self.positions is not None:
            self.positions.note(counts)

    def device_state(self) -> Sequence[Tensor]:
        """Return the tensors that ``advance`` reads and changes, except key caches."""
        raise NotImplementedError

    def wrap(self, wrap: Wrap) -> None:
        """Speed up the backend's other passes."""

    def view(self) -> Tensor:
        """Return the slots (S',) that drafting reads now."""
        raise NotImplementedError

    def start(self, roots: Tensor) -> DraftStep:
        """Return the states at the last committed tokens (B,): a frontier of one node per row."""
        return self.start_in(roots, self.view())

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        """Run ``start`` over these slots."""
        raise NotImplementedError

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        """Return the states of ``frontier``, children of ``step``'s nodes; ``level`` 1 is below the root."""
        raise NotImplementedError

    def fed(self, frontier: Frontier, step: DraftStep) -> Tensor | None:
        """Return ``previous`` (B, W, H) of the step that expands ``frontier``, if known before its pass."""
        return None

    def worth(self, frontier: Frontier, level: int) -> bool:
        """Return whether to draft ``level`` below nodes (B, 1) of a chain, before the draft is chosen."""
        return True

    def chains(self, head: DraftHead) -> bool:
        """Return whether :meth:`chain` supports this head with the allocated memory."""
        return False

    def chain(self, commit: Commit, count: int) -> tuple[Tensor, float]:
        """Commit a row's positions, then draft a chain of best tokens.

        Returns:
            (1, 1 + count) tokens, root first; and the seconds spent in the draft head.
        """
        raise NotImplementedError

    def exits(self, tree: DraftTree) -> ExitStates | None:
        """Return the states of a draft that verification can reuse."""
        return None


class Growth(Protocol):
    """Interface of one draft: turns the head's scores of a frontier into the next one, finally the tree."""

    def add(self, head: DraftHead, hidden: Tensor, state: DraftState) -> Frontier | None:
        """Add children of the last frontier from its states (B, W, H); return None after the last level."""

    def finish(self, roots: Tensor) -> DraftTree:
        """Return the trees under the last committed tokens (B,)."""


class DraftPolicy(Protocol):
    """Choice of the nodes of draft trees."""

    plan: Plan  # full size
    scratch: int  # draft nodes that backends must have room for (all expanded nodes of a drafting)
    width: int  # maximum children of a node
    broadest: int  # maximum nodes expanded at once
    samples: bool  # children are drawn from the head's distribution instead of taking its best

    def plans(self) -> list[Plan]:
        """Return the sizes that it can draft, smallest first, ``plan`` last."""

    def grow(self, rows: int, plan: Plan, draws: Sequence[Draw] | None, bits: bool = False) -> Growth:
        """Start drafting B rows; ``draws``: one per row if it samples; ``bits``: frontiers have words."""
