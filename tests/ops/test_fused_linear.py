"""A layer's products with all beside them: reference, CPU implementation and emulated kernel agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.core.errors import UsageError
from vocabforge.models.rope import RopeSettings, inverse_frequencies, rope_at
from vocabforge.ops.add_rms_norm import add_rms_norm
from vocabforge.ops.fused_linear import fused_linear, fused_qkv
from vocabforge.ops.rope_store import rope_store
from vocabforge.ops.silu_mul import silu_mul

HALVES = [torch.bfloat16, torch.float16]
# N, d, rows of the weight: ends within tiles of every height, and of the inner dimension.
SIZES = [(1, 8, 2), (1, 264, 38), (9, 136, 66), (17, 72, 150), (60, 264, 34), (64, 40, 134)]
CAPACITY = 70


def linear_inputs(n: int, d: int, rows: int, dtype: torch.dtype, form: str) -> dict[str, Any]:
    """``form``: names of the parts beside the product."""
    random = torch.Generator().manual_seed(n + 7 * d + rows)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(dtype)

    return {
        "x": 3 * noise(n, d),
        "weight": noise(rows, d) * d**-0.5,
        "bias": noise(rows) if "bias" in form else None,
        "norm": 1 + 0.3 * noise(d) if "norm" in form else None,
        "eps": 0.25,  # large enough to be seen
        "residual": noise(n, rows) if "residual" in form else None,
        "gated": "gated" in form,
    }


def qkv_inputs(
    batch: int, length: int, heads: tuple[int, int, int], d: int, dtype: torch.dtype, form: str
) -> dict[str, Any]:
    """``heads``: of queries, of keys, and their dimension."""
    count, kv, dim = heads
    random = torch.Generator().manual_seed(batch + length + d)
    linear = linear_inputs(batch * length, d, (count + 2 * kv) * dim, dtype, form)
    positions = torch.randint(0, 5000, (batch, length), generator=random)
    cos, sin = rope_at(
        positions, inverse_frequencies(RopeSettings(), dim), torch.float32 if "wide" in form else dtype
    )
    caches = torch.randn((2, 2, batch, kv, CAPACITY, dim), generator=random).to(dtype)
    return {
        **{name: linear[name] for name in ("x", "weight", "bias", "norm", "eps")},
        "cos": cos,
        "sin": sin,
        "keys": caches[0, 1],
        "values": caches[1, 1],
        "slots": torch.rand((batch, CAPACITY), generator=random).argsort(1)[:, :length].contiguous(),
        "heads": count,
    }


def whole(given: dict[str, Any]) -> dict[str, Any]:
    """Small whole numbers, whose products and sums are exact in any order."""
    random = torch.Generator().manual_seed(3)
    small = {
        name: torch.randint(-3, 4, given[name].shape, generator=random).to(given[name].dtype)
        for name in ("x", "weight")
    }
    return {**given, **small}


def qkv(backend: str, given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, and the caches after the op; the given ones stay as they are."""
    caches = {name: torch.stack((given[name], given[name]))[1] for name in ("keys", "values")}
    return fused_qkv(**{**given, **caches}, backend=backend), caches["keys"], caches["values"]


def exact(given: dict[str, Any]) -> Tensor:
    """What no rounding would give."""
    x, weight, norm, bias, residual = (
        None if given[name] is None else given[name].double()
        for name in ("x", "weight", "norm", "bias", "residual")
    )
    assert x is not None
    assert weight is not None
    if norm is not None:
        x = x * (x.square().mean(-1, keepdim=True) + given["eps"]).rsqrt() * norm
    out = F.linear(x, weight, bias)
    if given["gated"]:
        gate, up = out.chunk(2, -1)
        out = F.silu(gate) * up
    return out if residual is None else out + residual


