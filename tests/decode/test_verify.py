"""Verification is lossless: every random decision is walked, and the real source of chance is tested."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.decode.toy_targets import Toy, random_tree, tree_logits
from vocabforge.decode import verify
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.verify import (
    Chance,
    SeededChance,
    Verdict,
    target_distribution,
    verify_sampling,
)

Law = dict[tuple[int, ...], Fraction]
LENGTH = 3  # tokens whose joint law is compared


class AllBranches:
    """Replays a script of branches; beyond its end it takes the first and notes what else was possible."""

    def __init__(self, script: list[int]) -> None:
        self.script, self.taken, self.weight = script, 0, Fraction(1)
        self.open: list[list[int]] = []
        self.done: list[int] = []

    def choose(self, weights: list[Fraction]) -> int:
        possible = [branch for branch, weight in enumerate(weights) if weight > 0]
        place = len(self.done)
        branch = self.script[place] if place < len(self.script) else possible[0]
        if place >= len(self.script):
            self.open += [[*self.done, other] for other in possible[1:]]
        self.done.append(branch)
        self.weight *= weights[branch]
        return branch

    def happens(self, probability: float) -> bool:
        p = Fraction(probability)
        return self.choose([1 - p, p]) == 1

    def draw(self, probabilities: Tensor) -> int:
        weights = [Fraction(float(p)) for p in probabilities]
        total = sum(weights)
        return self.choose([weight / total for weight in weights])


class OneUniform(AllBranches):
    """The mistake of one uniform number for all decisions; it is kept as the interval it lies in."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(script)
        self.low, self.high = Fraction(0), Fraction(1)

    def happens(self, probability: float) -> bool:
        p = min(max(Fraction(probability), self.low), self.high)
        width = self.high - self.low
        accepted = self.choose([(self.high - p) / width, (p - self.low) / width]) == 1
        self.low, self.high = (self.low, p) if accepted else (p, self.high)
        return accepted


def all_verdicts(
    run: Callable[[Chance], Verdict], source: type[AllBranches] = AllBranches
) -> Iterator[tuple[Fraction, Verdict]]:
    waiting: list[list[int]] = [[]]
    while waiting:
        chance = source(waiting.pop())
        verdict = run(chance)
        waiting += chance.open
        yield chance.weight, verdict


def fractions(logits: Tensor, temperature: float) -> list[Fraction]:
    weights = [Fraction(float(p)) for p in target_distribution(logits, temperature).double()]
    return [weight / sum(weights) for weight in weights]


def target_law(toy: Toy, temperature: float, length: int = LENGTH, prefix: tuple[int, ...] = ()) -> Law:
    law = {prefix: Fraction(1)}
    for _ in range(length - len(prefix)):
        law = {
            (*before, token): weight * p
            for before, weight in law.items()
            for token, p in enumerate(fractions(toy.logits(before), temperature))
            if p > 0
        }
    return law


def output_law(toy: Toy, tree: DraftTree, temperature: float, source: type[AllBranches] = AllBranches) -> Law:
    """Law of the first tokens after one verification, the missing ones drawn from the target itself."""
    logits, levels = tree_logits(toy, tree), int(tree.depths.max())
    law: Law = {}
    total = Fraction(0)
    for weight, verdict in all_verdicts(
        lambda c: verify_sampling(tree, logits, levels, temperature, c), source
    ):
        assert len(verdict.tokens) == verdict.accepted + 1
        kept = verdict.path[1 : verdict.accepted + 1]
        assert tree.tokens[kept].tolist() == verdict.tokens[:-1]
        total += weight
        for tokens, rest in target_law(toy, temperature, prefix=tuple(verdict.tokens[:LENGTH])).items():
            law[tokens] = law.get(tokens, Fraction(0)) + weight * rest
    assert abs(total - 1) < Fraction(1, 10**9)
    return law


def total_variation(first: Law, second: Law) -> float:
    return float(
        sum(abs(first.get(k, Fraction(0)) - second.get(k, Fraction(0))) for k in {*first, *second}) / 2
    )


@pytest.mark.parametrize("kind", ["plain", "ties", "zeros"])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 1.7])
def test_output_law_equals_the_targets(kind: str, temperature: float) -> None:
    for seed in range(6):
        draw = random.Random(f"{kind} {seed}")
        vocab = draw.randint(3, 4)
        tree = random_tree(seed, vocab, draw.randint(2, 9), 3, duplicates=seed == 5)
        toy = Toy(vocab, seed, kind)
        assert total_variation(output_law(toy, tree, temperature), target_law(toy, temperature)) < 1e-9


