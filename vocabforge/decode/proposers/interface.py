"""What drafting is made of: a backend that computes states, a head that scores them, a policy that grows a tree.

Backend (EAGLE, draft model, early exit, Medusa) x head (``models/heads/registry.py``) x policy (dynamic tree, fixed
shape, chain; best or sampled children) = a model-based proposer, put together in ``proposers/model.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from ...models.heads.registry import DraftHead, DraftState
from ...models.kv_cache import KVCache
from ..exit_states import ExitStates
from ..request import SamplingParams
from ..sampling import Chance
from ..tree import DraftTree

# A pure function of tensors with static shapes, by name -> the same, made faster (compiled, captured).
Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Plan:
    """How much one cycle drafts: levels below the root (0: plain decoding), and nodes verified, root included."""

    levels: int
    nodes: int
    by: str = ""  # the proposer that drafts, if there are several


PLAIN_PLAN = Plan(0, 1)


def shallower_plans(full: Plan) -> list[Plan]:
    """Plans of 1 .. levels levels with nodes in proportion, ``full`` last."""
    sizes = range(1, full.levels)
    return [*(Plan(n, max(n + 1, full.nodes * n // full.levels)) for n in sizes), full]


@dataclass(frozen=True)
class Draw:
    """Randomness of one row, for policies that sample: its stream and its transform."""

    sampling: SamplingParams
    chance: Chance


@dataclass(frozen=True)
class Commit:
    """What one cycle commits in B rows, padded to L positions a row."""

    following: Tensor  # (B, L) int64 token after each committed position; the first is that after the root
    states: Tensor | None  # (B, L, .) the target's states of those positions, if the proposer reads any
    counts: Tensor  # (B,) int64 real positions of each row (0 for an idle row); the rest is padding
    # (B, L) int64 nodes of the last proposed tree, the root first; None: none was proposed
    path: Tensor | None
    tokens: Sequence[Sequence[int]]  # the real ones of ``following``, on the host


class Frontier(NamedTuple):
    """Nodes to expand next: ``tokens`` (B, W) int64 and ``parents`` (B, W), places in the frontier before; and, for
    passes whose masks are bits, ``words`` (B, W, words) int64: bit j % 64 of word j // 64 is set if a node is below the
    j-th expanded node below the root, or is that node."""

    tokens: Tensor
    parents: Tensor
    words: Tensor | None = None


class DraftStep(NamedTuple):
    """States of one frontier."""

    hidden: Tensor  # (B, W, H) that the head reads
    tokens: Tensor  # (B, W) that were fed,
    previous: Tensor  # (B, W, H) with these states
    carry: Any  # whatever the backend needs to expand it


class DraftBackend:
    """Base of what computes draft states level by level, for B rows at once.

    ``start_in``, ``expand`` and ``advance`` are functions of tensors with static shapes, so that a drafting, and a
    commit of what was drafted, can be compiled or captured. The defaults of ``begin`` and ``note`` are for backends
    whose ``allocate`` makes ``rows`` and ``lengths``.
    """

    kind: str  # its proposer's name,
    label: str  # and as people write it
    # States of the target that it takes: of layers, or the last.
    reads: Literal["aux", "hidden", "none"] = "none"
    aux_layers: tuple[int, ...] = ()  # 0-based layers behind ``aux``
    most_levels: int | None = None  # deepest tree it can draft
    shares_cache = False  # it drafts in the target's own cache
    ends_chains = False  # see ``worth``

    rows: Tensor  # (B,) int64 committed positions,
    lengths: list[int]  # and the same on the host
    # Of drafters whose nodes of a level have one state: (B, levels, H), all there when a drafting has started.
    levels: int
    states: Tensor

    def share(self, cache: KVCache) -> None:
        """The target's cache, B rows, if it is shared; called before ``allocate``."""

    def allocate(self, rows: int, positions: int, scratch: int) -> None:
        """Memory for B rows of that many positions and ``scratch`` draft nodes; forgets everything."""
        raise NotImplementedError

    def begin(self, row: int, prompt_ids: Sequence[int]) -> None:
        """A new request in a row: forget its last one."""
        self.rows[row] = 0
        self.lengths[row] = 0

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        """The next T prompt positions of a row: the tokens (T,) after them and the target's states (T, .)."""
        raise NotImplementedError

    def commit(self, commit: Commit) -> None:
        """Keep what was accepted."""
        self.advance(commit.following, commit.states, commit.counts)
        self.note([len(tokens) for tokens in commit.tokens])

    def advance(self, following: Tensor, states: Tensor | None, counts: Tensor) -> None:
        """The device's half of a commit: changes its tensors in place; see :class:`Commit`."""
        raise NotImplementedError

    def note(self, counts: Sequence[int]) -> None:
        """The host's half: committed positions of each row."""
        self.lengths = [old + new for old, new in zip(self.lengths, counts)]

    def device_state(self) -> Sequence[Tensor]:
        """Tensors that ``advance`` reads and changes, beside key caches."""
        raise NotImplementedError

    def wrap(self, wrap: Wrap) -> None:
        """Make its other passes faster."""

    def view(self) -> Tensor:
        """(S',) slots that drafting looks at now."""
        raise NotImplementedError

    def start(self, roots: Tensor) -> DraftStep:
        """States at the last committed tokens (B,): a frontier of one node a row."""
        return self.start_in(roots, self.view())

    def start_in(self, roots: Tensor, view: Tensor) -> DraftStep:
        """``start``, looking at these slots."""
        raise NotImplementedError

    def expand(self, frontier: Frontier, step: DraftStep, level: int) -> DraftStep:
        """States of the nodes of ``frontier``, children of ``step``'s; ``level`` 1 is below the root."""
        raise NotImplementedError

    def fed(self, frontier: Frontier, step: DraftStep) -> Tensor | None:
        """``previous`` (B, W, H) of the step that expands ``frontier``, if that is known before its pass."""
        return None

    def worth(self, frontier: Frontier, level: int) -> bool:
        """Whether to draft level ``level`` below the nodes (B, 1) of a chain; decided before the draft is chosen."""
        return True

    def chains(self, head: DraftHead) -> bool:
        """Whether :meth:`chain` drafts with this head, in the memory that is allocated."""
        return False

    def chain(self, commit: Commit, count: int) -> Tensor:
        """Commit a row's positions, then draft a chain of best tokens: (1, 1 + count) tokens, the root first."""
        raise NotImplementedError

    def exits(self, tree: DraftTree) -> ExitStates | None:
        """What the drafting of a tree leaves to verification."""
        return None