def error(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


def close(got: Tensor, expected: Tensor, normed: bool = False) -> None:
    """Within the last bit of rounded sums; a norm is rounded otherwise before them."""
    assert got.dtype == expected.dtype
    step = max(torch.finfo(got.dtype).eps, 2**-20)
    torch.testing.assert_close(got, expected, rtol=2 * step, atol=(8 if normed else 2) * step)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_reference_is_the_ops_that_it_replaces(dtype: torch.dtype) -> None:
    given = linear_inputs(5, 24, 12, dtype, "bias norm residual")
    x, weight, bias, norm, eps, residual = (
        given[name] for name in ("x", "weight", "bias", "norm", "eps", "residual")
    )
    normed, total = add_rms_norm(x, residual[:, :1].expand(-1, 24), norm, eps)
    products = F.linear(normed, weight, bias)
    options: dict[str, Any] = {"norm": norm, "eps": eps}
    assert torch.equal(fused_linear(total, weight, bias, **options), products)
    assert torch.equal(fused_linear(total, weight, bias, **options, residual=residual), products + residual)
    assert torch.equal(fused_linear(total, weight, bias, **options, gated=True), silu_mul(products))

    given = qkv_inputs(2, 3, (4, 2, 8), 24, dtype, "bias norm")
    for qk_norm in (None, torch.rand(6, 8).to(dtype)):
        caches = [{name: given[name].clone() for name in ("keys", "values")} for _ in range(2)]
        q = fused_qkv(**{**given, **caches[0]}, qk_norm=qk_norm)
        normed = add_rms_norm(given["x"], None, given["norm"], eps)[0]
        rows = F.linear(normed, given["weight"], given["bias"]).view(2, 3, -1)
        rest = {name: given[name] for name in ("cos", "sin", "slots", "heads", "eps")}
        assert torch.equal(q, rope_store(rows, **caches[1], **rest, qk_norm=qk_norm))
        for name in ("keys", "values"):
            assert torch.equal(caches[0][name], caches[1][name])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("n", "d", "rows"), SIZES)
def test_emulated_products_are_exact(
    emulated: Callable[[str], None], schedule: int, n: int, d: int, rows: int, dtype: torch.dtype
) -> None:
    """Without a norm every rounding is the reference's."""
    emulated("fused_linear")
    for form in ("", "residual", "bias residual"):
        given = whole(linear_inputs(n, d, rows, dtype, form))
        assert torch.equal(
            fused_linear(**given, backend="emulated"), fused_linear(**given, backend="reference")
        )
    given = whole(linear_inputs(n, d, rows, dtype, "bias gated"))
    given["weight"] = given["weight"] / 16
    close(fused_linear(**given, backend="emulated"), fused_linear(**given, backend="reference"))


@pytest.mark.parametrize(("n", "d", "rows"), SIZES)
def test_emulated_norm_is_as_exact_as_the_reference(
    emulated: Callable[[str], None], schedule: int, n: int, d: int, rows: int
) -> None:
    emulated("fused_linear")
    for form in ("norm", "norm residual bias", "norm gated"):
        given = linear_inputs(n, d, rows, torch.bfloat16, form)
        got, expected = fused_linear(**given, backend="emulated"), fused_linear(**given, backend="reference")
        close(got, expected, normed=True)
        if rows > 30:
            assert error(got, exact(given)) < 1.1 * error(expected, exact(given))


