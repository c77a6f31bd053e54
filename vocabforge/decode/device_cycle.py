"""A whole decode cycle as one captured pass: draft, target, choice, verification, commit.

All state that a cycle changes stays on the device: committed lengths, last tokens, the proposer's states, and
the number of random numbers used by each request. The host reads one small tensor per cycle: the number of
accepted drafts, and the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.errors import UsageError
from ..models.lean.model import LeanModel
from ..models.target.interface import Target
from ..ops.target_choice import target_choice
from ..ops.target_sample import target_sample, target_weights_of
from ..ops.tree_verify import tree_verify
from ..ops.tree_verify_point import tree_verify_point
from .accelerate.graphs import GraphCapture
from .control.control import Control, FixedControl
from .cycle import CycleResult, Judges, states_on
from .interface import PLAIN_PLAN, Plan
from .proposers.model import ModelProposer
from .proposers.registry import Lap, Proposer
from .request import Request, SamplingParams
from .sampling import SeededChance
from .target_side import TargetPass, TargetSide
from .tree import DraftTree, root_trees
from .verify.registry import greedy_verdicts


class DeviceCycle:
    """Cycles of one plan that run entirely on the device.

    Tokens are the target's argmax or are drawn with the host's random numbers: by ``match`` (random number n
    of a request decides its token n, regardless of the drafts, as in ``verify/match.py``) or, with ``point``,
    as in ``verify/point.py``. Without a proposer, decoding is plain.
    """

    def __init__(
        self, side: TargetSide, proposer: ModelProposer | None, plan: Plan, capture: GraphCapture, point: bool
    ) -> None:
        self._side, self._proposer, self._plan, self._point = side, proposer, plan, point
        rows, device = side.rows, side.target.device
        self._roots, self._draws, self._seeds, self._top_k, self._active = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(5)
        )
        self._plain = root_trees(self._roots)
        self._temperature, self._top_p, self._min_p = (
            torch.zeros(rows, dtype=torch.float64, device=device) for _ in range(3)
        )
        self._sampled = [False] * rows
        size = f"{plan.nodes} nodes" if proposer else "one token"
        self._greedy_pass = capture(f"cycle of {size}", lambda: self._cycle(sampled=False), self._state)
        self._sampled_pass = capture(
            f"sampled cycle of {size}", lambda: self._cycle(sampled=True), self._state
        )

    def begin(self, row: int, root: int, sampling: SamplingParams) -> None:
        self._sampled[row] = not sampling.greedy
        self._roots[row], self._active[row] = root, 1
        self._temperature[row], self._top_p[row] = sampling.temperature, sampling.top_p
        self._min_p[row], self._top_k[row] = sampling.min_p, sampling.top_k
        self._seeds[row] = sampling.seed
        self._draws[row] = 1  # the first token used one

    def end(self, row: int) -> None:
        self._sampled[row] = False
        self._active[row] = 0

    def run(self, plan: Plan, judges: Judges, lap: Lap) -> CycleResult:
        if self._proposer is not None:
            self._proposer.prepare()
        path, numbers = (self._sampled_pass if any(self._sampled) else self._greedy_pass)()
        numbers = numbers.cpu()  # the only time that the host waits for the device
        verdicts = greedy_verdicts(path, numbers[:, :-1], judges)
        self._side.note([count + 1 for count in verdicts.accepted])
        if self._proposer is not None:
            self._proposer.note(verdicts.tokens)
        lap("cycle")
        return CycleResult(verdicts, numbers[:, -1].tolist(), [self._plan.nodes - 1] * len(judges))

    def _state(self) -> list[Tensor]:
        """Return the state that differs between cycles, except for cache slots after the committed ones."""
        of_proposer = () if self._proposer is None else self._proposer.backend.device_state()
        return [self._roots, self._draws, self._side.committed, *of_proposer]

    def _cycle(self, sampled: bool) -> tuple[Tensor, Tensor]:
        """Return path and numbers as in ``verify.greedy.decide_greedy``, with the tree's depth after the numbers."""
        tree = self._tree()
        output, (path, numbers, draws) = self.verify(tree, sampled)
        counts = torch.addcmul(self._active, numbers[:, 0], self._active)  # (B,), 0 for an idle row
        following = numbers[:, 2:]  # (B, L) token after each node of the path, with the last node repeated
        self._side.keep(tree, path, counts)
        if self._proposer is not None:
            states = states_on(tree, path, output.states(self._proposer.reads))
            self._proposer.backend.advance(following, states, counts)
        self._roots.copy_(following[:, -1])
        if draws is not None:
            self._draws.copy_(draws)
        elif sampled:
            self._draws.add_(counts)
        return path, torch.cat([numbers, tree.depths[:, -1:]], 1)  # no node is deeper than the last

    def verify(
        self, tree: DraftTree, sampled: bool = False
    ) -> tuple[TargetPass, tuple[Tensor, Tensor, Tensor | None]]:
        """Run the target over all nodes; return its output and that of :meth:`_judge`, without a commit."""
        output = self._side.look(tree)
        assert output.logits is not None
        return output, self._judge(tree, output.logits, sampled)

    def _tree(self) -> DraftTree:
        if self._proposer is not None:
            return self._proposer.draft(self._roots, self._plan)
        plain = self._plain
        return DraftTree(self._roots[:, None], plain.parents, plain.depths, plain.ancestors, chain=True)

    def _judge(self, tree: DraftTree, logits: Tensor, sampled: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return path and numbers, as in ``verify.greedy.decide_greedy``, and the index of the next random numbers.

        The last is the index (B,) of each row's first unused random number; None if each token uses one.
        """
        flat, (rows, count) = logits.flatten(0, 1), logits.shape[:2]
        if not sampled:
            choices, valid = target_choice(flat)
        else:
            settings = (self._temperature, self._top_k, self._top_p, self._min_p)
            temperature, top_k, top_p, min_p = (setting.repeat_interleave(count) for setting in settings)
            if self._point:
                weights = target_weights_of(flat, temperature, top_k, top_p, min_p).view(rows, count, -1)
                return tree_verify_point(
                    tree.tokens,
                    tree.parents,
                    None,
                    weights,
                    self._seeds,
                    self._draws,
                    levels=self._plan.levels,
                )
            draws = (self._draws[:, None] + tree.depths).flatten()  # a path uses one number per token
            seeds = self._seeds.repeat_interleave(count)
            choices, valid = target_sample(flat, temperature, top_k, top_p, min_p, seeds, draws)
        path, numbers = tree_verify(
            tree.tokens,
            tree.parents,
            tree.depths,
            tree.ancestors,
            choices.view(rows, count),
            valid.view(rows, count),
            levels=self._plan.levels,
        )
        return path, numbers, None


def device_cycle(
    side: TargetSide,
    proposer: Proposer | None,
    control: Control,
    capture: GraphCapture | None,
    verifier: str | None,
) -> DeviceCycle | None:
    """Return captured whole cycles, or None if these parts can only be captured one by one, if at all.

    Adaptive plans change from cycle to cycle, and proposers that are not functions of tensors draft on the
    host.
    """
    if capture is None or not isinstance(control, FixedControl):
        return None
    if proposer is None:
        return DeviceCycle(side, None, PLAIN_PLAN, capture, verifier == "point")
    plan = control.plan()
    if plan.levels and isinstance(proposer, ModelProposer) and proposer.on_device():
        return DeviceCycle(side, proposer, plan, capture, verifier == "point")
    return None


def check_window(target: Target, levels: int) -> None:
    """Reject trees deeper than a window: with bits, a node always attends to all its ancestors."""
    window = target.config.sliding_window if isinstance(target, LeanModel) else None  # others use masks
    if window is not None and window <= levels:
        raise UsageError(
            "the draft tree is too deep to be captured",
            got=f"{levels} levels, and layers that see {window} positions",
            expected="fewer levels than positions",
            remedy="use --no-graphs, or lower --depth",
        )


def serves(requests: Sequence[Request], verifier: str | None, chance: object) -> bool:
    """Return whether a :class:`DeviceCycle` can serve all these requests, given the source of randomness."""
    drawn = chance is SeededChance and verifier in (None, "match", "point")
    return all(not request.sampling.penalised and (request.sampling.greedy or drawn) for request in requests)
