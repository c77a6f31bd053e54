"""Verification of point masses (A) is lossless: every random decision is walked, total variation exactly 0."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.decode.probability import AllBranches, all_ways
from tests.decode.toys import (
    Toy,
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
from vocabforge.core.errors import DataError, UsageError
from vocabforge.core.registry import resolve
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import SeededChance
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.verify.registry import VERIFIERS, RowVerification, verify

LENGTH = 3  # tokens whose joint distribution is compared
PLAIN = SamplingParams(1.0)
TRANSFORMS = {
    "hot": SamplingParams(1.7),
    "cold": SamplingParams(0.4),
    "top": SamplingParams(1.0, top_k=2),
    "nucleus": SamplingParams(1.2, top_p=0.8, min_p=0.1),
    "penalties": SamplingParams(0.9, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    "greedy, penalised": SamplingParams(0.0, repetition_penalty=2.0, frequency_penalty=0.7),
}


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact_weights(monkeypatch)


def most_accepted(toy: Toy, tree: DraftTree, settings: SamplingParams) -> int:
    return max(count for _, count in all_ways(lambda c: verify_one(toy, tree, settings, c).accepted[0]))


def fixed(tree: DraftTree) -> Callable[[AllBranches], DraftTree]:
    return lambda chance: tree


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("kind", ["plain", "ties", "zeros"])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("verifier", ["point", "match"])
def test_output_distribution_equals_the_targets(verifier: str, kind: str, name: str) -> None:
    accepted = 0
    for seed in range(4):
        draw = random.Random(f"{kind} {name} {seed}")
        vocab = draw.randint(3, 4)
        tree = random_tree(seed, vocab, draw.randint(2, 8), 3, duplicates=seed == 2)
        if seed == 3:  # some nodes only pad; what hangs below them is lost too
            alive = torch.rand(tree.tokens.shape, generator=torch.Generator().manual_seed(5)) < 0.7
            tree = replace(tree, alive=alive.index_fill(1, torch.tensor([0]), True))
        toy, settings = Toy(vocab, seed, kind), TRANSFORMS[name]
        distribution = output_distribution(toy, settings, fixed(tree), LENGTH, verifier=verifier)
        assert distribution == target_distribution(toy, settings, LENGTH)
        accepted += most_accepted(toy, tree, settings)
    assert accepted > 0, "the test needs accepted drafts"


@pytest.mark.usefixtures("exact")
def test_a_tree_of_the_whole_vocabulary_and_a_root_alone() -> None:
    toy = Toy(3, 4, "plain")
    full = build_tree(torch.tensor([[2, 2, 0, 1]]), torch.tensor([[0, 0, 0, 0]]), 1)
    alone = build_tree(torch.tensor([[2]]), torch.tensor([[0]]), 0)
    for tree in (full, alone):
        assert output_distribution(toy, PLAIN, fixed(tree), LENGTH) == target_distribution(toy, PLAIN, LENGTH)


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
    """A row's verdict is what it is alone, whatever stands beside it."""
    deepest = 0
    levels = 3
    for seed in range(5):
        trees = [random_tree(seed * 10 + at, 4, 4 + at, levels) for at in range(len(which))]
        tree = batch_of(trees, levels)
        rows = [
            RowVerification(params, SeededChance(params.seed), history(4)) if (params := MIXED[at]) else None
            for at in which
        ]
        logits = torch.stack([tree_logits(Toy(4, seed, "plain"), tree, row) for row in range(len(rows))])
        for row, settings_ in enumerate(rows):
            if settings_ is None:
                logits[row] = torch.nan  # nobody looks at an idle row
        together = verify(tree, logits, rows, levels)
        assert together.path.shape == (len(rows), levels + 1)
        assert together.path.dtype == torch.int64
        for row, (at, own) in enumerate(zip(which, trees)):
            params = MIXED[at]
            if params is None:
                assert (together.accepted[row], together.tokens[row]) == (-1, [])
                assert 0 <= together.path[row].min() <= together.path[row].max() < tree.tokens.shape[1]
                continue
            single = [RowVerification(params, SeededChance(params.seed), history(4))]
            expected = verify(own, logits[row : row + 1, : own.tokens.shape[1]], single, levels)
            assert together.accepted[row] == expected.accepted[0]
            assert together.tokens[row] == expected.tokens[0]
            assert torch.equal(together.path[row], expected.path[0])
            deepest = max(deepest, expected.accepted[0])
    assert deepest >= 1 or list(which) in ([2], [2, 2])


@pytest.mark.parametrize(
    "settings", [SamplingParams(), SamplingParams(1.0), SamplingParams(0.0, 0, 1.0, 0.0, 1.5)]
)
@pytest.mark.parametrize("nodes", [1, 4])
def test_logits_that_are_no_distribution_are_named_where_the_walk_meets_them(
    settings: SamplingParams, nodes: int
) -> None:
    """A chain whose every node is accepted; broken logits matter only on the path."""
    tokens = torch.tensor([[0, 1, 2, 1]])[:, :nodes]
    tree = build_tree(tokens, (torch.arange(nodes) - 1).clamp(min=0)[None], 3)
    sure = torch.stack([logits_of(*(float(token == best) for token in range(3))) for best in (1, 2, 1, 0)])[
        :nodes
    ]
    row = RowVerification(settings, SeededChance(0), history(3))
    for place in range(nodes):
        for broken in (torch.nan, -torch.inf):
            logits = sure[None].clone()
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
