"""Logits of each row's own candidates: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.ops.logits_support import assert_logits_close
from vocabforge.ops.indexed_logits import indexed_logits

VOCAB = 300
HALVES = [torch.bfloat16, torch.float16]


def inputs(n: int, d: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, a head, and candidates: some shared by rows, some twice in a row, some that are none."""
    stream = torch.Generator().manual_seed(n * 1000 + d + k)
    hidden, weight = (torch.randn(size, d, generator=stream).to(dtype) for size in (n, VOCAB))
    ids = torch.randint(-2, VOCAB + 2, (n, k), generator=stream)
    ids[n // 2 :, : k // 2] = ids[0, : k // 2].clone()
    return hidden, weight, ids


def test_logits_of_known_candidates() -> None:
    weight = torch.arange(24.0).reshape(3, 8)
    hidden = torch.stack((torch.ones(8), torch.eye(8)[2]))
    logits = indexed_logits(hidden, weight, torch.tensor([[2, 0, 2], [-1, 1, 3]]))
    infinity = float("inf")
    assert logits.tolist() == [[156.0, 28.0, 156.0], [-infinity, 10.0, -infinity]]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("n", "d", "k"), [(1, 8, 1), (1, 264, 70), (2, 1032, 5), (9, 40, 33), (17, 264, 20), (64, 72, 12)]
)
def test_emulated_kernel_equals_the_reference(
    emulated: Callable[[str], None], schedule: int, n: int, d: int, k: int, dtype: torch.dtype
) -> None:
    emulated("indexed_logits")
    hidden, weight, ids = inputs(n, d, k, dtype)
    ids = ids.int() if schedule == 2 else ids
    got = indexed_logits(hidden, weight, ids, backend="emulated")
    assert_logits_close(got, indexed_logits(hidden, weight, ids, backend="reference"))


def test_emulated_kernel_of_long_lists(emulated: Callable[[str], None]) -> None:
    # Nearly all rows of the head, each wanted by many: several tiles a block, several ids a thread.
    emulated("indexed_logits")
    hidden, weight, ids = inputs(40, 16, 100, torch.bfloat16)
    got = indexed_logits(hidden, weight, ids, backend="emulated")
    assert_logits_close(got, indexed_logits(hidden, weight, ids, backend="reference"))


def test_no_candidates_at_all(emulated: Callable[[str], None]) -> None:
    emulated("indexed_logits")
    hidden, weight, ids = inputs(3, 16, 4, torch.bfloat16)
    for backend in ("reference", "emulated"):
        assert indexed_logits(hidden, weight, ids[:, :0], backend=backend).shape == (3, 0)
        assert (indexed_logits(hidden, weight, torch.full_like(ids, -1), backend=backend) == -torch.inf).all()


def test_the_schedule_does_not_change_a_bit(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulated("indexed_logits")
    hidden, weight, ids = inputs(9, 264, 33, torch.bfloat16)
    monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", "4")
    first = indexed_logits(hidden, weight, ids, backend="emulated")
    monkeypatch.setenv("VOCABFORGE_EMULATOR_SEED", "5")
    assert torch.equal(indexed_logits(hidden, weight, ids, backend="emulated"), first)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_cpu_implementation_equals_the_reference(native_cpu: None, dtype: torch.dtype) -> None:
    for n, k in ((1, 5), (11, 30)):
        hidden, weight, ids = inputs(n, 40, k, dtype)
        got = indexed_logits(hidden, weight, ids, backend="native")
        assert_logits_close(got, indexed_logits(hidden, weight, ids))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 2, 10, 20, 60])
@pytest.mark.parametrize("d", [8, 1032, 4096])
def test_cuda_kernel_equals_the_reference(native_cuda: None, n: int, d: int, dtype: torch.dtype) -> None:
    for k in (1, 77, 2048):
        hidden, weight, ids = (one.cuda() for one in inputs(n, d, k, dtype))
        got = indexed_logits(hidden, weight, ids, backend="native")
        assert torch.equal(got, indexed_logits(hidden, weight, ids, backend="native"))
        products = hidden.cpu().float() @ weight.cpu().float().T  # (N, V)
        host = ids.cpu()
        expected = products.gather(1, host.clamp(0, VOCAB - 1))
        assert_logits_close(got.cpu(), expected.masked_fill((host < 0) | (host >= VOCAB), -torch.inf))
