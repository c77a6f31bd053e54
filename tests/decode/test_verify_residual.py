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

from tests.decode.enumeration import AllBranches, all_ways, fractions, total_variation
from tests.decode.mutation import mistake
from tests.decode.toy_targets import Toy
from tests.decode.verify_support import (
    Always,
    OneUniform,
    Source,
    exact_weights,
    history,
    logits_of,
    output_law,
    real_weights,
    short,
    target_law,
    verify_one,
)
from vocabforge.core.errors import MismatchError
from vocabforge.decode import verify_residual, verify_sampling
from vocabforge.decode.chance import Chance, SeededChance
from vocabforge.decode.policy_shape import draw_children
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import draft_weights
from vocabforge.decode.tree import DraftLaw, DraftTree, build_tree
from vocabforge.decode.verifiers import RowVerification, verify

MODULE = "vocabforge.decode.verify_residual"
PLAIN = SamplingParams(1.0)
ROOT = 2

# parents of the nodes of each shape, the root's first
SHAPES = {
    "chain": [0, 0, 1, 2],
    "pair": [0, 0, 0],
    "siblings": [0, 0, 0, 0],
    "tree": [0, 0, 0, 1, 1],
    "deep": [0, 0, 0, 1, 2],
}


class Drafter:
    """Laws that depend on everything before, over a shortlist; they agree with the target now and then.

    Args:
        toy: the target.
        shortlist: ids that can be drafted.
        kind: of the laws; ``same`` as the target's, else a :class:`Toy` of that kind.
        lawless: every other node gets the best tokens of its law and no law, as a mixed tree has.
    """

    def __init__(
        self, toy: Toy, shortlist: Sequence[int], kind: str = "plain", lawless: bool = False
    ) -> None:
        self.ids, self.lawless = np.array(sorted(shortlist)), lawless
        self._source = toy if kind == "same" else Toy(toy.vocab, toy.seed + 100, kind)
        self._known: dict[tuple[int, ...], DraftLaw] = {}

    def law(self, path: tuple[int, ...]) -> DraftLaw:
        """Of the tokens after a path."""
        if path not in self._known:
            self._known[path] = self._law(path)
        return self._known[path]

    def _law(self, path: tuple[int, ...]) -> DraftLaw:
        logits = self._source.logits(path)[torch.from_numpy(self.ids)]
        if logits.max() == -torch.inf:
            logits = torch.zeros(len(self.ids))
        weights = short(draft_weights(logits, PLAIN))
        support = np.flatnonzero(weights)
        return DraftLaw(self.ids[support], weights[support])

    def draft(self, parents: Sequence[int], chance: Chance, draw: Callable[..., list[int]]) -> DraftTree:
        """A tree of a shape, its children drawn node after node; what cannot be drawn is dead."""
        tokens, paths = [ROOT] * len(parents), [()] * len(parents)  # type: list[int], list[tuple[int, ...]]
        alive, laws = [True] * len(parents), {}
        for node in range(len(parents)):
            children = [child for child in range(1, len(parents)) if parents[child] == node]
            found: list[int] = []
            if children and alive[node]:
                law = self.law(paths[node])
                if self.lawless and node % 2 == 0:
                    found = law.ids[np.argsort(-law.weights, kind="stable")][: len(children)].tolist()
                else:
                    laws[node] = law
                    found = draw(law, len(children), chance)
            for place, child in enumerate(children):
                alive[child] = place < len(found)
                tokens[child] = found[place] if alive[child] else 0
                paths[child] = (*paths[node], tokens[child])
        tree = build_tree(torch.tensor([tokens]), torch.tensor([list(parents)]), 3)
        return replace(tree, alive=torch.tensor([alive]), laws=[laws])


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


def error_of(
    toy: Toy,
    drafter: Drafter,
    shape: str,
    settings: SamplingParams = PLAIN,
    source: Source = AllBranches,
    draw: Callable[..., list[int]] = draw_children,
    verifier: str | None = None,
) -> float:
    """Total variation between the output of two tokens and the target's own."""

    def draft(chance: AllBranches) -> DraftTree:
        return drafter.draft(SHAPES[shape], chance, draw)

    return total_variation(
        output_law(toy, settings, draft, 2, source, verifier), target_law(toy, settings, 2)
    )


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", ["plain", "ties", "zeros"])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_law_equals_the_targets(shape: str, kind: str) -> None:
    """Whole vocabulary, shortlists with and without the argmax, laws equal to the target's or with zeros."""
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
        for lawless in (True, False):
            drafter = Drafter(toy, (0, 1, 2), lawless=lawless)
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
def test_the_law_is_that_of_the_transform(settings: SamplingParams) -> None:
    for seed, shape in enumerate(SHAPES):
        toy = Toy(3, seed, "plain")
        assert error_of(toy, Drafter(toy, (0, 1, 2)), shape, settings) == 0


