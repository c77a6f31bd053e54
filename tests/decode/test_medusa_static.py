"""Medusa: heads that know nothing of the path fill a fixed tree, and defaults follow their number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.decode.drafting import make_drafter, ready
from tests.decode.test_shapes import paths_of
from vocabforge.core.errors import VocabForgeError
from vocabforge.decode.interface import Commit, Plan
from vocabforge.decode.proposers.medusa import build
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.trees.dynamic import DynamicPolicy
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import default_shape, from_paths
from vocabforge.models.heads.registry import DraftState, FullHead
from vocabforge.models.target.hf import HFTarget

HEADS = 4
SHAPE = from_paths([[0], [1], [3], [0, 0], [0, 2], [1, 0], [0, 0, 0], [1, 0, 1], [1, 0, 1, 0]])


@pytest.fixture(scope="module")
def drafter(folder: Path, target: HFTarget) -> Any:
    return make_drafter("medusa", folder, target, medusa_heads=HEADS)


def made(drafter: Any, head: Any = None, **options: Any) -> ModelProposer:
    return build(ProposerParts(None, drafter, head, MethodSpec(**options)))  # type: ignore[arg-type]


class Watched(FullHead):
    """The full head, which remembers what it was asked; its answers may depend on the step."""

    def __init__(self, weight: Tensor, by_step: bool) -> None:
        super().__init__(weight)
        self.by_step = by_step
        self.asked: list[tuple[int, DraftState]] = []

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        assert state is not None
        self.asked.append((len(hidden), state))
        values, ids = super().topk(hidden, k, state)
        return values, (ids + state.step) % self.size if self.by_step else ids


@pytest.mark.parametrize("by_step", [False, True])
@torch.inference_mode()
def test_a_fixed_tree_holds_each_heads_best(drafter: Any, by_step: bool, tmp_path: Path) -> None:
    """One call for all levels; a head that knows the step is asked level by level."""
    (tmp_path / "tree.json").write_text(json.dumps(paths_of(SHAPE)[1:]))
    head = Watched(drafter.head_weight, by_step)
    proposer = ready(made(drafter, head, tree_file=tmp_path / "tree.json"), 32, rows=3)
    states = torch.randn(3, 4, drafter.config.hidden_size, generator=torch.Generator().manual_seed(4))
    for row in range(3):
        proposer.prefill(row, torch.tensor([3, 4]), states[row, :2])
    path = torch.zeros(3, 2, dtype=torch.int64)  # the second row is idle
    proposer.commit(Commit(path, states[:, 2:], torch.tensor([1, 0, 2]), path, [[4], [], [5, 6]]))
    states = states[range(3), [2, 1, 3]]
    best = [drafter.logits(drafter.blocks[level](states)).argsort(descending=True) for level in range(HEADS)]
    for plan in proposer.plans():
        head.asked.clear()
        tree, part = proposer.propose(torch.arange(7, 10), plan, None, lambda _: None), SHAPE.cut(plan)
        assert tree.parents.tolist() == [list(part.parents)] * 3
        assert tree.tokens[:, 0].tolist() == [7, 8, 9]
        for node in range(1, part.nodes):
            level = part.depths[node] - 1
            expected = best[level][:, part.ranks[node]] + level * by_step
            assert torch.equal(tree.tokens[:, node], expected % head.size)
        times = 1 if by_step else HEADS
        steps = plan.levels if by_step else 1
        assert [(n, one.step, one.requests) for n, one in head.asked] == [
            (3 * times, n, 3) for n in range(steps)
        ]
        for _, state in head.asked:
            assert torch.equal(state.tokens, torch.arange(7, 10).repeat_interleave(times))
            assert torch.equal(state.previous, states.repeat_interleave(times, 0))


def test_defaults_and_limits(drafter: Any, tmp_path: Path) -> None:
    proposer = made(drafter)
    assert isinstance(proposer.policy, ShapePolicy)
    assert proposer.policy.shape == default_shape(HEADS, 10, 60)
    assert isinstance(made(drafter, tree="dynamic").policy, DynamicPolicy)
    assert made(drafter, tree="chain").plan == Plan(HEADS, HEADS + 1)
    assert made(drafter, depth=1).backend.levels == 2, "heads that no level needs are not run"
    (tmp_path / "deep.json").write_text(json.dumps([[0] * n for n in range(1, HEADS + 2)]))
    for options, words in (
        ({"depth": HEADS}, "deeper"),
        ({"depth": HEADS, "tree": "chain"}, "deeper"),
        ({"depth": HEADS, "tree": "dynamic"}, "deeper"),
        ({"tree_file": tmp_path / "deep.json"}, "at most 4 levels"),
        ({"topk": 21, "depth": 0, "head": FullHead(drafter.head_weight[:20])}, "wider"),
    ):
        with pytest.raises(VocabForgeError, match=words):
            made(drafter, **options)
