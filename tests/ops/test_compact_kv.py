"""Compaction of a key/value cache: sources and destinations may overlap, nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from tests.ops.parity import FLOATS, moved, parity
from vocabforge.ops.compact_kv import compact_kv

# layers, rows, heads, slots, head dim, pairs
SHAPES = [
    (1, 1, 1, 4, 8, 1),
    (3, 2, 2, 40, 16, 7),
    (2, 1, 3, 70, 96, 60),
    (1, 2, 1, 300, 256, 256),
    (2, 3, 2, 33, 64, 11),
]


def slots(rows: int, size: int, pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sources ascending, as accepted nodes are; destinations a run that overlaps them, the first pair in place."""
    stream = torch.Generator().manual_seed(seed)
    source = torch.stack([torch.randperm(size, generator=stream)[:pairs].sort().values for _ in range(rows)])
    first = source[:, :1].clamp(max=size - pairs)
    destination = first + torch.arange(pairs)
    return source, destination[:, torch.randperm(pairs, generator=stream)]


def caches(shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    layers, rows, heads, size, dim, pairs = shape
    stream = torch.Generator().manual_seed(size)
    keys, values = (torch.randn(layers, rows, heads, size, dim, generator=stream).to(dtype) for _ in range(2))
    return moved((keys, values, *slots(rows, size, pairs, seed=dim)), device)


def agree(shape: tuple[int, ...], dtype: torch.dtype, backend: str, device: str) -> None:
    keys, values, source, destination = caches(shape, dtype, device)
    copies = keys.clone(), values.clone()
    compact_kv(keys, values, source, destination, backend=backend)
    compact_kv(*copies, source, destination, backend="reference")
    assert torch.equal(keys, copies[0])
    assert torch.equal(values, copies[1])


def test_the_reference_moves_slots() -> None:
    keys, values, source, destination = caches((2, 2, 2, 12, 8, 5), torch.float32)
    expected = [keys.clone(), values.clone()]
    for cache, before in zip(expected, (keys.clone(), values.clone())):
        for row in range(2):
            for taken, put in zip(source[row].tolist(), destination[row].tolist()):
                cache[:, row, :, put] = before[:, row, :, taken]
    compact_kv(keys, values, source, destination)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])
    assert (source != destination).any()


def test_one_row_of_a_larger_cache(emulated: Callable[[str], None], native_cpu: None) -> None:
    emulated("compact_kv")
    for backend in ("emulated", "native"):
        keys, values, source, destination = caches((3, 4, 2, 20, 16, 6), torch.bfloat16)
        before, row = keys.clone(), slice(2, 3)
        compact_kv(keys[:, row], values[:, row], source[row], destination[row], backend=backend)
        compact_kv(before[:, row], values.clone()[:, row], source[row], destination[row], backend="reference")
        assert torch.equal(keys, before)


TestParity = parity(
    "compact_kv",
    agree,
    emulated=product(SHAPES, FLOATS[:2]),
    cpu=product(SHAPES, [torch.float16]),
    cuda=product([*SHAPES, (32, 1, 8, 2000, 128, 7)], FLOATS),
)
