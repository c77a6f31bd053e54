"""Verification is lossless: every draw and every decision is walked, total variation exactly 0."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.decode.mutants import mistake
from tests.decode.probability import AllBranches, all_ways
from tests.decode.toys import (
    Drafter,
    Toy,
    always,
    batch_of,
    exact_weights,
    history,
    logits_of,
    output_distribution,
    random_tree,
    target_distribution,
    tree_logits,
    verify_one,
)
from vocabforge.core.errors import DataError, MismatchError, UsageError
from vocabforge.core.registry import resolve
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance, TokenHistory, draft_weights
from vocabforge.decode.tree import DraftDistribution, DraftTree, RowTree, build_tree
from vocabforge.decode.trees.fixed import draw_children
from vocabforge.decode.verify import lazy as verify_lazy
from vocabforge.decode.verify import residual as verify_residual
from vocabforge.decode.verify.greedy import decide_greedy
from vocabforge.decode.verify.registry import VERIFIERS, RowVerification, greedy_verdicts, verify
from vocabforge.decode.verify.residual import RESIDUAL

PLAIN = SamplingParams(1.0)
TRANSFORMS = {
    "hot": SamplingParams(1.7),
    "cold": SamplingParams(0.4),
    "top": SamplingParams(1.0, top_k=2),
    "nucleus": SamplingParams(1.2, top_p=0.8, min_p=0.1),
    "penalties": SamplingParams(0.9, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    "greedy, penalised": SamplingParams(0.0, repetition_penalty=2.0, frequency_penalty=0.7),
}
KINDS = pytest.mark.parametrize("kind", ["plain", "ties", "zeros"])


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


@pytest.mark.usefixtures("exact")
@KINDS
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("verifier", ["point", "match"])
def test_point_masses_keep_the_targets_distribution(verifier: str, kind: str, name: str) -> None:
    accepted = 0
    for seed in range(4):
        draw = random.Random(f"{kind} {name} {seed}")
        vocab = draw.randint(3, 4)
        tree = random_tree(seed, vocab, draw.randint(2, 8), 3, duplicates=seed == 2)
        if seed == 3:  # some nodes only pad; what hangs below them is lost too
            alive = torch.rand(tree.tokens.shape, generator=torch.Generator().manual_seed(5)) < 0.7
            tree = replace(tree, alive=alive.index_fill(1, torch.tensor([0]), True))
        toy, settings = Toy(vocab, seed, kind), TRANSFORMS[name]
        distribution = output_distribution(toy, settings, lambda _, tree=tree: tree, 3, verifier=verifier)
        assert distribution == target_distribution(toy, settings, 3)
        ways = all_ways(lambda chance, of=(toy, tree, settings): verify_one(*of, chance).accepted[0])
        accepted += max(count for _, count in ways)
    assert accepted > 0, "the test needs accepted drafts"


# parents of the nodes of each shape, the root's first
SHAPES = {
    "chain": [0, 0, 1, 2],
    "pair": [0, 0, 0],
    "siblings": [0, 0, 0, 0],
    "tree": [0, 0, 0, 1, 1],
    "deep": [0, 0, 0, 1, 2],
}


def check_drawn(
    drafter: Drafter, shape: str, settings: SamplingParams = PLAIN, verifier: str | None = None
) -> None:
    """The output of two tokens has the target's own distribution."""

    def draft(chance: AllBranches) -> DraftTree:
        return drafter.draft(SHAPES[shape], chance, draw_children)

    found = output_distribution(drafter.toy, settings, draft, 2, verifier=verifier)
    assert found == target_distribution(drafter.toy, settings, 2)


@pytest.mark.usefixtures("exact")
@KINDS
@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_children_keep_the_targets_distribution(shape: str, kind: str) -> None:
    """Whole vocabulary, shortlists with and without the argmax, distributions equal to the target's or with zeros."""
    for seed, (shortlist, source) in enumerate(
        [((0, 1, 2), "plain"), ((0, 2), "ties"), ((1,), "plain"), ((0, 1, 2), "zeros"), ((0, 1, 2), "same")]
    ):
        check_drawn(Drafter(Toy(3, seed, kind), shortlist, source), shape)


