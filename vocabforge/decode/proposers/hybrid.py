"""Several proposers in one decoder: each cycle's plan selects one, and all receive the committed tokens.

A control selects the arm (a trained drafter, n-grams, an early exit, and the length), see
``control/adaptive.py``. Its choice depends only on past cycles, so the output keeps the target's distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from ...core.errors import UsageError
from ...models.kv_cache import KVCache
from ..interface import Commit, Draw, Plan, Wrap
from ..tree import DraftTree
from .registry import JOIN, Lap, Proposer


class HybridProposer(Proposer):
    """Proposer that drafts with the part whose kind is ``Plan.by``; a fixed control uses the first part.

    Raises:
        UsageError: there are fewer than two parts, two have the same kind, or two read different states of
            the target.
    """

    def __init__(self, parts: Sequence[Proposer]) -> None:
        kinds = [part.kind for part in parts]
        reading = {(part.reads, part.aux_layers) for part in parts if part.reads != "none"}
        if len(parts) < 2 or len(set(kinds)) < len(kinds) or len(reading) > 1:
            raise UsageError(
                "these proposers make no hybrid",
                got=", ".join(kinds) + (" that read different states" if len(reading) > 1 else ""),
                expected="two or more of different kinds, of which those that read the target's states read the same",
            )
        self.parts = list(parts)
        self.kind, self.label = JOIN.join(kinds), " + ".join(part.label for part in parts)
        self.reads, self.aux_layers = next(iter(reading), ("none", ()))
        # Plan of each arm -> (part, the part's own plan); the first part's last.
        self._arms = {
            replace(plan, by=part.kind): (part, plan) for part in parts[::-1] for plan in part.plans()
        }
        self.plan = Plan(max(part.plan.levels for part in parts), max(part.plan.nodes for part in parts))
        self.samples = any(part.samples for part in parts)
        self.scratch = max(part.scratch for part in parts)
        self.head = next((part.head for part in parts if part.head is not None), None)
        self._drafted: Proposer | None = None  # part that drafts in this cycle

    def plans(self) -> list[Plan]:
        return list(self._arms)

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        self._drafted = None
        # For the padded paths of another part, which may be longer than a part's own.
        room = 2 * (self.plan.levels + 1)
        for part in self.parts:
            part.allocate(rows, positions + room, cache)

    def begin(self, row: int, ids: Sequence[int]) -> None:
        for part in self.parts:
            part.begin(row, ids)

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        for part in self.parts:
            part.prefill(row, following, None if part.reads == "none" else states)

    def commit(self, commit: Commit) -> None:
        """Commit to all parts; those that did not draft get no path."""
        for part in self.parts:
            path = commit.path if part is self._drafted else None
            states = None if part.reads == "none" else commit.states
            part.commit(replace(commit, path=path, states=states))
        self._drafted = None

    def ready(self, plan: Plan) -> bool:
        part, own = self._arms[plan]
        return part.ready(own)

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        part, own = self._arms[plan]
        self._drafted = part
        return part.propose(roots, own, draws if part.samples else None, lap)

    def wrap(self, wrap: Wrap) -> None:
        """Speed up the passes of all parts."""
        for part in self.parts:
            part.wrap(wrap)
