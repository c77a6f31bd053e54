"""Trees of a fixed shape: the right ranks at the right places, and draws that follow the distributions they report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.decode.probability import all_ways
from tests.decode.test_shapes import path_sets
from vocabforge.decode.interface import DraftPolicy, Draw, Frontier, Plan
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.trees import fixed as policy_shape
from vocabforge.decode.trees.fixed import ShapePolicy
from vocabforge.decode.trees.shapes import TreeShape, chain, default_shape, from_paths
from vocabforge.models.heads.registry import DraftState

VOCAB = 9
SAMPLING = SamplingParams(temperature=1.0, seed=3)


class PathHead:
    """A head whose logits are a table of the whole path, which the state (B, W, 1) names by a number."""

    size, context_size, by_step = VOCAB, 0, False

    def __init__(self, logits: Any) -> None:
        self.logits, self.target_ids = logits, torch.arange(VOCAB)
        self.asked: list[int] = []

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        self.asked.append(k)
        return torch.stack([self.logits(int(row)) for row in hidden[:, 0]]), self.target_ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        logits, _ = self.scores(hidden, k, state)
        order = logits.sort(dim=1, descending=True, stable=True).indices[:, :k]
        return logits.log_softmax(-1).gather(1, order), order


class OwnIdsHead(PathHead):
    """The same, with ids of their own for every row, out of order, and padding."""

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        logits, ids = super().scores(hidden, k, state)
        order = torch.stack([torch.randperm(VOCAB) for _ in hidden])
        padding = torch.zeros(len(hidden), 2)
        return (
            torch.cat([logits.gather(1, order), padding - torch.inf], 1),
            torch.cat([ids[order], padding.long()], 1),
        )


def random_logits(path: int) -> Tensor:
    values = torch.randn(VOCAB, generator=torch.Generator().manual_seed(path))
    return values.round(decimals=1)  # ties


def start(rows: int) -> Tensor:
    return torch.arange(1, rows + 1)[:, None, None]


def step(hidden: Tensor, frontier: Frontier) -> Tensor:
    """The numbers of paths that are one token longer."""
    above = hidden[:, :, 0].gather(1, frontier.parents)
    return ((above * 31 + frontier.tokens + 1) % 100_003)[:, :, None]


def drafted(
    policy: DraftPolicy, head: Any, rows: int = 1, plan: Plan | None = None, draws: list[Draw] | None = None
) -> tuple[DraftTree, list[int]]:
    """The trees, and the widths of the frontiers that were expanded."""
    growth = policy.grow(rows, plan or policy.plan, draws)
    hidden, widths = start(rows), []
    while True:
        state = DraftState(len(widths), hidden.flatten(), hidden.flatten(0, 1), rows)
        frontier = growth.add(head, hidden, state)
        widths.append(hidden.shape[1])
        if frontier is None:
            return growth.finish(torch.arange(20, 20 + rows)), widths
        hidden = step(hidden, frontier)


def by_hand(shape: TreeShape, row: int, logits: Any) -> list[int]:
    """Tokens of one row's tree, node after node."""
    numbers, tokens = [row + 1], [20 + row]
    for node in range(1, shape.nodes):
        above = numbers[shape.parents[node]]
        values = logits(above).tolist()
        token = sorted(range(VOCAB), key=lambda i: (-values[i], i))[shape.ranks[node]]
        tokens.append(token)
        numbers.append((above * 31 + token + 1) % 100_003)
    return tokens


@settings(max_examples=60, deadline=None)
@given(path_sets().map(from_paths), st.integers(1, 3), st.data())
def test_the_best_tokens_stand_where_the_shape_says(shape: TreeShape, rows: int, data: st.DataObject) -> None:
    policy, head = ShapePolicy(shape), PathHead(random_logits)
    plan = data.draw(st.sampled_from(policy.plans()))
    tree, widths = drafted(policy, head, rows, plan)
    part = shape.cut(plan)
    assert tree.tokens.tolist() == [by_hand(part, row, random_logits) for row in range(rows)]
    plain = build_tree(tree.tokens, torch.tensor(part.parents).repeat(rows, 1), part.levels)
    for name in ("parents", "depths", "ancestors"):
        assert torch.equal(getattr(tree, name), getattr(plain, name)), name
    assert tree.chain == (part.nodes == part.levels + 1)
    assert (tree.alive, tree.distributions) == (None, None)
    assert tree.tokens.shape[1] == plan.nodes
    assert sum(drafted(policy, PathHead(random_logits))[1]) - 1 == policy.scratch
    assert max(head.asked) <= policy.width
    assert len(widths) == plan.levels


def draws_of(chances: Sequence[Any], sampling: SamplingParams = SAMPLING) -> list[Draw]:
    return [Draw(sampling, chance) for chance in chances]


WEIGHTS = {0: [0, 3, 0, 1, 0, 0, 2, 0, 0], 1: [5, 0, 0, 0, 1, 0, 0, 0, 0], 2: [0, 0, 0, 0, 0, 0, 0, 0, 4]}


def few_weights(path: int) -> Tensor:
    """Three, two or one tokens with a weight."""
    return torch.tensor(WEIGHTS[path % 3]).float()


def exact(logits: Any, sampling: SamplingParams) -> Any:
    """Takes a row for weights as they are, as fractions; padding has none."""
    values = [Fraction(float(value)) if value > 0 else Fraction(0) for value in np.asarray(logits)]
    return np.array(values, dtype=object)


