"""Greedy verification against a walk through the tree."""

from __future__ import annotations

import random

import pytest
from torch import Tensor

from tests.decode.toy_targets import Toy, random_tree, tree_logits
from vocabforge.decode.tree import DraftTree
from vocabforge.decode.verify import (
    verify_greedy,
)


@pytest.mark.parametrize("kind", ["plain", "ties"])
def test_greedy_equals_a_walk(kind: str) -> None:
    deepest = 0
    for seed in range(150):
        draw = random.Random(seed)
        vocab, levels = draw.randint(2, 4), draw.randint(1, 4)
        tree = random_tree(seed, vocab, draw.randint(levels + 1, 25), levels, duplicates=seed % 3 == 0)
        logits = tree_logits(Toy(vocab, seed, kind), tree)
        if seed % 2:  # let the target agree more often
            for node in range(1, len(tree.tokens)):
                logits[tree.parents[node], tree.tokens[node]] += draw.choice([0.0, 3.0])
        node, walk, tokens = 0, [0], []
        while True:
            best = max(range(vocab), key=lambda v: (float(logits[node][v]), -v))
            tokens.append(best)
            matches = [
                c for c in range(1, len(tree.tokens)) if tree.parents[c] == node and tree.tokens[c] == best
            ]
            options = [verdict_depth(tree, logits, c) for c in matches]
            if not matches:
                break
            node = matches[options.index(max(options))]
            walk.append(node)
        verdict = verify_greedy(tree, logits, levels)
        assert verdict.tokens == tokens
        assert verdict.accepted == len(walk) - 1
        assert verdict.path.shape == (min(levels + 1, len(tree.tokens)),)
        assert [int(tree.tokens[n]) for n in verdict.path[1 : len(walk)]] == tokens[:-1]
        assert set(verdict.path[len(walk) :].tolist()) <= {int(verdict.path[len(walk) - 1])}
        deepest = max(deepest, verdict.accepted)
    assert deepest >= 3


def verdict_depth(tree: DraftTree, logits: Tensor, node: int) -> int:
    """Levels that the target accepts below a node; only trees with duplicate siblings need the choice."""
    best = int(logits[node].argmax())
    below = [c for c in range(1, len(tree.tokens)) if tree.parents[c] == node and tree.tokens[c] == best]
    return 1 + max((verdict_depth(tree, logits, c) for c in below), default=0)