def test_a_tree_of_the_whole_vocabulary_and_a_root_alone() -> None:
    toy = Toy(3, 4, "plain")
    full = build_tree(torch.tensor([0, 2, 0, 1]), torch.tensor([0, 0, 0, 0]), 1)
    alone = build_tree(torch.tensor([0]), torch.tensor([0]), 0)
    for tree in (full, alone):
        assert total_variation(output_law(toy, tree, 1.0), target_law(toy, 1.0)) < 1e-9


def worst(source: type[AllBranches] = AllBranches) -> float:
    """Largest error over some trees: what a mutant must show."""
    errors = []
    for seed in range(4):
        toy = Toy(4, seed, "plain")
        errors.append(
            total_variation(output_law(toy, random_tree(seed, 4, 8, 2), 1.0, source), target_law(toy, 1.0))
        )
    return max(errors)


def test_one_uniform_for_all_decisions_is_caught() -> None:
    assert worst() < 1e-9
    assert worst(OneUniform) > 0.02


def test_a_rejected_child_that_stays_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_try", lambda p, token, chance: chance.happens(float(p[token])))
    assert worst() > 0.02


def test_a_rejected_child_without_renormalisation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(p: Tensor, token: int, chance: Chance) -> bool:
        accepted = chance.happens(float(p[token]))
        if not accepted:
            p[token] = 0.0
        return accepted

    monkeypatch.setattr(verify, "_try", forgetful)
    assert worst() > 0.02


def test_impossible_tokens_are_never_accepted_even_by_a_uniform_of_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``u <= p`` instead of ``u < p`` accepts a token of probability 0 when u is 0."""
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.zeros(*shape, dtype=torch.float64))
    assert not SeededChance(0).happens(0.0)
    assert SeededChance(0).happens(1e-300)
    tree = build_tree(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]), 1)
    logits = torch.tensor([[0.0, float("-inf"), float("-inf"), 0.0]] * 3)
    verdict = verify_sampling(tree, logits, 1, 1.0, SeededChance(0))
    assert verdict.accepted == 0
    assert verdict.tokens[0] in (0, 3)


def test_certain_tokens_are_always_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    almost_one = 1.0 - 2.0**-53
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.tensor(almost_one, dtype=torch.float64))
    tree = build_tree(torch.tensor([0, 0, 2]), torch.tensor([0, 0, 0]), 1)
    logits = torch.tensor([[float("-inf"), float("-inf"), 0.0, float("-inf")]] * 3)
    assert verify_sampling(tree, logits, 1, 1.0, SeededChance(0)).tokens[0] == 2


def test_tiny_temperatures_are_greedy_and_finite() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.999]])
    for temperature in (1e-6, 1e-30, 1e-44):
        assert target_distribution(logits, temperature).tolist() == [[1.0, 0.0, 0.0]]
    assert target_distribution(torch.tensor([2.0, 2.0]), 1e-44).tolist() == [0.5, 0.5]


def test_the_real_source_of_chance_follows_the_law() -> None:
    """Chi-square over two tokens, 16 cells; the seed is fixed, so the outcome is too."""
    toy, tree = Toy(4, 3, "plain"), random_tree(3, 4, 8, 2)
    logits = tree_logits(toy, tree)
    chance, extra = SeededChance(1234), SeededChance(99)
    count = 4000
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(count):
        tokens = verify_sampling(tree, logits, 2, 1.0, chance).tokens
        if len(tokens) < 2:
            tokens.append(extra.draw(target_distribution(toy.logits(tuple(tokens)), 1.0)))
        seen[tuple(tokens[:2])] = seen.get(tuple(tokens[:2]), 0) + 1
    expected = {key: float(p) * count for key, p in target_law(toy, 1.0, length=2).items()}
    statistic = sum((seen.get(key, 0) - value) ** 2 / value for key, value in expected.items())
    assert len(expected) == 16
    assert statistic < 37.7  # 15 degrees of freedom, 0.1 %


def test_seeds_make_decisions_repeatable() -> None:
    first, second, third = (draws(SeededChance(seed)) for seed in (5, 5, 6))
    assert first == second != third


def draws(chance: SeededChance) -> list[object]:
    p = torch.tensor([0.2, 0.3, 0.5])
    return [chance.happens(0.5) if i % 2 else chance.draw(p) for i in range(40)]