@pytest.mark.parametrize("multiprocessors", ["1", "3", "100"])
def test_emulated_tiles_of_every_height(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, multiprocessors: str
) -> None:
    """Few multiprocessors: tall tiles, several a block. Wide rows do not stay in shared memory."""
    emulated("fused_linear")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", multiprocessors)
    for n, d, rows in ((3, 264, 300), (12, 2904, 90), (24, 1544, 70), (40, 136, 300)):
        for form in ("norm residual", "norm gated bias"):
            given = linear_inputs(n, d, rows, torch.bfloat16, form)
            got = fused_linear(**given, backend="emulated")
            close(got, fused_linear(**given, backend="reference"), normed=True)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("batch", "length", "heads", "d", "form"),
    [(1, 1, (32, 8, 16), 136, "bias"), (3, 3, (4, 2, 24), 40, "wide"), (1, 17, (2, 1, 64), 72, ""),
     (2, 30, (1, 1, 34), 24, "bias wide")],
)  # fmt: skip
def test_emulated_queries_keys_and_values(
    emulated: Callable[[str], None], schedule: int, batch: int, length: int, heads: tuple[int, int, int], d: int,
    form: str, dtype: torch.dtype,
) -> None:  # fmt: skip
    emulated("fused_linear")
    exactly = whole(qkv_inputs(batch, length, heads, d, dtype, form))
    for got, expected in zip(qkv("emulated", exactly), qkv("reference", exactly)):
        if "wide" in form:  # products with angles of fp32 are no longer exact
            close(got, expected)
        else:
            assert torch.equal(got, expected)
    given = qkv_inputs(batch, length, heads, d, dtype, form + " norm")
    for got, expected in zip(qkv("emulated", given), qkv("reference", given)):
        close(got, expected, normed=True)


@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_slots_that_do_not_exist_are_not_written(
    request: pytest.FixtureRequest, emulated: Callable[[str], None], backend: str
) -> None:
    emulated("fused_linear")
    if backend == "native":
        request.getfixturevalue("native_cpu")
    given = whole(qkv_inputs(2, 3, (2, 2, 16), 24, torch.bfloat16, ""))
    slots = given["slots"].clone()
    # One before row 1 is the end of row 0, one behind row 0's first head is its second: both are looked at.
    slots[1, 0], slots[0, 1], slots[1, 2] = -1, CAPACITY, 2**40
    expected = qkv("reference", given)
    for got, other, name in zip(qkv(backend, {**given, "slots": slots}), expected, ("q", "keys", "values")):
        for row, place in ((0, 1), (1, 0), (1, 2)) if name != "q" else ():
            slot = int(given["slots"][row, place])
            other[row, :, slot] = given[name][row, :, slot]
        assert torch.equal(got, other)


def test_emulated_norms_of_heads_take_a_second_op(emulated: Callable[[str], None]) -> None:
    emulated("fused_linear")
    given = {
        **qkv_inputs(1, 5, (4, 2, 16), 40, torch.bfloat16, "norm"),
        "qk_norm": torch.rand(6, 16).bfloat16(),
    }
    for got, expected in zip(qkv("emulated", given), qkv("reference", given)):
        close(got, expected, normed=True)


def test_a_row_that_is_no_number_spoils_no_other(emulated: Callable[[str], None]) -> None:
    emulated("fused_linear")
    given = linear_inputs(20, 72, 40, torch.bfloat16, "norm residual")
    spoilt = given["x"].clone()
    spoilt[3], spoilt[17, 5] = float("nan"), float("inf")
    got = fused_linear(**{**given, "x": spoilt}, backend="emulated")
    rest = [row for row in range(20) if row not in (3, 17)]
    assert torch.equal(got[rest], fused_linear(**given, backend="emulated")[rest])
    assert got[[3, 17]].isnan().all()