def distribution_of_trees(shape: TreeShape) -> Counter[tuple[Any, ...]]:
    """Probability of every (tokens, alive), node after node, from the rule alone."""
    found: Counter[tuple[Any, ...]] = Counter()

    def visit(node: int, tokens: list[Any], numbers: list[int], probability: Fraction) -> None:
        if node == shape.nodes:
            found[tuple(tokens)] += probability
            return
        parent = shape.parents[node]
        if tokens[parent] is None:
            visit(node + 1, [*tokens, None], [*numbers, 0], probability)
            return
        weights = dict(enumerate(map(int, few_weights(numbers[parent]).tolist())))
        for sister in range(1, node):
            if shape.parents[sister] == parent and tokens[sister] is not None:
                weights[tokens[sister]] = 0
        total = sum(weights.values())
        if total == 0:
            visit(node + 1, [*tokens, None], [*numbers, 0], probability)
        for token, weight in weights.items():
            if weight:
                number = (numbers[parent] * 31 + token + 1) % 100_003
                visit(node + 1, [*tokens, token], [*numbers, number], probability * Fraction(weight, total))

    visit(1, [20], [1], Fraction(1))
    return found


SAMPLED_SHAPES = {
    "chain": chain(3),
    "wide": from_paths([[0], [1], [2], [3]]),
    "tree": from_paths([[0], [1], [0, 0], [0, 1], [1, 0]]),
    "gaps": from_paths([[1], [3], [5], [3, 2], [3, 2, 0], [5, 1]]),  # ranks have no meaning for draws
}


@pytest.mark.parametrize("name", SAMPLED_SHAPES)
@pytest.mark.parametrize("head_type", [PathHead, OwnIdsHead])
def test_draws_follow_the_distributions_that_they_report(name, head_type, monkeypatch):
    monkeypatch.setattr(policy_shape, "draft_weights", exact)
    shape, found = SAMPLED_SHAPES[name], Counter[tuple[Any, ...]]()
    policy = ShapePolicy(shape, sample=True)

    def run(chance: Any) -> tuple[Any, ...]:  # every branch of every decision, in rational arithmetic
        tree, _ = drafted(policy, head_type(few_weights), 1, None, draws_of([chance]))
        alive = [True] * shape.nodes if tree.alive is None else tree.alive[0].tolist()
        tokens = tree.tokens[0].tolist()
        assert tree.distributions is not None
        numbers = [1]
        for node in range(1, shape.nodes):
            numbers.append((numbers[shape.parents[node]] * 31 + tokens[node] + 1) % 100_003)
        expanded = {node for node, children in enumerate(shape.children) if children and alive[node]}
        assert set(tree.distributions[0]) == expanded
        for node, distribution in tree.distributions[0].items():
            weights = few_weights(numbers[node]).tolist()
            assert distribution.ids.tolist() == [token for token in range(VOCAB) if weights[token]]
            assert distribution.weights.tolist() == [weight for weight in weights if weight]
        return tuple(token if there else None for token, there in zip(tokens, alive))

    for probability, outcome in all_ways(run):
        found[outcome] += probability
    assert sum(found.values()) == 1
    assert found == distribution_of_trees(shape)
    if name != "chain":
        assert any(None in outcome for outcome in found), (
            "no distribution was too small: the test is too tame"
        )


def test_rows_draw_from_their_own_streams_and_transforms() -> None:
    """A row's draws are the same beside any other row; at temperature 0 a row takes the best and has no
    distribution."""
    shape = default_shape(3, 3, 9)
    policy = ShapePolicy(shape, sample=True)
    cold = Draw(SamplingParams(), SeededChance(0))

    def rows(*kinds: str) -> DraftTree:
        draws = [Draw(SAMPLING, SeededChance(5)) if kind == "warm" else cold for kind in kinds]
        return drafted(policy, PathHead(lambda path: random_logits(7)), len(kinds), None, draws)[0]

    alone, mixed, frozen = rows("warm"), rows("cold", "warm", "warm"), rows("cold", "cold")
    assert mixed.distributions is not None
    assert mixed.tokens[1, 1:].tolist() == mixed.tokens[2, 1:].tolist() == alone.tokens[0, 1:].tolist()
    assert mixed.distributions[0] == {}
    assert set(mixed.distributions[1]) == {node for node, children in enumerate(shape.children) if children}
    best = by_hand(shape, 0, lambda path: random_logits(7))
    assert mixed.tokens[0].tolist() == best
    assert frozen.distributions is None
    assert frozen.tokens[:, 1:].tolist() == [best[1:]] * 2
    assert mixed.tokens[1, 1:].tolist() != best[1:]


def test_gaps_between_ranks_mean_nothing_to_draws() -> None:
    """Nor to a row at temperature 0, alone or beside one that draws."""
    policy = ShapePolicy(SAMPLED_SHAPES["gaps"], sample=True)
    assert (policy.width, ShapePolicy(SAMPLED_SHAPES["gaps"]).width) == (3, 6)
    cold, warm = Draw(SamplingParams(), SeededChance(0)), Draw(SAMPLING, SeededChance(0))
    closed = from_paths([[0], [1], [2], [1, 0], [1, 0, 0], [2, 0]])
    for draws in ([cold], [cold, warm]):
        head = PathHead(random_logits)
        tree, _ = drafted(policy, head, len(draws), None, draws)
        assert tree.tokens[0].tolist() == by_hand(closed, 0, random_logits)
        assert head.asked == [3, 1, 1]
