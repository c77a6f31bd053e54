"""Benchmark of ``tree_attention``: plain decoding, a draft step and a verified tree, at three prefixes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.tree_attention import tree_attention, tree_attention_reference, visible_slots
from vocabforge.ops.trees import bits_of

from .types import Inputs, LibraryWay, ModelShape, OpCase, normal, uniform

PREFIXES = (1024, 4096, 32768)
ROUND = 128  # cache capacities are multiples of this


def cases(shape: ModelShape) -> list[OpCase]:
    """Return cases with ``rows`` queries: 1 is plain decoding, 10 a drafting round, 60 a tree."""
    return [_case(shape, prefix) for prefix in ((shape.prefix,) if shape.small else PREFIXES)]


@cache
def _workspace(device: torch.device) -> Tensor:
    """Return FlashInfer's workspace for partial sums, in its recommended size; sequential calls share it."""
    return torch.empty(128 << 20, dtype=torch.uint8, device=device)


def _words(count: int, random: torch.Generator) -> Tensor:
    """Return (1, T, W) int64 masks: each node attends to itself and some earlier nodes."""
    noise = uniform((count, count), random)
    seen = (noise < 0.2).tril() | torch.eye(count, dtype=torch.bool, device=random.device)
    return bits_of(seen)[None]


def _case(shape: ModelShape, prefix: int) -> OpCase:
    count, heads, kv_heads, size = shape.rows, shape.heads, shape.kv_heads, shape.head_dim
    capacity = -(-(prefix + count) // ROUND) * ROUND
    scale = size**-0.5

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        lengths = torch.full((1,), prefix, dtype=torch.int64, device=random.device)
        words = _words(count, random)
        return {
            "q": normal((1, count, heads, size), random, dtype),
            "keys": normal((1, kv_heads, capacity, size), random, dtype),
            "values": normal((1, kv_heads, capacity, size), random, dtype),
            "lengths": lengths,
            "words": words,
            "mask": visible_slots(lengths, words, capacity, None, 0)[:, None],
        }

    def run(inputs: Inputs, backend: str) -> Tensor:
        return tree_attention(**{name: inputs[name] for name in names}, backend=backend)

    def reference(inputs: Inputs) -> Tensor:
        q, keys, values, lengths, words = (inputs[name] for name in names)
        return tree_attention_reference(q, keys, values, lengths, words, None, 0, scale)

    def masked(inputs: Inputs) -> Tensor:
        q, keys, values = inputs["q"].transpose(1, 2), inputs["keys"], inputs["values"]
        return F.scaled_dot_product_attention(q, keys, values, inputs["mask"], enable_gqa=True)

    def unmasked(inputs: Inputs) -> Tensor:
        """Attend to the prefix only, with its length known on the host: a lower bound for torch."""
        keys, values = inputs["keys"][:, :, :prefix], inputs["values"][:, :, :prefix]
        return F.scaled_dot_product_attention(inputs["q"].transpose(1, 2), keys, values, enable_gqa=True)

    def flashinfer(inputs: Inputs) -> Callable[[], Tensor]:
        """Return FlashInfer's call; the cache is one page, and plan() reads lengths on the host.

        A single query needs no mask.
        """
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        q, cache = inputs["q"][0], (inputs["keys"], inputs["values"])
        ends = [torch.tensor(pair, dtype=torch.int32, device=q.device) for pair in ([0, count], [0, 1], [0])]
        wrapper = BatchPrefillWithPagedKVCacheWrapper(_workspace(q.device), kv_layout="HND")
        mask = None if count == 1 else inputs["mask"][0, 0, :, :slots].reshape(-1)
        wrapper.plan(
            *ends, torch.full_like(ends[2], slots), heads, kv_heads, size, capacity,
            custom_mask=mask, sm_scale=scale, q_data_type=q.dtype,
        )  # fmt: skip
        return lambda: wrapper.run(q, cache)[None]

    names = ("q", "keys", "values", "lengths", "words")
    slots = prefix + count
    return OpCase(
        name=f"tree_attention T={count} prefix={prefix} Hq={heads} Hkv={kv_heads} D={size}",
        op="tree_attention",
        sizes={"B": 1, "T": count, "Hq": heads, "Hkv": kv_heads, "D": size, "prefix": prefix, "S": capacity},
        make=make,
        run=run,
        reference=reference,
        floor_bytes=2.0 * size * (2 * kv_heads * slots + 2 * count * heads) + 8.0 * (count + 1),
        floor_flops=4.0 * count * heads * size * slots,
        baselines={"torch, mask": masked, "torch, prefix alone": unmasked},
        libraries={"FlashInfer": LibraryWay("flashinfer", flashinfer, untimed="plan()")},
    )