def test_emulated_kernel_takes_views(emulated: Callable[[str], None]) -> None:
    """Rows, norms and angles cut from wider tensors; angles that all rows share."""
    emulated("fused_linear")
    given = qkv_inputs(3, 4, (2, 2, 32), 40, torch.bfloat16, "norm bias")
    expected = qkv("emulated", given)
    wide = {name: torch.cat((given[name], given[name]), -1)[..., 1 : 1 + given[name].shape[-1]]
            for name in ("x", "norm", "bias", "cos", "sin")}  # fmt: skip
    moved = {name: given[name].roll(-1, -1) for name in wide}
    for got, other in zip(qkv("emulated", {**given, **wide}), qkv("emulated", {**given, **moved})):
        assert torch.equal(got, other)
    shared = {name: given[name][:1].expand(3, -1, -1) for name in ("cos", "sin")}
    assert not torch.equal(qkv("emulated", {**given, **shared})[0], expected[0])
    assert torch.equal(qkv("emulated", {**given, **shared})[0][0], expected[0][0])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_cpu_implementation_equals_the_reference(native_cpu: None, dtype: torch.dtype) -> None:
    for form in ("", "bias residual", "norm", "norm residual", "norm gated bias"):
        given = linear_inputs(5, 40, 18, dtype, form)
        close(
            fused_linear(**given, backend="native"),
            fused_linear(**given, backend="reference"),
            "norm" in form,
        )
    for form in ("", "bias norm", "wide"):
        given = qkv_inputs(2, 3, (4, 2, 24), 40, dtype, form)
        for got, expected in zip(qkv("native", given), qkv("reference", given)):
            close(got, expected, normed=True)


def test_sizes_that_the_kernel_does_not_take_run_in_pytorch() -> None:
    for n, d in ((65, 16), (2, 12)):
        given = linear_inputs(n, d, 10, torch.bfloat16, "norm")
        assert torch.equal(fused_linear(**given), fused_linear(**given, backend="reference"))
        with pytest.raises(UsageError, match="does not take these sizes"):
            fused_linear(**given, backend="emulated")


def test_wrong_inputs_are_refused() -> None:
    given = linear_inputs(3, 16, 7, torch.bfloat16, "norm bias residual")
    for change, said in (
        ({"weight": given["weight"][:, :8]}, "weight has another shape"),
        ({"norm": given["norm"].float()}, "norm has another dtype"),
        ({"bias": given["bias"][:3]}, "bias has another shape"),
        ({"residual": given["residual"][:2]}, "residual has another shape"),
        ({"gated": True, "residual": None}, "rows: even"),
        ({"weight": given["weight"][:6], "bias": None, "gated": True}, "residual has another shape"),
        ({"x": given["x"].int()}, "x has another dtype"),
    ):
        with pytest.raises(UsageError, match=said):
            fused_linear(**{**given, **change})
    rotated = qkv_inputs(2, 3, (4, 2, 8), 24, torch.bfloat16, "")
    for change, said in (
        ({"slots": rotated["slots"][:1]}, "rows less that of slots"),
        ({"heads": 3}, "shape"),
        ({"cos": rotated["cos"][:, :, :4]}, "cos has another shape"),
    ):
        with pytest.raises(UsageError, match=said):
            fused_qkv(**{**rotated, **change})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("n", "d", "rows"), [(1, 4096, 4096), (9, 1032, 520), (17, 4096, 1000), (60, 4096, 1536)]
)
def test_cuda_kernel_equals_the_reference(
    native_cuda: None, n: int, d: int, rows: int, dtype: torch.dtype
) -> None:
    for form in ("", "residual", "norm", "norm gated"):
        given = linear_inputs(n, d, rows, dtype, form)
        ours: dict[str, Any] = {
            name: one.cuda() if isinstance(one, Tensor) else one for name, one in given.items()
        }
        got = fused_linear(**ours, backend="native")
        assert torch.equal(got, fused_linear(**ours, backend="native"))
        assert error(got.cpu(), exact(given)) < 2 * torch.finfo(dtype).eps


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("form", ["", "bias norm", "wide norm"])
def test_cuda_kernel_stores_as_the_reference(native_cuda: None, form: str, dtype: torch.dtype) -> None:
    for batch, length in ((1, 1), (2, 5), (1, 60)):
        given = qkv_inputs(batch, length, (32, 8, 128), 1032, dtype, form)
        given = {name: one.cuda() if isinstance(one, Tensor) else one for name, one in given.items()}
        for got, expected in zip(qkv("native", given), qkv("reference", given)):
            close(got, expected, normed=True)