@pytest.mark.usefixtures("exact")
def test_a_vocabulary_beyond_the_shortlist_whose_argmax_is_missing() -> None:
    toy = Toy(6, 1, "plain")
    best = int(toy.logits(()).argmax())
    drafter = Drafter(toy, [token for token in range(6) if token != best][:3])
    assert error_of(toy, drafter, "siblings") == 0
    found = output_law(toy, PLAIN, lambda chance: drafter.draft(SHAPES["siblings"], chance, draw_children), 1)
    assert found[(best,)] > 0


@pytest.mark.usefixtures("exact")
def test_a_drafter_equal_to_the_target_is_always_accepted() -> None:
    toy = Toy(4, 3, "plain")
    drafter = Drafter(toy, range(4), "same")

    def run(chance: AllBranches) -> int:
        return verify_one(toy, drafter.draft(SHAPES["chain"], chance, draw_children), PLAIN, chance).accepted[
            0
        ]

    assert {count for _, count in all_ways(run)} == {3}


@pytest.mark.usefixtures("exact")
def test_acceptance_is_the_overlap_of_the_laws() -> None:
    """One child: accepted with probability sum min(p, q) (Leviathan et al. 2023, lemma 3.3 and corollary 3.6)."""
    toy = Toy(4, 5, "plain")
    drafter = Drafter(toy, (0, 1, 3))
    law = drafter.law(())
    q = dict(zip(law.ids.tolist(), law.weights / law.weights.sum()))
    p = {token: weight for (token,), weight in target_law(toy, PLAIN, 1).items()}
    expected = sum(min(p[token], q.get(token, Fraction(0))) for token in p)

    def run(chance: AllBranches) -> int:
        return verify_one(toy, drafter.draft([0, 0], chance, draw_children), PLAIN, chance).accepted[0]

    assert sum(weight * count for weight, count in all_ways(run)) == expected


# --- mistakes ---------------------------------------------------------------------------------------------------


def worst(shape: str = "pair", **how: Any) -> float:
    """Largest error over some targets and drafters."""
    errors = []
    for seed in range(3):
        toy = Toy(4, seed, "plain")
        errors.append(error_of(toy, Drafter(toy, (0, 1, 3)), shape, **how))
    return max(errors)


def best_children(law: DraftLaw, most: int, chance: Chance) -> list[int]:
    """The mistake of drafting the best tokens and reporting the law that they were not drawn from."""
    return law.ids[np.argsort(-law.weights, kind="stable")][:most].tolist()


def pruned_children(law: DraftLaw, most: int, chance: Chance) -> list[int]:
    """The mistake of drawing one more child than there is room for and dropping the least probable."""
    found = draw_children(law, most + 1, chance)
    weight = dict(zip(law.ids.tolist(), law.weights))
    least = min(found, key=lambda token: weight[token])
    return [token for token in found if token != least or len(found) <= most]


def subset_children(law: DraftLaw, most: int, chance: Chance) -> list[int]:
    """The mistake of drawing from a part of the vocabulary and reporting the law of all of it."""
    return draw_children(DraftLaw(law.ids[1:], law.weights[1:]), most, chance)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("draw", [best_children, pruned_children, subset_children])
def test_children_that_were_not_drawn_from_their_law_are_caught(draw: Callable[..., list[int]]) -> None:
    assert worst() == 0
    assert worst(draw=draw) > 0.02


@pytest.mark.usefixtures("exact")
def test_one_uniform_for_all_decisions_is_caught() -> None:
    assert worst(source=OneUniform) > 0.02


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("rest = _residual(p, q, law)", "rest = p"),  # residual skipped
        ("np.maximum(p[law.ids] - q, 0 * q)", "0 * q"),  # the rejected law taken out altogether
        ("return rest / rest.sum() if rest.any() else rest", "return rest"),  # q not renormalised
        ("q = _without(q, place)", "pass"),  # the drawn token stays in q
        ("happens(min(p, q), q)", "happens(min(p, q), q + p)"),
        ("happens(min(p, q), q)", "happens(p, p + 1)"),
        ("p = weights / weights.sum()", "p = weights / weights.max() / len(weights)"),  # another total
        (
            "q = law.weights / law.weights.sum()",
            "q = (law.weights / law.weights.sum())[::-1]",
        ),  # another order
    ],
)
def test_mistakes_in_the_residual_are_caught(right: str, wrong: str) -> None:
    with mistake(MODULE, right, wrong):
        assert worst() > 0.02


