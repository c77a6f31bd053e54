"""Targets of a handful of tokens, random draft trees, and the exact distribution of one verification over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.decode.drafting import tree_paths
from tests.decode.probability import AllBranches, Distribution, all_ways, fractions
from vocabforge.decode import sampling
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.sampling import Chance, SeededChance, TokenHistory, Weights, draft_weights
from vocabforge.decode.tree import DraftDistribution, DraftTree, build_tree
from vocabforge.decode.verify import match as verify_match
from vocabforge.decode.verify import point as verify_sampling
from vocabforge.decode.verify import residual as verify_residual
from vocabforge.decode.verify.registry import RowVerification, Verdicts, verify


class Toy:
    """A target whose logits depend on everything before, with zeros, ties and near certainties among them."""

    def __init__(self, vocab: int, seed: int, kind: str) -> None:
        self.vocab, self.seed, self.kind = vocab, seed, kind
        self._known: dict[tuple[int, ...], Tensor] = {}

    def logits(self, prefix: tuple[int, ...]) -> Tensor:
        """(V,) after a prefix."""
        if prefix not in self._known:
            self._known[prefix] = self._draw(prefix)
        return self._known[prefix]

    def _draw(self, prefix: tuple[int, ...]) -> Tensor:
        draw = random.Random(f"{self.seed} {prefix}")
        values = [
            draw.choice([0.0, 0.5, 1.0, 2.0]) if self.kind == "ties" else draw.gauss(0, 1.5)
            for _ in range(self.vocab)
        ]
        if self.kind == "zeros":
            for token in draw.sample(range(self.vocab), draw.randint(1, self.vocab - 1)):
                values[token] = float("-inf")
        return torch.tensor(values)


def random_tree(seed: int, vocab: int, nodes: int, levels: int, *, duplicates: bool = False) -> DraftTree:
    """One tree of at most ``nodes`` nodes, a batch of its own."""
    draw = random.Random(seed)
    tokens, parents, depths, taken = [0], [0], [0], set()
    while len(tokens) < nodes:
        parent = draw.choice([n for n in range(len(tokens)) if depths[n] < levels])
        token = draw.randrange(vocab)
        if (parent, token) in taken and not duplicates:
            if len(taken) == sum(depth < levels for depth in depths) * vocab:
                break
            continue
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return build_tree(torch.tensor([tokens]), torch.tensor([parents]), levels)


def batch_of(trees: Sequence[DraftTree], levels: int) -> DraftTree:
    """Trees of one row each side by side, padded with dead children of the root."""
    count = max(tree.tokens.shape[1] for tree in trees)

    def padded(name: str) -> Tensor:
        rows = [getattr(tree, name)[0].tolist() for tree in trees]
        return torch.tensor([row + [0] * (count - len(row)) for row in rows])

    alive = torch.tensor(
        [[node < tree.tokens.shape[1] for node in range(count)] for tree in trees], dtype=torch.bool
    )
    return replace(build_tree(padded("tokens"), padded("parents"), levels), alive=alive)


def tree_logits(toy: Toy, tree: DraftTree, row: int = 0) -> Tensor:
    """(N, V) of the target on the nodes of a row."""
    return torch.stack([toy.logits(path) for path in tree_paths(tree, row)])


PROMPT = [0, 1]
ROOT = 2  # a committed token: penalties count it once
real_weights = sampling.target_weights  # before any test replaces it


def short(weights: Weights) -> Weights:
    """Weights as short fractions: 64ths, at least one where a weight is above 0."""
    return fractions(np.where(weights > 0, np.maximum(np.round(weights * 64), 1), 0) / 64)


def exact_target(*args: Any) -> Weights:
    """The transform, then :func:`short`."""
    return short(real_weights(*args))


def exact_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walks compute with fractions."""
    for module in (verify_match, verify_sampling, verify_residual):
        monkeypatch.setattr(module, "target_weights", exact_target)


def history(vocab: int) -> TokenHistory:
    found = TokenHistory(PROMPT, vocab)
    found.add([ROOT % vocab])
    return found


def next_distribution(toy: Toy, settings: SamplingParams, prefix: tuple[int, ...]) -> list[Fraction]:
    """The target's own distribution after a prefix, by plain decoding: everything committed, no path."""
    committed = history(toy.vocab)
    committed.add(prefix)
    weights = exact_target(toy.logits(prefix), settings, committed, [])
    return list(weights / weights.sum())


@cache
def target_distribution(
    toy: Toy, settings: SamplingParams, length: int, prefix: tuple[int, ...] = ()
) -> Distribution:
    """The joint distribution of ``length`` tokens that begin with a prefix."""
    distribution = {prefix[:length]: Fraction(1)}
    for _ in range(length - len(prefix)):
        distribution = {
            (*before, token): weight * p
            for before, weight in distribution.items()
            for token, p in enumerate(next_distribution(toy, settings, before))
            if p > 0
        }
    return distribution


