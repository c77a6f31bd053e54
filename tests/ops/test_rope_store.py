"""Head norms, rotation and the cache: reference, the layers' own, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.parity import FLOATS, HALVES, assert_same, moved, parity, steady
from vocabforge.models.kv_cache import KVCache
from vocabforge.models.lean.layers import rms_norm
from vocabforge.models.rope import RopeSettings, apply_rope, inverse_frequencies, rope_at
from vocabforge.ops.rope_store import rope_store

# Two steps of the dtype's last bit: a norm that is rounded the other way is turned with its partner.
STEP = {torch.bfloat16: 2**-6, torch.float16: 2**-9, torch.float32: 2**-20}
LAYERS, CAPACITY = 2, 37


def inputs(
    batch: int, length: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, *,
    norm: bool = True, angles: torch.dtype | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Random inputs; the caches are the second of two layers, full of noise that must stay."""
    stream = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=stream).to(dtype)

    positions = torch.randint(0, 5000, (batch, length), generator=stream)
    cos, sin = rope_at(positions, inverse_frequencies(RopeSettings(), dim), angles or dtype)
    order = torch.rand((batch, CAPACITY), generator=stream).argsort(1)
    shape = (LAYERS, batch, kv_heads, CAPACITY, dim)
    return {
        "qkv": noise(batch, length, (heads + 2 * kv_heads) * dim),
        "cos": cos,
        "sin": sin,
        "keys": noise(*shape)[1],
        "values": noise(*shape)[1],
        "slots": order[:, :length].contiguous(),
        "heads": heads,
        "qk_norm": noise(heads + kv_heads, dim) if norm else None,
        "eps": 0.25,  # large enough to be seen
    }