@pytest.mark.usefixtures("exact")
def test_mixed_trees_transforms_and_a_missing_argmax() -> None:
    """Nodes with and without a distribution; drawn children taken for point masses; ids beyond the shortlist."""
    for seed, shape in enumerate(SHAPES):
        for without in (True, False):
            for verifier in ("point", "residual"):
                drafter = Drafter(Toy(3, seed, "plain"), (0, 1, 2), without=without)
                check_drawn(drafter, shape, verifier=verifier)
    for seed, shape in enumerate(SHAPES):
        for settings in (
            SamplingParams(0.7, top_k=2),
            SamplingParams(1.0, top_p=0.7, min_p=0.1),
            SamplingParams(1.0, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.6),
        ):
            check_drawn(Drafter(Toy(3, seed, "plain"), (0, 1, 2)), shape, settings)
    toy = Toy(6, 1, "plain")
    best = int(toy.logits(()).argmax())
    check_drawn(Drafter(toy, [token for token in range(6) if token != best][:3]), "siblings")


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


MIXED = [
    SamplingParams(),
    SamplingParams(1.0, seed=4),
    None,
    SamplingParams(0.0, repetition_penalty=1.7),
    SamplingParams(0.6, top_k=2, presence_penalty=0.5, seed=9),
    SamplingParams(),
]


@pytest.mark.parametrize("which", [range(6), [0, 2, 5], [1, 3, 4], [2], [2, 2]])
def test_rows_of_one_batch_are_verified_each_by_its_own_settings(which: range | list[int]) -> None:
    """A row's verdict is what it is alone, whatever stands beside it; nobody looks at an idle row."""
    deepest, levels = 0, 3
    for seed in range(5):
        trees = [random_tree(seed * 10 + at, 4, 4 + at, levels) for at in range(len(which))]
        tree = batch_of(trees, levels)
        rows = [
            RowVerification(params, SeededChance(params.seed), history(4)) if (params := MIXED[at]) else None
            for at in which
        ]
        logits = torch.stack([tree_logits(Toy(4, seed, "plain"), tree, row) for row in range(len(rows))])
        logits[[row is None for row in rows]] = torch.nan
        together = verify(tree, logits, rows, levels)
        assert together.path.shape == (len(rows), levels + 1)
        for row, (at, own) in enumerate(zip(which, trees)):
            params = MIXED[at]
            if params is None:
                assert (together.accepted[row], together.tokens[row]) == (-1, [])
                assert 0 <= together.path[row].min() <= together.path[row].max() < tree.tokens.shape[1]
                continue
            single = [RowVerification(params, SeededChance(params.seed), history(4))]
            expected = verify(own, logits[row : row + 1, : own.tokens.shape[1]], single, levels)
            assert (together.accepted[row], together.tokens[row]) == (
                expected.accepted[0],
                expected.tokens[0],
            )
            assert torch.equal(together.path[row], expected.path[0])
            deepest = max(deepest, expected.accepted[0])
    assert deepest >= 1 or list(which) in ([2], [2, 2])


@pytest.mark.parametrize(
    "settings", [SamplingParams(), SamplingParams(1.0), SamplingParams(0.0, 0, 1.0, 0.0, 1.5)]
)
@pytest.mark.parametrize("nodes", [1, 4])
def test_logits_that_are_no_distribution_are_named_where_the_walk_meets_them(settings, nodes):
    """A chain whose every node is accepted; broken logits matter only on the path."""
    tokens = torch.tensor([[0, 1, 2, 1]])[:, :nodes]
    tree = build_tree(tokens, (torch.arange(nodes) - 1).clamp(min=0)[None], 3)
    sure = torch.stack([logits_of(*(float(token == best) for token in range(3))) for best in (1, 2, 1, 0)])
    row = RowVerification(settings, SeededChance(0), history(3))
    for place in range(nodes):
        for broken in (torch.nan, -torch.inf):
            logits = sure[None, :nodes].clone()
            logits[0, place] = broken
            with pytest.raises(DataError, match="the target's logits hold no largest number") as error:
                verify(tree, logits, [row], 3)
            assert f"for token {3 + place} (from 0)" in str(error.value)
    if nodes == 4:
        off = sure[None].clone()
        off[0, 1] = logits_of(1.0, 0.0, 0.0)  # the target leaves the chain here
        off[0, 2:] = torch.nan
        assert verify(tree, off, [row], 3).tokens == [[1, 0]]