@pytest.mark.usefixtures("exact")
def test_children_tried_in_another_order_than_they_were_drawn_in_are_caught() -> None:
    def backwards(law: DraftLaw, most: int, chance: Chance) -> list[int]:
        return draw_children(law, most, chance)[::-1]

    assert worst(draw=backwards) > 0.005


# --- edges of floating point ------------------------------------------------------------------------------------


def one_node(tokens: Sequence[int], law: DraftLaw | None) -> DraftTree:
    """Children of a root, with their law."""
    count = len(tokens)
    tree = build_tree(torch.tensor([[0, *tokens]]), torch.zeros(1, count + 1, dtype=torch.int64), 1)
    return replace(tree, laws=[{} if law is None else {0: law}])


def law_of(*weights: float) -> DraftLaw:
    support = np.flatnonzero(weights)
    return DraftLaw(support, np.array(weights)[support])


def verdict_of(tree: DraftTree, logits: torch.Tensor, uniform: float) -> list[int]:
    row = RowVerification(PLAIN, Always(uniform), history(logits.shape[-1]))
    return verify(tree, logits.expand(1, tree.tokens.shape[1], -1), [row], 1).tokens[0]


def test_impossible_tokens_are_never_accepted_even_by_a_uniform_of_zero() -> None:
    tree, logits = one_node([1], law_of(0.5, 0.5, 0.0)), logits_of(0.25, 0.0, 0.75)
    assert verdict_of(tree, logits, 0.0) == [2]  # the residual of 0 is nothing
    with mistake("vocabforge.decode.chance", "* total < weight", "* total <= weight"):
        assert verdict_of(tree, logits, 0.0)[0] == 1


def test_laws_that_differ_by_rounding_alone_leave_no_empty_residual() -> None:
    """Float weights of the same law, scaled: even the highest uniform number gives a token of the vocabulary."""
    draw = random.Random(0)
    for _ in range(300):
        logits = torch.tensor([draw.gauss(0, 4) for _ in range(5)])
        weights = draft_weights(logits, PLAIN) * draw.choice([1 / 3, 0.1, 7.7])
        law = DraftLaw(np.arange(5), weights)
        for uniform in (0.0, 0.5, 1.0 - 2.0**-53):
            tokens = verdict_of(one_node([draw.randrange(5)], law), logits, uniform)
            assert len(tokens) == 2 or uniform > 0.9, "the child is accepted: the laws are the same"
            assert 0 <= tokens[0] < 5


def test_all_tokens_drawn_and_rejected_leave_the_last_residual() -> None:
    """Three children are the whole support; a uniform number close to 1 rejects what it can."""
    tree, logits = one_node([0, 1, 2], law_of(0.4, 0.3, 0.3, 0.0)), logits_of(0.1, 0.1, 0.1, 0.7)
    assert verdict_of(tree, logits, 0.999) == [3]


def test_a_near_certain_draw_leaves_a_law_of_tiny_weights() -> None:
    law = law_of(1.0, 1e-300, 1e-300)
    row = RowVerification(PLAIN, SeededChance(3), history(3))
    tree, logits = one_node([0, 2, 1], law), logits_of(1e-6, 0.5, 0.5)
    for _ in range(50):
        tokens = verify(tree, logits.expand(1, 4, -1), [row], 1).tokens[0]
        assert set(tokens) <= {0, 1, 2}
    assert verdict_of(tree, logits, 0.4)[0] in (1, 2)


@pytest.mark.parametrize("tokens", [[2], [3], [0, 0], [1, 0, 1]])
def test_children_that_the_law_cannot_give_are_refused(tokens: list[int]) -> None:
    """Not among its ids, beyond them, or drawn twice."""
    with pytest.raises(MismatchError, match="was not drawn from the law"):
        verdict_of(one_node(tokens, law_of(0.6, 0.4, 0.0, 0.0)), logits_of(0.0, 0.0, 0.5, 0.5), 0.9)


def test_dead_children_are_never_tried() -> None:
    tree = replace(one_node([0, 1], law_of(1.0, 0.0, 0.0)), alive=torch.tensor([[True, True, False]]))
    assert verdict_of(tree, logits_of(0.0, 1.0, 0.0), 0.0) == [1]


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
        laws=[
            {node: DraftLaw(law.ids, law.weights.astype(np.float64)) for node, law in laws.items()}
            for laws in tree.laws or []
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
