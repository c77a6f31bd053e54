"""Tree drafting equals path drafting: every node's state is that of its own path drafted alone."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

from tests.decode.drafting import advance, eagle, propose
from tests.support import tiny_drafter, tiny_target
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.heads.registry import FullHead
from vocabforge.models.target.hf import HFTarget

TokenPath = tuple[int, ...]
SEED = 7  # of the committed rows: one that makes trees whose frontiers cross


class Script:
    """A head of width 1 that proposes given tokens and keeps the log-probabilities it was asked about."""

    context_size, by_step = 0, False

    def __init__(self, drafter: Eagle3Drafter, tokens: TokenPath) -> None:
        self.size, self._weight, self._tokens = 61, drafter.head_weight, [*tokens, 0]
        self.logprobs: list[torch.Tensor] = []

    def topk(self, hidden: torch.Tensor, k: int, state: object = None) -> tuple[torch.Tensor, torch.Tensor]:
        assert k == 1
        self.logprobs.append((hidden @ self._weight.T)[0].log_softmax(-1))
        return torch.zeros(1, 1), torch.tensor([[self._tokens.pop(0)]])


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Eagle3Drafter:
    return tiny_drafter(HFTarget.load(tiny_target(tmp_path_factory.mktemp("target"))))


def commit(proposer: ModelProposer) -> None:
    """Nine rows in two parts, the second padded."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(0, 61, (12,), generator=generator)
    features = torch.randn(12, 96, generator=generator) * 2
    advance(proposer, tokens[:5], features[:5], 5)
    advance(proposer, tokens[5:], features[5:], 4)
    assert proposer.backend.lengths == [9]


def after(drafter: Eagle3Drafter, path: TokenPath) -> torch.Tensor:
    """Log-probabilities (V,) of the token after a path, the path drafted as a chain."""
    depth = max(len(path), 1)
    head = Script(drafter, path + (0,) * depth)
    proposer = eagle(drafter, head, TreeSettings(1, depth, depth + 2), 32)
    commit(proposer)
    propose(proposer, 1)
    return head.logprobs[len(path)]


class Watched(FullHead):
    """The full head, keeping every log-probability."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__(weight)
        self.logprobs: list[torch.Tensor] = []

    def topk(self, hidden: torch.Tensor, k: int, state: object = None) -> tuple[torch.Tensor, torch.Tensor]:
        self.logprobs.append((hidden @ self.weight.T).log_softmax(-1))
        return super().topk(hidden, k)


@dataclass
class Grown:
    """What EAGLE-2's rules make: the tree's paths, what each round expanded, the narrowest choice."""

    paths: set[TokenPath]
    expanded: list[dict[TokenPath, torch.Tensor]]
    margin: float

    def parents(self) -> list[list[int]]:
        """For each round after the first expansion, the places of the frontier's parents in the one before."""
        frontiers = [list(rows) for rows in self.expanded]
        return [
            [above.index(path[:-1]) for path in below] for above, below in itertools.pairwise(frontiers[1:])
        ]


def grow(drafter: Eagle3Drafter, shape: TreeSettings) -> Grown:
    scores: dict[TokenPath, float] = {}
    frontier: list[TokenPath] = [()]
    margins: list[float] = []
    rounds: list[dict[TokenPath, torch.Tensor]] = []
    for _ in range(shape.levels):
        fresh: dict[TokenPath, float] = {}
        rounds.append({path: after(drafter, path) for path in frontier})
        for path, row in rounds[-1].items():
            logprobs, tokens = row.topk(shape.topk + 1)
            margins += (logprobs[:-1] - logprobs[1:]).tolist()
            for logprob, token in list(zip(logprobs.tolist(), tokens.tolist()))[: shape.topk]:
                fresh[(*path, token)] = scores.get(path, 0.0) + logprob
        scores |= fresh
        frontier = best(fresh, shape.topk, margins)
    return Grown(set(best(scores, shape.total_nodes - 1, margins)), rounds, min(margins))


def best(scores: dict[TokenPath, float], count: int, margins: list[float]) -> list[TokenPath]:
    ordered = sorted(scores, key=lambda path: -scores[path])
    margins += [scores[a] - scores[b] for a, b in itertools.pairwise(ordered[: count + 1])]
    return ordered[:count]


@pytest.mark.parametrize("shape", [TreeSettings(3, 3, 20), TreeSettings(2, 4, 12), TreeSettings(4, 2, 21)])
@torch.inference_mode()
def test_tree_drafting_equals_path_drafting(drafter: Eagle3Drafter, shape: TreeSettings) -> None:
    expected = grow(drafter, shape)
    assert expected.margin > 1e-5, "the test needs choices that rounding cannot change"
    head = Watched(drafter.head_weight)
    proposer = eagle(drafter, head, shape, 32)
    commit(proposer)
    for _ in range(2):  # the second tree must not see the first one's keys
        head.logprobs.clear()
        tree = propose(proposer, 1)
        for found, rows in zip(head.logprobs, expected.expanded):
            torch.testing.assert_close(found, torch.stack(list(rows.values())), rtol=0, atol=1e-4)
        paths: list[TokenPath] = [()]
        for node in range(1, tree.tokens.shape[1]):
            paths.append((*paths[int(tree.parents[0, node])], int(tree.tokens[0, node])))
        assert set(paths[1:]) == expected.paths
    assert len(head.logprobs) == shape.levels
    assert any(parents != list(range(shape.topk)) for parents in expected.parents()), "too tame a tree"


@torch.inference_mode()
def test_padding_rows_of_a_commit_leave_no_trace(drafter: Eagle3Drafter) -> None:
    shape = TreeSettings(3, 2, 12)
    trees = []
    for junk in (0.0, 50.0):
        proposer = eagle(drafter, FullHead(drafter.head_weight), shape, 32)
        tokens, features = torch.tensor([5, 6, 7, 8]), torch.ones(4, 96)
        features[2:] = junk
        advance(proposer, tokens, features, 2)
        trees.append(propose(proposer, 1))
    assert torch.equal(trees[0].tokens, trees[1].tokens)
    assert torch.equal(trees[0].parents, trees[1].parents)
