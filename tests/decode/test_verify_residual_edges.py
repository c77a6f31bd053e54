"""Verification of drawn children (B) where floating point has edges, and where trees are wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.decode.mutants import mistake
from tests.decode.toys import Always, history, logits_of
from vocabforge.core.errors import MismatchError
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance, draft_weights
from vocabforge.decode.tree import DraftDistribution, DraftTree, build_tree
from vocabforge.decode.verify.registry import RowVerification, verify

PLAIN = SamplingParams(1.0)


def one_node(tokens: Sequence[int], distribution: DraftDistribution | None) -> DraftTree:
    """Children of a root, with their distribution."""
    count = len(tokens)
    tree = build_tree(torch.tensor([[0, *tokens]]), torch.zeros(1, count + 1, dtype=torch.int64), 1)
    return replace(tree, distributions=[{} if distribution is None else {0: distribution}])


def distribution_of(*weights: float) -> DraftDistribution:
    support = np.flatnonzero(weights)
    return DraftDistribution(support, np.array(weights)[support])


def verdict_of(tree: DraftTree, logits: torch.Tensor, uniform: float) -> list[int]:
    row = RowVerification(PLAIN, Always(uniform), history(logits.shape[-1]))
    return verify(tree, logits.expand(1, tree.tokens.shape[1], -1), [row], 1).tokens[0]


def test_impossible_tokens_are_never_accepted_even_by_a_uniform_of_zero() -> None:
    tree, logits = one_node([1], distribution_of(0.5, 0.5, 0.0)), logits_of(0.25, 0.0, 0.75)
    assert verdict_of(tree, logits, 0.0) == [2]  # the residual of 0 is nothing
    with mistake("vocabforge.decode.sampling", "* total < weight", "* total <= weight"):
        assert verdict_of(tree, logits, 0.0)[0] == 1


def test_distributions_that_differ_by_rounding_alone_leave_no_empty_residual() -> None:
    """Float weights of the same distribution, scaled: even where every p is at most q and the last bit rejects."""
    draw, empty = random.Random(0), 0
    for _ in range(300):
        logits = torch.tensor([draw.gauss(0, 2), draw.gauss(0, 2)])
        weights = draft_weights(logits, PLAIN)
        distribution = DraftDistribution(np.arange(2), weights * draw.choice([1 / 3, 0.1, 7.7]))
        p, q = weights / weights.sum(), distribution.weights / distribution.weights.sum()
        token = draw.randrange(2)
        assert len(verdict_of(one_node([token], distribution), logits, 0.5)) == 2
        last = verdict_of(one_node([token], distribution), logits, 1.0 - 2.0**-53)
        assert last[0] in (0, 1)
        if (p <= q).all() and p[token] < q[token]:
            empty += 1
            assert last[0] == token
    assert empty > 0, "the test needs distributions that leave nothing"


def test_all_tokens_drawn_and_rejected_leave_the_last_residual() -> None:
    """Three children are the whole support; a uniform number close to 1 rejects what it can."""
    tree, logits = one_node([0, 1, 2], distribution_of(0.4, 0.3, 0.3, 0.0)), logits_of(0.1, 0.1, 0.1, 0.7)
    assert verdict_of(tree, logits, 0.999) == [3]


def test_a_near_certain_draw_leaves_a_distribution_of_tiny_weights() -> None:
    distribution = distribution_of(1.0, 1e-300, 1e-300)
    row = RowVerification(PLAIN, SeededChance(3), history(3))
    tree, logits = one_node([0, 2, 1], distribution), logits_of(1e-6, 0.5, 0.5)
    for _ in range(50):
        tokens = verify(tree, logits.expand(1, 4, -1), [row], 1).tokens[0]
        assert set(tokens) <= {0, 1, 2}
    assert verdict_of(tree, logits, 0.4)[0] in (1, 2)


@pytest.mark.parametrize("tokens", [[2], [3], [0, 0], [1, 0, 1]])
def test_children_that_the_distribution_cannot_give_are_refused(tokens: list[int]) -> None:
    """Not among its ids, beyond them, or drawn twice."""
    with pytest.raises(MismatchError, match="was not drawn from the distribution"):
        verdict_of(one_node(tokens, distribution_of(0.6, 0.4, 0.0, 0.0)), logits_of(0.0, 0.0, 0.5, 0.5), 0.9)


def test_dead_children_are_never_tried() -> None:
    tree = replace(
        one_node([0, 1], distribution_of(1.0, 0.0, 0.0)), alive=torch.tensor([[True, True, False]])
    )
    assert verdict_of(tree, logits_of(0.0, 1.0, 0.0), 0.0) == [1]
