"""The three tests that every op has: emulated kernels, CPU implementation and CUDA kernels against the reference."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

HALVES = [torch.bfloat16, torch.float16]
FLOATS = [torch.float32, *HALVES]


def parity(
    folder: str,
    agree: Callable[..., None],
    *,
    emulated: Iterable[tuple[Any, ...]],
    cpu: Iterable[tuple[Any, ...]],
    cuda: Iterable[tuple[Any, ...]],
) -> type:
    """Return a class of tests that call ``agree(*case, backend, device)``.

    Args:
        folder: name under ``kernels/``.
        agree: compares what a backend gives on a device with the reference.
        emulated, cpu, cuda: cases; the emulator runs each under several schedules.
    """

    class Parity:
        @pytest.mark.parametrize("case", list(emulated), ids=str)
        def test_emulated_kernels_equal_the_reference(
            self, emulated: Callable[[str], None], schedule: int, case: tuple[Any, ...]
        ) -> None:
            emulated(folder)
            agree(*case, "emulated", "cpu")

        @pytest.mark.parametrize("case", list(cpu), ids=str)
        def test_cpu_implementation_equals_the_reference(
            self, native_cpu: None, case: tuple[Any, ...]
        ) -> None:
            agree(*case, "native", "cpu")

        @pytest.mark.gpu
        @pytest.mark.parametrize("case", list(cuda), ids=str)
        def test_cuda_kernels_equal_the_reference(self, native_cuda: None, case: tuple[Any, ...]) -> None:
            agree(*case, "native", "cuda")

    return Parity


def moved(given: Any, device: str) -> Any:
    """The tensors of a tuple, list or dict on a device, the rest as it is."""
    if isinstance(given, dict):
        return {name: moved(value, device) for name, value in given.items()}
    if isinstance(given, (tuple, list)):
        return [moved(value, device) for value in given]
    return given.to(device) if isinstance(given, torch.Tensor) else given


def assert_same(got: Iterable[Any], expected: Iterable[Any]) -> None:
    """Bit for bit."""
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def steady(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call returns, as a tuple; called again, on the emulator under another schedule, it has the same bits."""
    results = []
    for seed in (os.environ.get("VOCABFORGE_EMULATOR_SEED", "1"), "97"):
        with pytest.MonkeyPatch.context() as changed:
            changed.setenv("VOCABFORGE_EMULATOR_SEED", seed)
            found = call()
        results.append((found,) if isinstance(found, torch.Tensor) else tuple(found))
    assert_same(*results)
    return results[0]


def assert_logits_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Both fp32 and summed in fp32, in another order; nothing where the other has nothing."""
    assert got.shape == expected.shape
    assert got.dtype == torch.float32
    assert torch.equal(got == -torch.inf, expected == -torch.inf)
    assert torch.allclose(got, expected, rtol=1e-4, atol=1e-3)