def verify_one(
    toy: Toy, tree: DraftTree, settings: SamplingParams, chance: Chance, verifier: str | None = None
) -> Verdicts:
    """Verify a batch of one tree; its verdict is consistent."""
    levels = int(tree.depths.max())
    if verifier is None and tree.distributions is None:
        verifier = "point"
    row = RowVerification(settings, chance, history(toy.vocab))
    verdict = verify(tree, tree_logits(toy, tree)[None], [row], levels, verifier)
    count, tokens = verdict.accepted[0], verdict.tokens[0]
    assert len(tokens) == count + 1
    assert verdict.path.shape == (1, levels + 1)
    path = verdict.path[0].tolist()
    assert path[0] == 0
    assert set(path[count:]) == {path[count]}
    assert tree.parents[0, path[1 : count + 1]].tolist() == path[:count]
    assert tree.tokens[0, path[1 : count + 1]].tolist() == tokens[:-1]
    assert tree.alive is None or bool(tree.alive[0, path].all())
    return verdict


def output_distribution(
    toy: Toy,
    settings: SamplingParams,
    draft: Callable[[AllBranches], DraftTree],
    length: int,
    verifier: str | None = None,
) -> Distribution:
    """Distribution of the first tokens after one drafting and its verification, missing ones drawn from the target
    itself."""

    def run(chance: AllBranches) -> tuple[int, ...]:
        return tuple(verify_one(toy, draft(chance), settings, chance, verifier).tokens[0])

    distribution: Distribution = {}
    for weight, tokens in all_ways(run):
        for full, rest in target_distribution(toy, settings, length, tokens).items():
            distribution[full] = distribution.get(full, Fraction(0)) + weight * rest
    assert sum(distribution.values()) == 1
    return distribution


def always(uniform: float) -> SeededChance:
    """A source whose uniform number is always the same."""
    chance = SeededChance(0)
    chance._uniform = lambda: uniform  # type: ignore[method-assign, assignment, misc]
    return chance


def logits_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


class Drafter:
    """Distributions that depend on everything before, over a shortlist; they agree with the target now and then.

    Args:
        toy: the target.
        shortlist: ids that can be drafted.
        kind: of the distributions; ``same`` as the target's, else a :class:`Toy` of that kind.
        without: every other node gets the best tokens of its distribution and no distribution, as a mixed tree has.
    """

    def __init__(
        self, toy: Toy, shortlist: Sequence[int], kind: str = "plain", without: bool = False
    ) -> None:
        self.toy, self.ids, self.without = toy, np.array(sorted(shortlist)), without
        self._source = toy if kind == "same" else Toy(toy.vocab, toy.seed + 100, kind)
        self._known: dict[tuple[int, ...], DraftDistribution] = {}

    def distribution(self, path: tuple[int, ...]) -> DraftDistribution:
        """Of the tokens after a path."""
        if path not in self._known:
            self._known[path] = self._distribution(path)
        return self._known[path]

    def _distribution(self, path: tuple[int, ...]) -> DraftDistribution:
        logits = self._source.logits(path)[torch.from_numpy(self.ids)]
        if logits.max() == -torch.inf:
            logits = torch.zeros(len(self.ids))
        weights = short(draft_weights(logits, SamplingParams(1.0)))
        support = np.flatnonzero(weights)
        return DraftDistribution(self.ids[support], weights[support])

    def draft(self, parents: Sequence[int], chance: Chance, draw: Callable[..., list[int]]) -> DraftTree:
        """A tree of a shape, its children drawn node after node; what cannot be drawn is dead."""
        tokens, paths = [0] * len(parents), [()] * len(parents)  # type: list[int], list[tuple[int, ...]]
        alive, distributions = [True] * len(parents), {}
        for node in range(len(parents)):
            children = [child for child in range(1, len(parents)) if parents[child] == node]
            found: list[int] = []
            if children and alive[node]:
                distribution = self.distribution(paths[node])
                if self.without and node % 2 == 0:
                    found = distribution.ids[np.argsort(-distribution.weights, kind="stable")][
                        : len(children)
                    ].tolist()
                else:
                    distributions[node] = distribution
                    found = draw(distribution, len(children), chance)
            for place, child in enumerate(children):
                alive[child] = place < len(found)
                tokens[child] = found[place] if alive[child] else 0
                paths[child] = (*paths[node], tokens[child])
        tree = build_tree(torch.tensor([tokens]), torch.tensor([list(parents)]), 3)
        return replace(tree, alive=torch.tensor([alive]), distributions=[distributions])
