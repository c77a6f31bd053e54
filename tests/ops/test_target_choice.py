"""The target's greedy choice: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from tests.ops.parity import FLOATS, assert_same, parity
from vocabforge.ops.target_choice import target_choice

INF, NAN = float("inf"), float("nan")


def rows(vocab: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random rows, many of whose logits are equal, and the odd ones: NaN, infinities, -0."""
    stream = torch.Generator().manual_seed(seed)
    logits = (torch.randn(9, vocab, generator=stream) * 2).round()
    logits[1] = -INF
    logits[2, vocab // 2] = NAN
    logits[3, vocab - 1] = INF
    logits[4] = 0.0
    logits[4, 0] = -0.0
    logits[5], logits[5, -1] = -INF, -3e38
    return logits.to(dtype)


def test_choices_of_known_rows() -> None:
    logits = torch.tensor(
        [[1.0, 5.0, 5.0], [-INF] * 3, [1.0, NAN, 9.0], [-INF, -7.0, -INF], [-0.0, 0.0, -1.0]]
    )
    choices, valid = target_choice(logits)
    assert choices.tolist() == [1, 0, 1, 1, 0]
    assert valid.tolist() == [True, False, False, True, True]


def shifted(logits: Tensor) -> Tensor:
    """The same rows in a view that begins one number behind its storage."""
    storage = torch.empty(logits.numel() + 1, dtype=logits.dtype, device=logits.device)
    return storage[1:].view_as(logits).copy_(logits)


def agree(vocab: int, dtype: torch.dtype, backend: str, device: str) -> None:
    """Also in a view that begins anywhere."""
    logits = rows(vocab, dtype, seed=vocab).to(device)
    expected = target_choice(logits, backend="reference")
    for given in (logits, shifted(logits)):
        assert_same(target_choice(given, backend=backend), expected)


TestParity = parity(
    "target_choice",
    agree,
    emulated=product([1, 7, 8, 64, 1000, 16_389], FLOATS),
    cpu=product([1, 7, 1000], FLOATS),
    cuda=product([1, 7, 1000, 128_256, 151_936], FLOATS),
)
