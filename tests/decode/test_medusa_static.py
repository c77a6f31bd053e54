"""Medusa: fixed, dynamic and sampled trees over heads that know nothing of the path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vocabforge.core.errors import UsageError, VocabForgeError
from vocabforge.decode.interface import Commit, Draw, Plan
from vocabforge.decode.proposers.medusa import MedusaBackend, build
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.proposers.registry import ProposerParts
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import DraftTree
from vocabforge.decode.trees.dynamic import DynamicPolicy
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import TreeShape, default_shape, from_paths
from vocabforge.models.drafters.medusa import MedusaConfig, MedusaDrafter
from vocabforge.models.heads.registry import DraftState, FullHead
from vocabforge.models.kv_cache import KVCache

HIDDEN, VOCAB, HEADS = 16, 23, 4
SHAPE = from_paths([[0], [1], [3], [0, 0], [0, 2], [1, 0], [0, 0, 0], [1, 0, 1], [1, 0, 1, 0]])


def make_drafter(embedding: Tensor, head: Tensor, heads: int = HEADS) -> MedusaDrafter:
    vocab, hidden = head.shape
    config = MedusaConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        draft_vocab_size=None,
        max_position_embeddings=256,
        medusa_heads=heads,
    )
    torch.manual_seed(1)
    drafter = MedusaDrafter(config, embedding, head)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_(0.0, 1.0)
    return drafter.eval()


@pytest.fixture(scope="module")
def drafter() -> MedusaDrafter:
    torch.manual_seed(0)
    return make_drafter(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))


class Watched(FullHead):
    """The full head, remembering what it was asked."""

    def __init__(self, weight: Tensor, by_step: bool = False) -> None:
        super().__init__(weight)
        self.by_step = by_step
        self.asked: list[tuple[int, DraftState]] = []

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        assert state is not None
        self.asked.append((len(hidden), state))
        return super().topk(hidden, k, state)


class ByStep(Watched):
    """Its answers depend on the step: rows of the vocabulary are shifted by it."""

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        assert state is not None
        values, ids = super().topk(hidden, k, state)
        return values, (ids + state.step) % VOCAB


def prepared(proposer: ModelProposer, rows: int) -> Tensor:
    """Rows with a prompt each and one commit behind it; returns the states (B, H) that drafting starts from."""
    states = torch.randn(rows, 5, HIDDEN, generator=torch.Generator().manual_seed(4))
    proposer.allocate(rows, 32, KVCache(1, rows, 1, 8, 1, torch.float32, torch.device("cpu")))
    for row in range(rows):
        proposer.begin(row, [1, 2, 3])
        proposer.prefill(row, torch.tensor([2]), states[row, :1])
        proposer.prefill(row, torch.tensor([3, 4]), states[row, 1:3])
    counts = torch.tensor([1, 0, 2][:rows])  # the second row is idle
    tokens = [[4], [], [5, 6]][:rows]
    path = torch.zeros(rows, 2, dtype=torch.int64)
    proposer.commit(Commit(path, states[:, 3:], counts, path, tokens))
    return torch.stack([states[row, place] for row, place in [(0, 3), (1, 2), (2, 4)][:rows]])


def proposed(proposer: ModelProposer, rows: int, plan: Plan | None = None) -> DraftTree:
    draws = [Draw(SamplingParams(1.0), SeededChance(row)) for row in range(rows)]
    roots = torch.arange(7, 7 + rows)
    return proposer.propose(
        roots, plan or proposer.plan, draws if proposer.samples else None, lambda part: None
    )


def made(drafter: MedusaDrafter, head: Any = None, **options: Any) -> ModelProposer:
    return build(ProposerParts(None, drafter, head, MethodSpec(**options)))  # type: ignore[arg-type]


def logits_of(drafter: MedusaDrafter, level: int, h: Tensor) -> Tensor:
    return drafter.logits(drafter.blocks[level](h))


def by_hand(drafter: MedusaDrafter, shape: TreeShape, h: Tensor, shift: int = 0) -> list[int]:
    """Draft tokens of a row's tree."""
    best = [logits_of(drafter, level, h).argsort(descending=True).tolist() for level in range(shape.levels)]
    found = []
    for node in range(1, shape.nodes):
        level = shape.depths[node] - 1
        found.append((best[level][shape.ranks[node]] + level * shift) % VOCAB)
    return found


@pytest.fixture
def tree_file(tmp_path: Path) -> Path:
    file = tmp_path / "tree.json"
    file.write_text(json.dumps(SHAPE.paths[1:]))
    return file


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 3])
def test_a_fixed_tree_holds_each_heads_best(drafter: MedusaDrafter, rows: int, tree_file: Path) -> None:
    head = Watched(drafter.head_weight)
    proposer = made(drafter, head, tree_file=tree_file)
    states = prepared(proposer, rows)
    for plan in (*proposer.plans(), proposer.plan):
        head.asked.clear()
        tree = proposed(proposer, rows, plan)
        part = SHAPE.cut(plan)
        assert tree.parents.tolist() == [list(part.parents)] * rows
        assert tree.tokens[:, 0].tolist() == list(range(7, 7 + rows))
        assert tree.tokens[:, 1:].tolist() == [by_hand(drafter, part, h) for h in states]
        # One call for all levels, of one row a level and request, told what all heads were fed.
        ((count, state),) = head.asked
        assert (count, state.step, state.requests) == (rows * HEADS, 0, rows)
        assert torch.equal(state.tokens, torch.arange(7, 7 + rows).repeat_interleave(HEADS))
        assert torch.equal(state.previous, states.repeat_interleave(HEADS, 0))


@torch.inference_mode()
def test_a_head_that_knows_the_step_is_asked_level_by_level(drafter: MedusaDrafter, tree_file: Path) -> None:
    head = ByStep(drafter.head_weight, by_step=True)
    proposer = made(drafter, head, tree_file=tree_file)
    states = prepared(proposer, 3)
    tree = proposed(proposer, 3)
    assert tree.tokens[:, 1:].tolist() == [by_hand(drafter, SHAPE, h, shift=1) for h in states]
    assert [(count, state.step, state.requests) for count, state in head.asked] == [
        (3, step, 3) for step in range(HEADS)
    ]
    for _, state in head.asked:
        assert torch.equal(state.tokens, torch.arange(7, 10))
        assert torch.equal(state.previous, states)


def test_defaults_and_limits(drafter: MedusaDrafter, tmp_path: Path) -> None:
    proposer = made(drafter)
    assert isinstance(proposer.policy, ShapePolicy)
    assert proposer.policy.shape == default_shape(HEADS, 10, 60)
    assert isinstance(made(drafter, tree="dynamic").policy, DynamicPolicy)
    assert made(drafter, tree="chain").plan == Plan(HEADS, HEADS + 1)
    assert isinstance(proposer.backend, MedusaBackend)
    assert made(drafter, depth=1).backend.levels == 2, "heads that no level needs are not run"
    for options in ({"depth": HEADS}, {"depth": HEADS, "tree": "chain"}, {"depth": HEADS, "tree": "dynamic"}):
        with pytest.raises(UsageError, match="deeper"):
            made(drafter, **options)
    file = tmp_path / "deep.json"
    file.write_text(json.dumps([[0] * n for n in range(1, HEADS + 2)]))
    with pytest.raises(VocabForgeError, match="at most 4 levels"):
        made(drafter, tree_file=file)
    with pytest.raises(UsageError, match="wider"):
        made(drafter, topk=VOCAB + 1, depth=0)
    with pytest.raises(UsageError, match="Medusa drafter"):
        made(object())  # type: ignore[arg-type]