def run(backend: str, given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and the caches after the op; the given ones stay as they are."""
    caches = [torch.stack((torch.zeros_like(given[name]), given[name]))[1] for name in ("keys", "values")]
    q = rope_store(**{**given, "keys": caches[0], "values": caches[1]}, backend=backend)
    return q, caches[0], caches[1]


def compare(backend: str, given: dict[str, Any]) -> None:
    step = STEP[given["qkv"].dtype]
    got, expected = run(backend, given), run("reference", given)
    for one, other in zip(got[:2], expected[:2]):
        torch.testing.assert_close(one, other, rtol=step, atol=8 * step)
    assert torch.equal(got[2], expected[2])
    untouched = torch.ones(len(given["slots"]), CAPACITY, dtype=torch.bool, device=given["slots"].device)
    untouched.scatter_(1, given["slots"], False)
    for cache, name in ((got[1], "keys"), (got[2], "values")):
        assert torch.equal(cache.transpose(1, 2)[untouched], given[name].transpose(1, 2)[untouched])


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_reference_is_what_the_layers_do(dtype: torch.dtype, norm: bool) -> None:
    batch, length, heads, kv_heads, dim = 3, 4, 4, 2, 24
    given = inputs(batch, length, heads, kv_heads, dim, dtype, norm=norm)
    q, keys, values = run("reference", given)

    cache = KVCache(1, batch, kv_heads, CAPACITY, dim, dtype)
    cache.k[0, :, :, :-1], cache.v[0, :, :, :-1] = given["keys"], given["values"]
    every = given["qkv"].view(batch, length, -1, dim)
    qk, v = every.split((heads + kv_heads, kv_heads), 2)
    if norm:
        qk = rms_norm(qk, given["qk_norm"], torch.tensor(given["eps"]))
    turned = apply_rope(qk, given["cos"][:, :, None], given["sin"][:, :, None]).transpose(1, 2)
    cache.write(0, turned[:, heads:], v.transpose(1, 2), given["slots"])
    exact = {"rtol": 0.0, "atol": 0.0} if dtype in HALVES else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(q, turned[:, :heads].transpose(1, 2), **exact)
    torch.testing.assert_close(keys, cache.k[0, :, :, :-1], **exact)
    assert torch.equal(values, cache.v[0, :, :, :-1])


def test_emulated_kernel_gives_exact_bits_without_a_norm(emulated: Callable[[str], None]) -> None:
    """Products of two halves are exact in fp32, so nothing may differ."""
    emulated("rope_store")
    for dtype in HALVES:
        given = inputs(2, 5, 4, 2, 64, dtype, norm=False)
        assert_same(run("emulated", given), run("reference", given))


def test_emulated_kernel_takes_views(emulated: Callable[[str], None]) -> None:
    """Angles shared by all rows or cut from wider ones; queries, keys and values cut from a wider tensor."""
    emulated("rope_store")
    given = inputs(3, 4, 2, 2, 32, torch.bfloat16)
    shared = {name: given[name][:1].expand(3, -1, -1) for name in ("cos", "sin")}
    compare("emulated", {**given, **shared})
    cut = {name: torch.cat((given[name], given[name]), -1)[..., 1:33] for name in ("cos", "sin")}
    compare("emulated", {**given, **cut})
    wide = torch.cat((given["qkv"], given["qkv"]), -1)[..., : given["qkv"].shape[-1]]
    compare("emulated", {**given, "qkv": wide, "slots": given["slots"].t().contiguous().t()})


@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_slots_that_do_not_exist_are_not_written(
    request: pytest.FixtureRequest, emulated: Callable[[str], None], backend: str
) -> None:
    emulated("rope_store")
    if backend == "native":
        request.getfixturevalue("native_cpu")
    given = inputs(2, 3, 2, 2, 16, torch.bfloat16)
    q, keys, values = run("reference", given)
    slots = given["slots"].clone()
    # One before row 1 is the end of row 0, one behind row 0's first head is its second: both are looked at.
    slots[1, 0], slots[0, 1], slots[1, 2] = -1, CAPACITY, 2**40
    got_q, got_keys, got_values = run(backend, {**given, "slots": slots})
    torch.testing.assert_close(got_q, q, rtol=STEP[torch.bfloat16], atol=0.1)
    for got, expected, name in ((got_keys, keys, "keys"), (got_values, values, "values")):
        for row, place in ((0, 1), (1, 0), (1, 2)):
            slot = int(given["slots"][row, place])
            expected[row, :, slot] = given[name][row, :, slot]
        torch.testing.assert_close(got, expected, rtol=STEP[torch.bfloat16], atol=0.1)


def agree(
    sizes: tuple[int, ...], dtype: torch.dtype, norm: bool, wide: bool, backend: str, device: str
) -> None:
    """``wide``: angles in fp32. The result is the same twice."""
    angles = torch.float32 if wide else dtype
    given = moved(inputs(*sizes, dtype, norm=norm, angles=angles, seed=sizes[-1]), device)
    compare(backend, given)
    steady(lambda: run(backend, given))


# Batch, length, heads, kv heads, head size.
SIZES = [
    (1, 1, 1, 1, 16),
    (2, 3, 4, 2, 64),
    (1, 5, 8, 1, 80),
    (3, 2, 3, 3, 96),
    (2, 7, 4, 2, 128),
    (1, 3, 2, 1, 192),
]
SIZES += [(2, 2, 2, 1, 256), (1, 1, 2, 2, 512)]
BOTH = [False, True]
LARGE = product([(1, 1, 8, 2), (4, 10, 8, 2), (2, 30, 8, 2)], [64, 80, 96, 128, 192, 256])
TestParity = parity(
    "rope_store",
    agree,
    emulated=product(SIZES, HALVES, BOTH, BOTH),
    cpu=product([(2, 3, 4, 2, 2), (2, 3, 4, 2, 24), (2, 3, 4, 2, 64)], FLOATS, BOTH, BOTH),
    cuda=product([(*sizes, dim) for sizes, dim in LARGE], HALVES, BOTH, BOTH),
)
