"""Verification of drawn children (B) is lossless: draws and decisions are walked, total variation exactly 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.decode.probability import AllBranches, all_ways, fractions, total_variation
from tests.decode.toys import (
    Drafter,
    Toy,
    exact_weights,
    output_distribution,
    real_weights,
    target_distribution,
    verify_one,
)
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance
from vocabforge.decode.tree import DraftDistribution, DraftTree
from vocabforge.decode.trees.fixed import draw_children
from vocabforge.decode.verify import point as verify_sampling
from vocabforge.decode.verify import residual as verify_residual

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
    toy: Toy,
    drafter: Drafter,
    shape: str,
    settings: SamplingParams = PLAIN,
    verifier: str | None = None,
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
