"""Expansion of a draft tree's frontier: reference, CPU implementation and emulated kernel agree, ties included."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.parity import assert_same, moved, parity
from tests.ops.trees_support import coarse, fine
from vocabforge.core.errors import UsageError
from vocabforge.ops.tree_expand import tree_expand

SHAPES = [
    (1, 1, 1, 1),
    (2, 1, 10, 10),
    (3, 10, 10, 10),
    (2, 4, 7, 5),
    (2, 20, 20, 20),
    (1, 64, 64, 64),
    (1, 8, 64, 512),
]


def inputs(rows: int, width: int, k: int, kind: str, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    make = coarse if kind == "ties" else fine
    ids = torch.randint(2**40, (rows, width, k), generator=stream)
    return make((rows, width), stream), make((rows, width, k), stream), ids


def bits(rows: int, width: int, words: int) -> Tensor:
    """Any bits, the highest among them, which is the sign."""
    stream = torch.Generator().manual_seed(words)
    return torch.randint(-(2**63), 2**63 - 1, (rows, width, words), generator=stream)


def agree(shape: tuple[int, int, int, int], kind: str, backend: str, device: str) -> None:
    rows, width, k, keep = shape
    given = moved(inputs(rows, width, k, kind, seed=width), device)
    words = (keep + 59) // 64 + 1
    asked: list[dict[str, Any]] = [{}, {"first": 7, "above": bits(rows, width, words).to(device), "slot": 60}]
    for more in asked:
        got = tree_expand(*given, keep=keep, backend=backend, **more)
        expected = tree_expand(*given, keep=keep, backend="reference", **more)
        assert_same(got, expected)


@pytest.mark.parametrize("kind", ["ties", "fine"])
def test_the_reference_orders_by_score_and_place(kind: str) -> None:
    scores, logprobs, ids = inputs(2, 4, 6, kind)
    found = tree_expand(scores, logprobs, ids, keep=9)
    for row in range(2):
        sums = [float(scores[row, i // 6] + logprobs[row, i // 6, i % 6]) for i in range(24)]
        best = sorted(range(24), key=lambda i: (-sums[i], i))[:9]
        assert found.cumulative[row].tolist() == sums
        assert found.places[row].tolist() == best
        assert found.parents[row].tolist() == [i // 6 for i in best]
        assert found.tokens[row].tolist() == [int(ids[row, i // 6, i % 6]) for i in best]
        assert found.best_scores[row].tolist() == [sums[i] for i in best]
        assert found.words.shape == (2, 9, 0)


def test_children_see_what_their_parents_see_and_themselves() -> None:
    given, above = inputs(2, 4, 6, "fine"), bits(2, 4, 2)
    plain = tree_expand(*given, keep=9)
    found = tree_expand(
        *given, keep=9, first=100, above=above, slot=58
    )  # from the first word into the second
    assert torch.equal(found.places, plain.places + 100)
    assert torch.equal(found.parents, plain.parents)
    for row in range(2):
        for child, parent in enumerate(plain.parents[row].tolist()):
            own = 1 << (58 + child)
            seen = sum((int(word) % 2**64) << 64 * i for i, word in enumerate(above[row, parent])) | own
            assert (
                sum((int(word) % 2**64) << 64 * i for i, word in enumerate(found.words[row, child])) == seen
            )


def test_wrong_bits_are_refused() -> None:
    given = inputs(2, 4, 6, "fine")
    with pytest.raises(UsageError, match="slot is out of range"):
        tree_expand(*given, keep=9, above=bits(2, 4, 1), slot=56)
    with pytest.raises(UsageError, match="another shape"):
        tree_expand(*given, keep=9, above=bits(2, 3, 1))


CASES = list(product(SHAPES, ["ties", "fine"]))
TestParity = parity("tree_expand", agree, emulated=CASES, cpu=CASES, cuda=CASES)
