"""Benchmarks of the ops on draft trees: attention, expansion, selection, verification, moving the accepted path."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vocabforge.ops.compact_kv import compact_kv, compact_kv_reference
from vocabforge.ops.tree_attention import tree_attention, tree_attention_reference, visible_slots
from vocabforge.ops.tree_expand import tree_expand, tree_expand_reference
from vocabforge.ops.tree_select import tree_select, tree_select_reference
from vocabforge.ops.tree_verify import tree_verify, tree_verify_reference
from vocabforge.ops.tree_verify_point import tree_verify_point, tree_verify_point_reference
from vocabforge.ops.trees import ancestors_of, bits_of

from .types import Inputs, ModelShape, OpCase, case_of_op, integers, normal, uniform

PREFIXES = (1024, 4096, 32768)
ROUND = 128  # cache capacities are multiples of this


def attention_cases(shape: ModelShape) -> list[OpCase]:
    """Return cases with ``rows`` queries at three prefixes: 1 is plain decoding, 10 a drafting round, 60 a tree."""
    return [_attention(shape, prefix) for prefix in ((shape.prefix,) if shape.small else PREFIXES)]


def _attention(shape: ModelShape, prefix: int) -> OpCase:
    count, heads, kv_heads, size = shape.rows, shape.heads, shape.kv_heads, shape.head_dim
    capacity = -(-(prefix + count) // ROUND) * ROUND
    slots = prefix + count
    names = ("q", "keys", "values", "lengths", "words")

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        lengths = torch.full((1,), prefix, dtype=torch.int64, device=random.device)
        # Each node attends to itself and some earlier nodes.
        seen = (uniform((count, count), random) < 0.2).tril()
        words = bits_of(seen | torch.eye(count, dtype=torch.bool, device=random.device))[None]
        return {
            "q": normal((1, count, heads, size), random, dtype),
            "keys": normal((1, kv_heads, capacity, size), random, dtype),
            "values": normal((1, kv_heads, capacity, size), random, dtype),
            "lengths": lengths,
            "words": words,
            "mask": visible_slots(lengths, words, capacity, None, 0)[:, None],
        }

    def masked(inputs: Inputs) -> Tensor:
        q, keys, values = inputs["q"].transpose(1, 2), inputs["keys"], inputs["values"]
        return F.scaled_dot_product_attention(q, keys, values, inputs["mask"], enable_gqa=True)

    return OpCase(
        name=f"tree_attention T={count} prefix={prefix} Hq={heads} Hkv={kv_heads} D={size}",
        make=make,
        run=lambda inputs, backend: tree_attention(*(inputs[name] for name in names), backend=backend),
        reference=lambda inputs: tree_attention_reference(
            **{name: inputs[name] for name in names}, positions=None, window=0, scale=size**-0.5
        ),
        floor_bytes=2.0 * size * (2 * kv_heads * slots + 2 * count * heads) + 8.0 * (count + 1),
        floor_flops=4.0 * count * heads * size * slots,
        plain=masked,
    )


def expand_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of a round: the children of ``topk`` nodes."""
    k = shape.topk
    case = case_of_op(
        tree_expand,
        tree_expand_reference,
        {"keep": k, "first": k, "slot": k},
        name=f"W={k} k={k}",
        make=lambda random, dtype: {
            "scores": uniform((1, k), random).log(),
            "logprobs": uniform((1, k, k), random).log(),
            "ids": integers(shape.vocab, (1, k, k), random),
            "above": integers(shape.vocab, (1, k, 1), random),
        },
        floor_bytes=12.0 * k + 16.0 * k * k + 36.0 * k,
        tolerance=0.0,
        dtypes=(torch.float32,),
    )
    return [case]


