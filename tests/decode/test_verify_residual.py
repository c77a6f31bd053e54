"""Verification of drawn children (B) is lossless: draws and decisions are walked, total variation exactly 0."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from tests.decode.mutants import mistake
from tests.decode.probability import AllBranches, all_ways, fractions, total_variation
from tests.decode.toys import (
    Always,
    Drafter,
    Toy,
    exact_weights,
    history,
    logits_of,
    output_distribution,
    real_weights,
    target_distribution,
    verify_one,
)
from vocabforge.core.errors import MismatchError
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance, draft_weights
from vocabforge.decode.tree import DraftDistribution, DraftTree, build_tree
from vocabforge.decode.trees.fixed import draw_children
from vocabforge.decode.verify import point as verify_sampling
from vocabforge.decode.verify import residual as verify_residual
from vocabforge.decode.verify.registry import RowVerification, verify

PLAIN = SamplingParams(1.0)

# parents of the nodes of each shape, the root's first
SHAPES = {
    "chain": [0, 0, 1, 2],
    "pair": [0, 0, 0],
    "siblings": [0, 0, 0, 0],
    "tree": [0, 0, 0, 1, 1],
    "deep": [0, 0, 0, 1, 2],
}


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


def error_of(
    toy: Toy, drafter: Drafter, shape: str, settings: SamplingParams = PLAIN, verifier: str | None = None
) -> float:
    """Total variation between the output of two tokens and the target's own."""

    def draft(chance: AllBranches) -> DraftTree:
        return drafter.draft(SHAPES[shape], chance, draw_children)

    return total_variation(
        output_distribution(toy, settings, draft, 2, verifier=verifier), target_distribution(toy, settings, 2)
    )


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", ["plain", "ties", "zeros"])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_distribution_equals_the_targets(shape: str, kind: str) -> None:
    """Whole vocabulary, shortlists with and without the argmax, distributions equal to the target's or with zeros."""
    for seed, (shortlist, source) in enumerate(
        [((0, 1, 2), "plain"), ((0, 2), "ties"), ((1,), "plain"), ((0, 1, 2), "zeros"), ((0, 1, 2), "same")]
    ):
        toy = Toy(3, seed, kind)
        assert error_of(toy, Drafter(toy, shortlist, source), shape) == 0


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("verifier", ["point", "residual"])
def test_mixed_trees_and_drawn_children_taken_for_point_masses(verifier: str) -> None:
    for seed, shape in enumerate(["chain", "siblings", "tree"]):
        toy = Toy(3, seed, "plain")
        for without in (True, False):
            drafter = Drafter(toy, (0, 1, 2), without=without)
            assert error_of(toy, drafter, shape, verifier=verifier) == 0


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    "settings",
    [
        SamplingParams(0.7, top_k=2),
        SamplingParams(1.0, top_p=0.7, min_p=0.1),
        SamplingParams(1.0, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.6),
    ],
    ids=str,
)
def test_the_distribution_is_that_of_the_transform(settings: SamplingParams) -> None:
    for seed, shape in enumerate(SHAPES):
        toy = Toy(3, seed, "plain")
        assert error_of(toy, Drafter(toy, (0, 1, 2)), shape, settings) == 0


@pytest.mark.usefixtures("exact")
def test_a_vocabulary_beyond_the_shortlist_whose_argmax_is_missing() -> None:
    toy = Toy(6, 1, "plain")
    best = int(toy.logits(()).argmax())
    drafter = Drafter(toy, [token for token in range(6) if token != best][:3])
    assert error_of(toy, drafter, "siblings") == 0
    found = output_distribution(
        toy, PLAIN, lambda chance: drafter.draft(SHAPES["siblings"], chance, draw_children), 1
    )
    assert found[(best,)] > 0


@pytest.mark.usefixtures("exact")
def test_acceptance_is_the_overlap_of_the_distributions() -> None:
    """One child: accepted with probability sum min(p, q) (Leviathan et al. 2023, lemma 3.3 and corollary 3.6)."""
    toy = Toy(4, 5, "plain")
    drafter = Drafter(toy, (0, 1, 3))
    distribution = drafter.distribution(())
    q = dict(zip(distribution.ids.tolist(), distribution.weights / distribution.weights.sum()))
    p = {token: weight for (token,), weight in target_distribution(toy, PLAIN, 1).items()}
    expected = sum(min(p[token], q.get(token, Fraction(0))) for token in p)

    def run(chance: AllBranches) -> int:
        return verify_one(toy, drafter.draft([0, 0], chance, draw_children), PLAIN, chance).accepted[0]

    assert sum(weight * count for weight, count in all_ways(run)) == expected


def test_floats_and_fractions_walk_the_same_way() -> None:
    """The real arithmetic against the exact one, decision by decision."""

    class Both(AllBranches):
        """Notes the probabilities that it is asked for."""

        def __init__(self, script: Sequence[int]) -> None:
            super().__init__(script)
            self.asked: list[float] = []

        def choose(self, weights: Sequence[Fraction]) -> int:
            self.asked += [float(weight) for weight in weights]
            return super().choose(weights)

    toy = Toy(4, 8, "plain")
    tree = Drafter(toy, (0, 1, 3)).draft(SHAPES["deep"], SeededChance(1), draw_children)
    floats = replace(
        tree,
        distributions=[
            {
                node: DraftDistribution(distribution.ids, distribution.weights.astype(np.float64))
                for node, distribution in distributions.items()
            }
            for distributions in tree.distributions or []
        ],
    )

    def run(of: DraftTree) -> Callable[[Any], tuple[list[float], list[int]]]:
        return lambda chance: (verify_one(toy, of, PLAIN, chance).tokens[0], chance.asked)

    plain = {tuple(tokens): asked for _, (tokens, asked) in all_ways(run(floats), Both)}
    with pytest.MonkeyPatch.context() as patch:
        for module in (verify_residual, verify_sampling):
            patch.setattr(module, "target_weights", lambda *args: fractions(real_weights(*args)))
        exactly = {tuple(tokens): asked for _, (tokens, asked) in all_ways(run(tree), Both)}
    assert len(plain) > 3
    assert plain.keys() == exactly.keys()
    for tokens, asked in plain.items():
        assert asked == pytest.approx(exactly[tokens], abs=1e-12)


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