def test_the_table_of_verifiers() -> None:
    for name in VERIFIERS:
        assert resolve(VERIFIERS, name, "verifier").lossless
    toy, tree = Toy(3, 0, "plain"), random_tree(0, 3, 4, 2)
    with pytest.raises(UsageError, match="takes the best token, but the request samples"):
        verify_one(toy, tree, PLAIN, SeededChance(0), "greedy")
    with pytest.raises(UsageError, match="no verifier of this name"):
        verify_one(toy, tree, PLAIN, SeededChance(0), "pont")
    greedy = verify_one(toy, tree, SamplingParams(), SeededChance(0))
    for name in VERIFIERS:  # a request at temperature 0 is greedy whatever samples for the others
        assert verify_one(toy, tree, SamplingParams(), SeededChance(0), name).tokens == greedy.tokens


def test_greedy_rows_wait_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy to the host for all rows."""
    asked: list[str] = []
    for name in ("tolist", "item", "cpu", "numpy", "__int__", "__bool__", "__float__", "__index__"):
        real: Callable[..., object] = getattr(Tensor, name)

        def noted(
            self: Tensor, *args: object, name: str = name, real: Callable[..., object] = real
        ) -> object:
            asked.append(name)
            return real(self, *args)

        monkeypatch.setattr(Tensor, name, noted)
    for nodes in (1, 9):
        tree = batch_of([random_tree(seed, 4, nodes, 3) for seed in range(3)], 3)
        logits = torch.zeros(3, tree.tokens.shape[1], 4)
        asked.clear()
        greedy_verdicts(*decide_greedy(tree, logits, 3), [None] * 3)
        assert asked == ["tolist"]


def one_node(tokens: Sequence[int], distribution: DraftDistribution) -> DraftTree:
    """Children of a root, with their distribution."""
    count = len(tokens)
    tree = build_tree(torch.tensor([[0, *tokens]]), torch.zeros(1, count + 1, dtype=torch.int64), 1)
    return replace(tree, distributions=[{0: distribution}])


def distribution_of(*weights: float) -> DraftDistribution:
    support = np.flatnonzero(weights)
    return DraftDistribution(support, np.array(weights)[support])


def verdict_of(tree: DraftTree, logits: Tensor, uniform: float) -> list[int]:
    row = RowVerification(PLAIN, always(uniform), history(logits.shape[-1]))
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


@pytest.mark.parametrize(
    ("tokens", "draft", "target", "uniform", "expected"),
    [
        # The whole support was drawn; a uniform number close to 1 rejects what it can.
        ([0, 1, 2], (0.4, 0.3, 0.3, 0.0), (0.1, 0.1, 0.1, 0.7), 0.999, {3}),
        # A near certain draw leaves a distribution of tiny weights.
        ([0, 2, 1], (1.0, 1e-300, 1e-300), (1e-6, 0.5, 0.5), 0.4, {1, 2}),
    ],
)
def test_what_rejections_leave(tokens, draft, target, uniform, expected):
    tree = one_node(tokens, distribution_of(*draft))
    assert verdict_of(tree, logits_of(*target), uniform)[0] in expected


@pytest.mark.parametrize("tokens", [[2], [3], [0, 0], [1, 0, 1]])
def test_children_that_the_distribution_cannot_give_are_refused(tokens: list[int]) -> None:
    """Not among its ids, beyond them, or drawn twice."""
    with pytest.raises(MismatchError, match="was not drawn from the distribution"):
        verdict_of(one_node(tokens, distribution_of(0.6, 0.4, 0.0, 0.0)), logits_of(0.0, 0.0, 0.5, 0.5), 0.9)


def test_dead_children_are_never_tried() -> None:
    tree = one_node([0, 1], distribution_of(1.0, 0.0, 0.0))
    tree = replace(tree, alive=torch.tensor([[True, True, False]]))
    assert verdict_of(tree, logits_of(0.0, 1.0, 0.0), 0.0) == [1]


# A distribution that is known token by token: the residual is drawn from whatever was drawn.
P = (4, 3, 0, 1, 2)  # tenths
NOTHING = -1
# name -> psi in tenths; what is left to ten is nothing drawn
DISTRIBUTIONS: dict[str, dict[int, int]] = {
    "overlapping": {0: 1, 1: 5, 2: 2, 4: 1},
    "complete": {0: 2, 1: 3, 2: 1, 3: 1, 4: 3},
    "the target's own": {0: 4, 1: 3, 3: 1, 4: 2},
    "disjoint": {2: 7},
    "nothing at all": {},
    "below the target": {0: 2, 4: 1},
}


class Told:
    """A distribution that counts what it is asked."""

    def __init__(self, psi: Mapping[int, Any]) -> None:
        self._psi = psi
        self.asked: list[int] = []

    def probability(self, token: int) -> Any:
        self.asked.append(token)
        return self._psi.get(token, 0)


def tenths(numbers: Mapping[int, int]) -> dict[int, Fraction]:
    return {token: Fraction(number, 10) for token, number in numbers.items()}


def row_of(child: int, distribution: Told, chance: Any) -> RowTree:
    """A root with one child, or none; the child is a leaf without a distribution."""
    logits = torch.zeros(2, len(P))
    children = [[1], []] if child != NOTHING else [[], []]
    history = TokenHistory([0], len(P))
    return RowTree(
        [0, max(child, 0)], children, logits, SamplingParams(1.0), chance, history, {0: distribution}
    )


@pytest.fixture
def tenths_of_p(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.array([Fraction(number) for number in P], dtype=object)
    monkeypatch.setattr(verify_residual, "target_weights", lambda *args: weights.copy())


def first_distribution(psi: dict[int, Fraction]) -> tuple[list[Fraction], list[Told]]:
    """The exact distribution of the first token, over all draws and decisions."""
    distributions: list[Told] = []

    def run(chance: AllBranches) -> int:
        distribution = Told(psi)
        distributions.append(distribution)
        rest = 1 - sum(psi.values())
        cells = [*psi.items(), (NOTHING, rest)]
        child = cells[chance.choose([weight for _, weight in cells])][0]
        return RESIDUAL.walk(row_of(child, distribution, chance))[1][0]

    found = [Fraction(0)] * len(P)
    for weight, token in all_ways(run):
        found[token] += weight
    return found, distributions


@pytest.mark.usefixtures("tenths_of_p")
@pytest.mark.parametrize("draws", [0, 1, 2, 1000])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_distribution_is_the_targets(name: str, draws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_lazy, "LAZY_DRAWS", draws)
    found, distributions = first_distribution(tenths(DISTRIBUTIONS[name]))
    assert found == [Fraction(number, 10) for number in P]
    assert all(
        len(set(distribution.asked)) >= len(distribution.asked) - 1 for distribution in distributions
    )  # the drafted one may come twice


@pytest.mark.usefixtures("tenths_of_p")
def test_a_node_without_a_child_takes_the_residual() -> None:
    """Where nothing was drawn the target's own distribution would be wrong: psi's tokens would come too often."""
    psi = tenths({0: 4, 1: 3})
    found = [Fraction(0)] * len(P)
    for weight, token in all_ways(lambda chance: RESIDUAL.walk(row_of(NOTHING, Told(psi), chance))[1][0]):
        found[token] += weight
    assert found == [0, 0, 0, Fraction(1, 3), Fraction(2, 3)]


@pytest.mark.usefixtures("tenths_of_p")
def test_a_child_of_probability_zero_is_refused() -> None:
    with pytest.raises(MismatchError, match="not drawn from the distribution"):
        RESIDUAL.walk(row_of(2, Told({}), AllBranches([])))


def test_rounding_alone_leaves_nothing() -> None:
    """Where no residual is left the target's own distribution is taken."""
    p = np.array([0.25, 0.75])
    chance = SeededChance(1)
    tokens = [verify_lazy.draw_residual(p, Told({0: 0.25, 1: 0.75}), chance) for _ in range(200)]
    assert 20 < tokens.count(0) < 90
