"""Decoder layers in one call: the compiled op against plain PyTorch, for every trait of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from vocabforge.ops.decoder_layers import ACTIVATIONS, WEIGHTS, decoder_layers

pytestmark = pytest.mark.usefixtures("native_cpu")

PLAIN = {"attention_norm", "qkv", "o", "mlp_norm", "gate_up", "down"}
TRAITS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"has": {"qkv_bias", "o_bias", "gate_up_bias", "down_bias"}},
    "norms of heads": {"has": {"qk_norm"}},
    "norms of all heads, norms after the blocks": {
        "has": {"q_norm", "k_norm", "attention_out_norm", "mlp_out_norm"},
        "lacks": {"attention_norm", "mlp_norm"},
    },
    "norms within": {"has": {"attention_sub_norm", "mlp_sub_norm"}, "activation": "relu2"},
    "one plus": {"one_plus": True, "has": {"attention_sub_norm"}, "activation": "gelu_tanh"},
    "sinks": {"has": {"sinks"}},
    "windows, no rotation": {"kinds": [1, 2, 3]},
    "partners": {"partners": True, "residual_scale": 0.3},
    "fed": {"fed": 40, "no_norm": True},
    "joined": {"fed": 48, "join": True},
    "joined, normed residual": {"fed": 48, "join": True, "normed_residual": True},
    "odd sizes": {"hidden": 29, "inner": 13, "size": 6},
}


def arguments(
    batch: int,
    length: int,
    *,
    has: set[str] = frozenset(),
    lacks: set[str] = frozenset(),
    kinds: list[int] | None = None,
    partners: bool = False,
    fed: int | None = None,
    join: bool = False,
    no_norm: bool = False,
    hidden: int = 48,
    inner: int = 40,
    size: int = 16,
    heads: int = 6,
    kv_heads: int = 2,
    seed: int = 0,
    **more: Any,
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=random) * scale

    kinds = kinds or [0, 0, 0]
    q, kv = heads * size, kv_heads * size
    shapes: dict[str, tuple[int, ...]] = {
        "qkv": (q + 2 * kv, hidden), "qkv_bias": (q + 2 * kv,), "q_norm": (q,), "k_norm": (kv,),
        "qk_norm": (heads + kv_heads, size), "sinks": (heads,), "attention_sub_norm": (q,), "o": (hidden, q),
        "gate_up": (2 * inner, hidden), "gate_up_bias": (2 * inner,), "mlp_sub_norm": (inner,), "down": (hidden, inner),
    }  # fmt: skip
    weights = []
    for layer in range(len(kinds)):
        for name in WEIGHTS:
            shape = shapes.get(name, (hidden,))
            if name == "qkv" and layer == 0 and fed is not None:
                shape = (shape[0], 2 * fed if join else fed)
            there = name in (PLAIN | set(has)) - set(lacks)
            weights.append(some(*shape, scale=0.3) if there else torch.empty(0))
    view, capacity = 21, 24
    seen = torch.rand(batch, length, view, generator=random) < 0.6
    seen[..., 0] = True
    near = seen & (torch.rand(batch, length, view, generator=random) < 0.5)
    slots = torch.stack([torch.randperm(view, generator=random)[:length] for _ in range(batch)])
    return {
        "x": some(batch * length, hidden),
        "fed": None if fed is None else some(batch * length, fed),
        "joined": [some(hidden), some(hidden)] if join else [],
        "weights": weights,
        "norm": None if no_norm else some(hidden),
        "angles": [some(batch, length, size) for _ in range(4)],
        "seen": seen,
        "near_seen": near,
        "view": view,
        "partners": torch.randperm(size, generator=random) if partners else None,
        "keys": some(len(kinds), batch, kv_heads, capacity, size),
        "values": some(len(kinds), batch, kv_heads, capacity, size),
        "slots": slots,
        "kinds": kinds,
        "aux": [2, 0],
        "heads": heads,
        "eps": 1e-5,
        "scale": size**-0.5,
        **more,
    }


def run(backend: str, given: dict[str, Any]) -> tuple[Tensor, ...]:
    keys, values = given["keys"].clone(), given["values"].clone()
    hidden, aux = decoder_layers(**(given | {"keys": keys, "values": values}), backend=backend)
    return hidden, aux, keys, values


@pytest.mark.parametrize("name", TRAITS)
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 4), (3, 2), (2, 7)])
def test_the_compiled_op_is_the_reference(name: str, batch: int, length: int) -> None:
    given = arguments(batch, length, **TRAITS[name])
    for found, expected in zip(run("native", given), run("reference", given)):
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    given = arguments(1, 3, activation=activation)
    for found, expected in zip(run("native", given), run("reference", given)):
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


def test_a_row_does_not_depend_on_the_others() -> None:
    """Verifying a token with others gives the numbers, bit for bit, of verifying it alone."""
    given = arguments(1, 9)
    causal = torch.arange(21) <= torch.arange(12, 21)[:, None]
    given |= {"seen": causal, "near_seen": causal, "slots": torch.arange(12, 21), "aux": []}
    together, _, keys, values = run("native", given)
    for row in range(9):
        alone = given | {
            "x": given["x"][row : row + 1],
            "angles": [one[:, row : row + 1].contiguous() for one in given["angles"]],
            "seen": None,
            "near_seen": None,
            "view": 13 + row,
            "slots": torch.tensor([12 + row]),
            "keys": keys,
            "values": values,
        }
        assert torch.equal(run("native", alone)[0], together[row : row + 1])


def test_what_is_not_seen_may_be_anything() -> None:
    given = arguments(1, 2)
    seen = given["seen"]
    hidden = ~(seen.any(1)[0]) & ~(torch.arange(21) == given["slots"][0, :, None]).any(0)
    expected = run("native", given)[0]
    given["near_seen"] = seen
    for name in ("keys", "values"):
        given[name][:, :, :, :21][:, :, :, hidden] = torch.nan
    assert hidden.any()
    assert torch.equal(run("native", given)[0], expected)


def test_a_token_that_sees_nothing_gives_finite_numbers() -> None:
    given = arguments(1, 3)
    given["seen"][:, 1] = False
    for found, expected in zip(run("native", given), run("reference", given)):
        assert found.isfinite().all()
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("rows", [1, 2, 4, 9])
def test_matrices_may_be_in_bf16(rows: int) -> None:
    """They are widened as they are read: the bits of fp32 matrices with the same numbers."""
    given = arguments(1, rows)
    matrices = [WEIGHTS.index(name) for name in ("qkv", "o", "gate_up", "down")]
    halves = [
        weight.bfloat16() if index % len(WEIGHTS) in matrices else weight
        for index, weight in enumerate(given["weights"])
    ]
    found = run("native", given | {"weights": halves})
    for one, other in zip(found, run("native", given | {"weights": [weight.float() for weight in halves]})):
        assert torch.equal(one, other)
    for one, other in zip(found, run("reference", given | {"weights": halves})):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_threads_change_nothing(set_threads: Callable[[int], None]) -> None:
    given = arguments(2, 4, hidden=768, inner=1024)
    set_threads(1)
    alone = run("native", given)
    set_threads(2)
    shared = run("native", given)
    assert all(torch.equal(one, other) for one, other in zip(alone, shared))


def test_wrong_tensors_are_refused() -> None:
    from vocabforge.core.errors import UsageError

    given = arguments(1, 2)
    for change in (
        {"slots": torch.tensor([[0, 24]])},
        {"weights": given["weights"][1:]},
        {
            "weights": [
                weight.bfloat16() if weight is given["weights"][1] else weight for weight in given["weights"]
            ]
        },
        {"seen": given["seen"][:, :1]},
    ):
        with pytest.raises(UsageError, match="does not take these tensors"):
            run("native", given | change)
