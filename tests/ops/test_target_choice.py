"""The target's greedy choice: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 7, 8, 1000, 16_389])
def test_emulated_kernel_equals_the_reference(
    emulated: Callable[[str], None], schedule: int, vocab: int, dtype: torch.dtype
) -> None:
    emulated("target_choice")
    logits = rows(vocab, dtype, seed=vocab)
    for got, expected in zip(
        target_choice(logits, backend="emulated"), target_choice(logits, backend="reference")
    ):
        assert torch.equal(got, expected)


def shifted(logits: Tensor) -> Tensor:
    """The same rows in a view that begins one number behind its storage."""
    storage = torch.empty(logits.numel() + 1, dtype=logits.dtype, device=logits.device)
    return storage[1:].view_as(logits).copy_(logits)


def test_the_emulated_kernel_takes_a_view_that_begins_anywhere(emulated: Callable[[str], None]) -> None:
    emulated("target_choice")
    logits = rows(64, torch.bfloat16)
    for got, expected in zip(target_choice(shifted(logits), backend="emulated"), target_choice(logits)):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cpu_implementation_equals_the_reference(native_cpu: None, dtype: torch.dtype) -> None:
    for vocab in (1, 7, 1000):
        logits = rows(vocab, dtype, seed=vocab)
        for got, expected in zip(
            target_choice(logits, backend="native"), target_choice(logits, backend="reference")
        ):
            assert torch.equal(got, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [1, 7, 1000, 128_256, 151_936])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cuda_kernel_equals_the_reference(native_cuda: None, vocab: int, dtype: torch.dtype) -> None:
    logits = rows(vocab, dtype, seed=vocab).cuda()
    for got, expected in zip(
        target_choice(logits, backend="native"), target_choice(logits, backend="reference")
    ):
        assert torch.equal(got, expected)


@pytest.mark.gpu
def test_the_cuda_kernel_takes_a_view_that_begins_anywhere(native_cuda: None) -> None:
    logits = rows(1000, torch.bfloat16).cuda()
    for got, expected in zip(
        target_choice(shifted(logits), backend="native"), target_choice(logits, backend="reference")
    ):
        assert torch.equal(got, expected)
