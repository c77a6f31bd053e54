"""One decode cycle of B rows, step by step: draft, target, verification, commit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .interface import Commit, Draw, Plan
from .proposers.registry import Lap, Proposer
from .request import SamplingParams
from .sampling import SeededChance, no_distribution
from .target_side import TargetPass, TargetSide
from .tree import DraftTree, root_trees
from .verify.registry import RowVerification, Verdicts, by_argmax, greedy_verdicts, verify
from .work import offered

_IDLE = Draw(SamplingParams(), SeededChance(0))

Judges = Sequence[RowVerification | None]  # one per row; None if the row is idle


class CycleResult(NamedTuple):
    """Result of a cycle: the verdicts, and the deepest level and number of drafts of each row's tree."""

    verdicts: Verdicts
    deepest: list[int]
    drafted: list[int]


class SteppedCycle:
    """Cycle driven step by step from the host, for any proposer (None: plain decoding), verifier and plan.

    Like :class:`~vocabforge.decode.device_cycle.DeviceCycle`, it holds each row's last token.
    """

    def __init__(self, side: TargetSide, proposer: Proposer | None, verifier: str | None) -> None:
        self._side, self._proposer, self._verifier = side, proposer, verifier
        self._reads = proposer.reads if proposer else "none"
        self._roots = torch.zeros(side.rows, dtype=torch.int64, device=side.target.device)
        self._plain = root_trees(self._roots)

    def begin(self, row: int, root: int, sampling: SamplingParams) -> None:
        """Start a request in a row after its prefill; ``root`` is its first generated token."""
        self._roots[row] = root

    def end(self, row: int) -> None:
        """Mark a row as idle. Its last token stays: idle rows are drafted together with the others."""

    def run(self, plan: Plan, judges: Judges, lap: Lap) -> CycleResult:
        """Run one cycle and call ``lap`` at the end of each part."""
        if plan.levels == 0 or self._proposer is None:
            tree = replace(self._plain, tokens=self._roots[:, None])
        else:
            draws = None
            if self._proposer.samples:
                draws = [Draw(judge.sampling, judge.chance) if judge else _IDLE for judge in judges]
            tree = self._proposer.propose(self._roots, plan, draws, lap)
            lap("draft")
        greedy = all(judge is None or by_argmax(judge.sampling) for judge in judges)
        whole = tree.alive is None and tree.distributions is None  # a full draft that was not sampled
        if greedy and self._side.eager and whole and (tree.chain or tree.tokens.shape[1] == 1):
            return self._line(plan, tree, judges, lap)
        if greedy:
            output = self._side.verify_pass(tree, plan.levels)
            assert output.decision is not None
            verdicts = greedy_verdicts(*output.decision, judges)
        else:
            output = self._side.verify_pass(tree)
            assert output.logits is not None
            verdicts = verify(tree, output.logits, judges, plan.levels, self._verifier)
        lap("verify")
        self._commit(plan, tree, output, verdicts)
        return CycleResult(verdicts, *offered(tree))

    def _line(self, plan: Plan, tree: DraftTree, judges: Judges, lap: Lap) -> CycleResult:
        """Verify a chain, or a root alone, greedily; this needs no tree operations."""
        output = self._side.verify_pass(tree)
        assert output.logits is not None
        highest, choices = output.logits.max(-1)  # (B, N)
        rows = zip(judges, choices.tolist(), highest.tolist(), tree.tokens.tolist())
        tokens = [[] if judge is None else accepted_line(judge, *row) for judge, *row in rows]
        lengths = list(map(len, tokens))
        lap("verify")
        side, most = self._side, max(lengths)
        counts = torch.tensor(lengths, device=choices.device)
        side.committed.add_(counts)
        side.note(lengths)
        following = choices[:, :most]
        path = tree.depths[:, :most]
        self._roots = (
            following[:, -1] if len(lengths) == 1 else torch.tensor([row[-1] if row else 0 for row in tokens])
        )
        if self._proposer is not None:
            states = output.states(self._reads)
            states = None if states is None else states[:, :most]
            drafted = None if plan.levels == 0 else path
            self._proposer.commit(Commit(following, states, counts, drafted, tokens))
        count = tree.tokens.shape[1] - 1
        return CycleResult(Verdicts(path, tokens), [count] * len(lengths), [count] * len(lengths))

    def _commit(self, plan: Plan, tree: DraftTree, output: TargetPass, verdicts: Verdicts) -> None:
        path = verdicts.path  # (B, L)
        lengths = [count + 1 for count in verdicts.accepted]
        counts = torch.tensor(lengths, device=path.device)
        self._side.keep(tree, path, counts)
        self._side.note(lengths)
        last = torch.tensor([tokens[-1] if tokens else 0 for tokens in verdicts.tokens], device=path.device)
        self._roots = last
        if self._proposer is None:
            return
        following = tokens_behind(tree, path, counts, last)
        states = states_on(tree, path, output.states(self._reads))
        drafted = None if plan.levels == 0 else path
        self._proposer.commit(Commit(following, states, counts, drafted, verdicts.tokens))


def accepted_line(
    judge: RowVerification, choices: Sequence[int], highest: Sequence[float], drafted: Sequence[int]
) -> list[int]:
    """Return the target's choices (N,) along a chain up to and including the first that was not drafted.

    ``drafted`` (N,) are the tokens of the chain, root first; ``highest`` (N,) are the logits of the choices.

    Raises:
        DataError: the logits of such a choice have no maximum.
    """
    taken: list[int] = []
    for place, choice in enumerate(choices):
        if not highest[place] > -math.inf:
            raise no_distribution("target", judge.history.length + place)
        taken.append(choice)
        if place + 1 == len(drafted) or drafted[place + 1] != choice:
            break
    return taken


def tokens_behind(tree: DraftTree, path: Tensor, counts: Tensor, last: Tensor) -> Tensor:
    """Return the token after each committed position, (B, L).

    Args:
        path: (B, L) accepted nodes; the last one is repeated as padding.
        counts: (B,) number of real nodes of each path.
        last: (B,) the target's own token, which follows the last real node.
    """
    following = tree.tokens.gather(1, path).roll(-1, 1)
    return following.scatter_(1, (counts - 1).clamp(min=0)[:, None], last[:, None])


def states_on(tree: DraftTree, path: Tensor, states: Tensor | None) -> Tensor | None:
    """Select the states of a path (B, L) from those of all nodes (B, N, .); return (B, L, .)."""
    if states is None or (tree.chain and path.shape[1] == states.shape[1]):
        return states
    return states.gather(1, path[:, :, None].expand(-1, -1, states.shape[-1]))
