"""Tree drafting equals path drafting: every node's state is that of its own path drafted alone."""

from __future__ import annotations

import pytest
import torch

from tests.support import tiny_drafter, tiny_target
from vocabforge.decode.proposer_eagle3 import Eagle3Proposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.eagle3 import Eagle3Drafter
from vocabforge.models.heads import FullHead
from vocabforge.models.target import HFTarget

TokenPath = tuple[int, ...]


class Script:
    """A head of width 1 that proposes given tokens and keeps the log-probabilities it was asked about."""

    def __init__(self, drafter: Eagle3Drafter, tokens: TokenPath) -> None:
        self.size, self._weight, self._tokens = 61, drafter.head_weight, [*tokens, 0]
        self.logprobs: list[torch.Tensor] = []

    def topk(self, hidden: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert k == 1
        self.logprobs.append((hidden @ self._weight.T)[0].log_softmax(-1))
        return torch.zeros(1, 1), torch.tensor([[self._tokens.pop(0)]])


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Eagle3Drafter:
    drafter = tiny_drafter(HFTarget.load(tiny_target(tmp_path_factory.mktemp("target"))))
    with torch.no_grad():  # flat enough that trees branch, sharp enough that order is clear
        drafter.norm.weight.mul_(0.3)
    return drafter


def commit(proposer: Eagle3Proposer) -> None:
    """Nine rows in two parts, the second padded."""
    generator = torch.Generator().manual_seed(4)
    tokens = torch.randint(0, 61, (12,), generator=generator)
    features = torch.randn(12, 96, generator=generator) * 2
    proposer.advance(tokens[:5], features[:5], 5)
    proposer.advance(tokens[5:], features[5:], 4)
    assert proposer.rows == 9


def after(drafter: Eagle3Drafter, path: TokenPath) -> torch.Tensor:
    """Log-probabilities (V,) of the token after a path, the path drafted as a chain."""
    depth = max(len(path), 1)
    head = Script(drafter, path + (0,) * depth)
    proposer = Eagle3Proposer(drafter, head, TreeSettings(1, depth, depth + 2), 32)
    commit(proposer)
    proposer.propose(torch.tensor([1]))
    return head.logprobs[len(path)]


def grow(drafter: Eagle3Drafter, shape: TreeSettings) -> tuple[set[TokenPath], float]:
    """Paths of the tree by EAGLE-2's rules, and the smallest margin of its choices."""
    scores: dict[TokenPath, float] = {}
    frontier: list[TokenPath] = [()]
    margins: list[float] = []
    for _ in range(shape.levels):
        fresh: dict[TokenPath, float] = {}
        for path in frontier:
            logprobs, tokens = after(drafter, path).topk(shape.topk + 1)
            margins.append(float(logprobs[-2] - logprobs[-1]))
            for logprob, token in list(zip(logprobs.tolist(), tokens.tolist()))[: shape.topk]:
                fresh[(*path, token)] = scores.get(path, 0.0) + logprob
        scores |= fresh
        frontier = best(fresh, shape.topk, margins)
    return set(best(scores, shape.total_nodes - 1, margins)), min(margins)


def best(scores: dict[TokenPath, float], count: int, margins: list[float]) -> list[TokenPath]:
    ordered = sorted(scores, key=lambda path: -scores[path])
    if len(ordered) > count:
        margins.append(scores[ordered[count - 1]] - scores[ordered[count]])
    return ordered[:count]


@pytest.mark.parametrize("shape", [TreeSettings(3, 3, 20), TreeSettings(2, 4, 12), TreeSettings(4, 1, 21)])
@torch.inference_mode()
def test_tree_drafting_equals_path_drafting(drafter: Eagle3Drafter, shape: TreeSettings) -> None:
    proposer = Eagle3Proposer(drafter, FullHead(drafter.head_weight), shape, 32)
    commit(proposer)
    expected, margin = grow(drafter, shape)
    assert margin > 1e-4, "the test needs choices that rounding cannot change"
    for _ in range(2):  # the second tree must not see the first one's keys
        tree = proposer.propose(torch.tensor([1]))
        paths: list[TokenPath] = [()]
        for node in range(1, len(tree.tokens)):
            paths.append((*paths[int(tree.parents[node])], int(tree.tokens[node])))
        assert set(paths[1:]) == expected
    assert max(map(len, paths)) > 1
    assert len({path[0] for path in paths[1:]}) > 1, "the test needs branches"


@torch.inference_mode()
def test_padding_rows_of_a_commit_leave_no_trace(drafter: Eagle3Drafter) -> None:
    shape = TreeSettings(3, 2, 12)
    trees = []
    for junk in (0.0, 50.0):
        proposer = Eagle3Proposer(drafter, FullHead(drafter.head_weight), shape, 32)
        tokens, features = torch.tensor([5, 6, 7, 8]), torch.ones(4, 96)
        features[2:] = junk
        proposer.advance(tokens, features, 2)
        trees.append(proposer.propose(torch.tensor([1])))
    assert torch.equal(trees[0].tokens, trees[1].tokens)
    assert torch.equal(trees[0].parents, trees[1].parents)