@runtime_checkable
class SometimesReady(Protocol):
    """What has nothing to draft in some cycles."""

    def ready(self, plan: Plan) -> bool:
        """Return whether a plan has anything to draft for any row now."""


@runtime_checkable
class WrapsPasses(Protocol):
    """What has passes of its own to be made faster."""

    def wrap(self, wrap: Wrap) -> None: ...


class Growth(Protocol):
    """One drafting: told what the head says of each frontier, it names the next one and, at last, the tree."""

    def add(self, head: DraftHead, hidden: Tensor, state: DraftState) -> Frontier | None:
        """Children of the last frontier from its states (B, W, H); None when nothing further is to be expanded."""

    def finish(self, roots: Tensor) -> DraftTree:
        """The trees under the last committed tokens (B,)."""


class DraftPolicy(Protocol):
    """Which tree is drafted."""

    plan: Plan  # its full size
    scratch: int  # draft nodes that backends must have room for (all expanded nodes of a drafting)
    width: int  # most children of a node
    broadest: int  # most nodes that are expanded at once
    samples: bool  # children are drawn from the head's distribution; else they are its best

    def plans(self) -> list[Plan]:
        """The sizes it can draft, smallest first, ``plan`` last."""

    def grow(self, rows: int, plan: Plan, draws: Sequence[Draw] | None, bits: bool = False) -> Growth:
        """Begin a drafting of B rows; ``draws`` one a row, where it samples; ``bits``: frontiers have words."""
