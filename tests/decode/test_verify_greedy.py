"""Greedy verification against a walk through each tree, for B trees side by side."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.decode.toys import Toy, batch_of, random_tree, tree_logits
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.decode.verify.greedy import verify_greedy


def case(seed: int, kind: str, levels: int) -> tuple[DraftTree, Tensor]:
    """A random tree and logits of a target that often agrees with it."""
    draw = random.Random(f"{seed} {kind}")
    vocab = 4
    tree = random_tree(seed, vocab, draw.randint(2, 25), levels, duplicates=seed % 3 == 0)
    logits = tree_logits(Toy(vocab, seed, kind), tree)
    if seed % 2:
        for node in range(1, tree.tokens.shape[1]):
            logits[tree.parents[0, node], tree.tokens[0, node]] += draw.choice([0.0, 3.0])
    return tree, logits


def below(tree: DraftTree, logits: Tensor, node: int) -> list[int]:
    """Nodes of the longest accepted path below a node; of equally long ones the first by its last node."""
    best = max(range(logits.shape[1]), key=lambda token: (float(logits[node, token]), -token))
    found: list[list[int]] = [[]]
    for child in range(1, tree.tokens.shape[1]):
        alive = tree.alive is None or bool(tree.alive[0, child])
        if tree.parents[0, child] == node and tree.tokens[0, child] == best and alive:
            found.append([child, *below(tree, logits, child)])
    return min(found, key=lambda path: (-len(path), path[-1:]))


@pytest.mark.parametrize("kind", ["plain", "ties", "zeros"])
def test_greedy_equals_a_walk(kind: str) -> None:
    deepest, killed, levels = 0, 0, 4
    for first in range(0, 120, 6):
        pairs = [case(seed, kind, levels) for seed in range(first, first + 6)]
        trees = [tree for tree, _ in pairs]
        tree = batch_of(trees, levels)
        assert tree.alive is not None
        if first % 4 == 0:  # further nodes are dead, inner ones among them
            mask = torch.rand(tree.tokens.shape, generator=torch.Generator().manual_seed(first)) < 0.8
            mask[:, 0] = True
            tree = replace(tree, alive=tree.alive & mask)
        count = tree.tokens.shape[1]
        logits = torch.stack(
            [torch.cat([found, torch.zeros(count - len(found), found.shape[1])]) for _, found in pairs]
        )
        verdicts = verify_greedy(tree, logits, levels)
        assert verdicts.path.shape == (6, levels + 1)
        assert verdicts.invalid == [-1] * 6
        for row, own in enumerate(trees):
            size = own.tokens.shape[1]
            assert tree.alive is not None
            expected = [0, *below(replace(own, alive=tree.alive[row : row + 1, :size]), logits[row], 0)]
            path = verdicts.path[row].tolist()
            assert path == expected + expected[-1:] * (levels + 1 - len(expected))
            wanted = own.tokens[0, expected[1:]].tolist()
            assert verdicts.tokens[row] == [*wanted, int(logits[row, expected[-1]].argmax())]
            deepest = max(deepest, len(expected) - 1)
            killed += len(below(own, logits[row], 0)) > len(expected) - 1
    assert deepest >= 3
    assert killed > 0, "the test needs dead nodes that would have been accepted"


def test_rows_without_distribution_are_told_apart() -> None:
    """NaN on the path, NaN off the path, only -inf on the path; a root alone."""
    tree = build_tree(torch.tensor([[0, 1, 2]] * 3), torch.tensor([[0, 0, 1]] * 3), 2)
    logits = torch.nn.functional.one_hot(torch.tensor([[1, 2, 0]] * 3), 4).float()
    logits[0, 1, 2] = torch.nan  # the child there is taken, and has a distribution
    logits[1, 0] = torch.tensor([9.0, 0.0, 0.0, 0.0])
    logits[1, 1:] = torch.nan
    logits[2, 2] = -torch.inf
    verdicts = verify_greedy(tree, logits, 2)
    assert verdicts.invalid == [1, -1, 2]
    assert verdicts.tokens[1] == [0]
    alone = build_tree(torch.zeros(3, 1, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64), 0)
    assert verify_greedy(alone, logits[:, 2:], 0).invalid == [-1, 0, 0]


def test_the_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy to the host for all rows; more would each wait for the device."""
    asked: list[str] = []
    for name in ("tolist", "item", "cpu", "numpy", "__int__", "__bool__", "__float__", "__index__"):
        real = getattr(Tensor, name)

        def noted(self: Tensor, *args: object, name: str = name, real: object = real) -> object:
            asked.append(name)
            return real(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(Tensor, name, noted)
    for nodes in (1, 9):
        tree = batch_of([random_tree(seed, 4, nodes, 3) for seed in range(3)], 3)
        logits = torch.zeros(3, tree.tokens.shape[1], 4)
        asked.clear()
        verify_greedy(tree, logits, 3)
        assert asked == ["tolist"]