def select_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of one drafting's history."""
    k, nodes, levels = shape.topk, shape.nodes, shape.levels
    size = k + shape.depth * k**2

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        """Return scores (1, n) and expanded nodes (1, n / k) as a dynamic tree records them."""
        scores, frontier = uniform((1, k), random).log(), torch.arange(k, device=random.device)[None]
        parents = torch.full((1, 1), -1, device=random.device)
        for _ in range(shape.depth):
            first = scores.shape[1]
            added = (scores.gather(1, frontier)[:, :, None] + uniform((1, k, k), random).log()).flatten(1)
            scores, parents = torch.cat([scores, added], 1), torch.cat([parents, frontier], 1)
            frontier = first + added.sort(dim=1, descending=True, stable=True).indices[:, :k]
        roots, tokens = (integers(shape.vocab, wide, random) for wide in ((1,), (1, size)))
        return {"roots": roots, "tokens": tokens, "scores": scores, "parents": parents}

    case = case_of_op(
        tree_select,
        tree_select_reference,
        {"nodes": nodes, "levels": levels},
        name=f"n={size} N={nodes}",
        make=make,
        # Only the tokens and parents of kept nodes are read.
        floor_bytes=4.0 * size + 40.0 * nodes + nodes**2 + 8.0 * nodes * -(-nodes // 64),
        tolerance=0.0,
        dtypes=(torch.bfloat16,),
    )
    return [case]


def _tree(shape: ModelShape, random: torch.Generator) -> dict[str, Tensor]:
    """Return parents, depths and ancestors of a random tree (1, N); each parent is in the previous level."""
    device, levels, nodes = random.device, shape.levels, shape.nodes
    sizes = [1] + [(nodes - 1) // levels + (level < (nodes - 1) % levels) for level in range(levels)]
    parts, depths, first = [torch.zeros(1, dtype=torch.int64, device=device)], [0], 0
    for depth, size in enumerate(sizes[1:], 1):
        parts.append(first + integers(sizes[depth - 1], (size,), random).sort().values)
        first += sizes[depth - 1]
        depths += [depth] * size
    parents = torch.cat(parts)[None]
    ancestors = ancestors_of(parents, levels)
    return {"parents": parents, "depths": torch.tensor([depths], device=device), "ancestors": ancestors}


def verify_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of one tree, verified by the target's choices."""
    nodes, levels = shape.nodes, shape.levels
    case = case_of_op(
        tree_verify,
        tree_verify_reference,
        {"levels": levels, "alive": None},
        name=f"N={nodes}",
        make=lambda random, dtype: {
            "tokens": integers(2, (1, nodes), random),  # few values, for long paths
            "choices": integers(2, (1, nodes), random),
            "valid": torch.ones((1, nodes), dtype=torch.bool, device=random.device),
            **_tree(shape, random),
        },
        floor_bytes=25.0 * nodes + 8.0 * (2 * levels + 4),
        tolerance=0.0,
        dtypes=(torch.bfloat16,),
    )
    return [case]


def verify_point_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of one tree of point masses, verified at temperature 1."""
    nodes, levels, vocab = shape.nodes, shape.levels, shape.vocab

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        parents = _tree(shape, random)["parents"]
        noise = uniform((1, nodes, vocab), random)
        tokens = integers(vocab, (1, nodes), random)
        # Each child's token gets a third of a distribution's mass, for long paths.
        weights = noise.pow(4).scatter(2, tokens[:, None, :].expand(-1, nodes, -1), 0.0)
        weights[0, parents[0], tokens[0]] = 1.0
        streams = integers(2**31, (2, 1), random)
        draws = {"weights": weights, "seeds": streams[0], "draws": streams[1]}
        return {"tokens": tokens, "parents": parents, "alive": None, **draws}

    case = case_of_op(
        tree_verify_point,
        tree_verify_point_reference,
        {"levels": levels},
        name=f"N={nodes} V={vocab}",
        make=make,
        # Only the root's distribution must be read; which others are read depends on the draws.
        floor_bytes=4.0 * vocab + 16.0 * nodes + 8.0 * (2 * levels + 7),
        tolerance=0.0,
        dtypes=(torch.float32,),
    )
    return [case]


def compact_cases(shape: ModelShape) -> list[OpCase]:
    """Return the case of a full path of one tree, moved to the end of the prefix in all layers."""
    pairs, slots = shape.levels + 1, shape.prefix + shape.nodes
    size = (shape.layers, 1, shape.kv_heads, slots, shape.head_dim)

    def make(random: torch.Generator, dtype: torch.dtype) -> Inputs:
        path = uniform((1, shape.nodes - 1), random).argsort(1)[:, : pairs - 1]
        root = torch.zeros((1, 1), dtype=torch.int64, device=random.device)
        return {
            "keys": normal(size, random, dtype),
            "values": normal(size, random, dtype),
            "source": shape.prefix + torch.cat([root, 1 + path.sort(1).values], 1),
            "destination": shape.prefix + torch.arange(pairs, device=random.device)[None],
        }

    def floor(inputs: Inputs) -> float:
        """Count each moved slot as read and written once, in both caches."""
        moved = int((inputs["source"] != inputs["destination"]).sum())
        per_slot = shape.layers * shape.kv_heads * shape.head_dim * inputs["keys"].element_size()
        return 4.0 * moved * per_slot + 16.0 * pairs

    case = case_of_op(
        compact_kv,
        compact_kv_reference,
        name=f"L={shape.layers} P={pairs}",
        make=make,
        floor_bytes=floor,
        tolerance=0.0,
        mutates=("keys", "values"),
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
    )
    return [case]
