"""Tree attention: the reference equals torch's under masks; CPU implementation and emulated kernels equal it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.shares import by_default
from vocabforge.decode.positions import block_mask, near_mask
from vocabforge.decode.tree import DraftTree, build_tree
from vocabforge.models.kv_cache import near_rule
from vocabforge.ops.tree_attention import HEAD_SIZES, tree_attention

NAN = float("nan")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}


@dataclass(frozen=True)
class Sizes:
    """One problem; ``lengths`` None: random ones."""

    queries: int = 1
    heads: int = 4
    kv_heads: int = 1
    size: int = 64
    capacity: int = 200
    batch: int = 2
    words: int = 1
    window: int | None = None
    lengths: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.bfloat16
    seed: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def make(self, device: str = "cpu") -> tuple[list[Tensor], dict[str, Any]]:
        """Positional and keyword arguments; keys and values are views of a bigger cache, whose rest is NaN."""
        stream = torch.Generator().manual_seed(self.seed)
        q = torch.randn(self.batch, self.queries, self.heads, self.size, generator=stream)
        cache = torch.full((2, 2, self.batch, self.kv_heads, self.capacity + 8, self.size), NAN)
        cache[:, 1, :, :, 3:-5] = torch.randn(
            2, self.batch, self.kv_heads, self.capacity, self.size, generator=stream
        )
        cache = cache.to(self.dtype).to(device)
        if self.lengths is None:
            lengths = torch.randint(0, self.capacity, (self.batch,), generator=stream)
        else:
            lengths = torch.tensor(self.lengths)
        words = torch.randint(-(2**63), 2**63 - 1, (self.batch, self.queries, self.words), generator=stream)
        words[torch.rand(self.batch, self.queries, generator=stream) < 0.1] = 0
        options: dict[str, Any] = {"window": self.window, **self.extra}
        if self.window is not None:
            steps = torch.randint(0, 6, (self.batch, self.queries), generator=stream)
            options["positions"] = (lengths[:, None] + steps).to(device)
        given = [q.to(self.dtype).to(device), cache[0, 1, :, :, 3:-5], cache[1, 1, :, :, 3:-5]]
        return [*given, lengths.to(device), words.to(device)], options


def compare(sizes: Sizes, backend: str, device: str = "cpu") -> Tensor:
    """Run and hold against the reference in fp32, zeros where it has zeros."""
    given, options = sizes.make(device)
    got = tree_attention(*given, **options, backend=backend)
    assert got.dtype == sizes.dtype
    assert got.shape == given[0].shape
    wide = [one.float() if one.is_floating_point() else one for one in given]
    expected = tree_attention(*wide, **options, backend="reference")
    error = float((got.float() - expected).norm()) / max(float(expected.norm()), 1e-9)
    assert error < TOLERANCE[sizes.dtype], f"{error:.1e}: {sizes}"
    dark = (expected == 0).all(-1)
    assert torch.equal((got == 0).all(-1), dark)
    return got


def a_tree(batch: int, count: int, seed: int = 0) -> DraftTree:
    rand = random.Random(seed)
    parents = torch.tensor([[0] + [rand.randrange(i) for i in range(1, count)] for _ in range(batch)])
    return build_tree(torch.zeros_like(parents), parents, count)


@pytest.mark.parametrize("count", [1, 5, 60, 130])
def test_reference_equals_torch_under_the_masks_of_decoding(count: int) -> None:
    tree, committed, view = a_tree(2, count, seed=count), torch.tensor([37, 0]), 256
    (q, keys, values, _, _), _ = Sizes(count, 6, 2, 16, view, 2, dtype=torch.float32).make()
    mask = block_mask(tree.ancestors, committed, view)
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, mask[:, None], enable_gqa=True
    ).transpose(1, 2)
    got = tree_attention(q, keys, values, committed, tree.ancestor_words())
    assert torch.allclose(got, expected, atol=1e-5)
    # A sliding window, as layers that have one see the tree.
    far = torch.tensor([150, 90])
    near = near_mask(tree.depths, far, torch.arange(view), near_rule(50)) & block_mask(
        tree.ancestors, far, view
    )
    positions = far[:, None] + tree.depths
    assert int(tree.depths.max()) < 50  # beyond it the mask hides ancestors, too
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys, values, near[:, None], enable_gqa=True
    ).transpose(1, 2)
    got = tree_attention(q, keys, values, far, tree.ancestor_words(), positions=positions, window=50)
    assert torch.allclose(got, expected, atol=1e-5)


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    (q, keys, values, _, _), _ = Sizes(2, 2, 1, 16, 8, 1, dtype=torch.float32).make()
    out = tree_attention(q, keys, values, torch.tensor([0]), torch.tensor([[[0], [4]]]))
    assert torch.equal(out[:, 0], torch.zeros_like(out[:, 0]))
    assert torch.allclose(out[0, 1], values[0, :, 2].expand(2, -1))


# Rows of a kv head choose the kernel's tile: up to 16, 64, 128 and more (up to D 128), and several blocks of rows.
TILES = [(1, 4), (10, 4), (33, 3), (60, 4), (70, 8)]


@pytest.mark.parametrize(
    ("size", "queries", "group"),
    by_default(
        [(size, *tile) for size in HEAD_SIZES for tile in TILES],
        lambda case: case[0] == 64 or case[1:] == (10, 4) or case == (256, 33, 3),
    ),
)
def test_emulated_kernels_equal_the_reference(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, size: int, queries: int, group: int
) -> None:
    emulated("tree_attention")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", "8")
    dtype = torch.bfloat16 if (queries + size // 16) % 2 else torch.float16
    length = {1: 250, 10: 150, 33: 60}.get(queries, 230 if size == 64 else 30)  # several parts, or one
    window = {96: 70, 192: 25}.get(size)
    sizes = Sizes(queries, group, 1, size, length + 80, 1, 2, window, (length,), dtype, seed=size)
    compare(sizes, "emulated")


def any_sizes(rand: random.Random, seed: int) -> Sizes:
    """Random problems: short and full caches, windows, words, groups."""
    queries, kv_heads = rand.choice([1, 1, 2, 7, 16, 30]), rand.choice([1, 2])
    return Sizes(
        queries,
        kv_heads * rand.choice([1, 2, 4, 5]),
        kv_heads,
        rand.choice(HEAD_SIZES),
        rand.choice([1, 9, 64, 140]),
        rand.choice([1, 3]),
        rand.choice([1, 2]),
        rand.choice([None, None, 1, 17, 100]),
        dtype=rand.choice([torch.bfloat16, torch.float16]),
        seed=seed,
        extra=rand.choice([{}, {"scale": 0.3}]),
    )


@pytest.mark.parametrize("multiprocessors", [1, 5, 64])
def test_emulated_kernels_on_random_problems(
    emulated: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, schedule: int, multiprocessors: int
) -> None:
    emulated("tree_attention")
    monkeypatch.setenv("VOCABFORGE_EMULATED_SMS", str(multiprocessors))
    rand = random.Random(schedule * 100 + multiprocessors)
    for number in range(4):
        compare(any_sizes(rand, number), "emulated")


@pytest.mark.parametrize("lengths", [(0, 0), (-5, 300), (40, 199), (200, 64)])
def test_lengths_at_the_borders(
    emulated: Callable[[str], None], native_cpu: None, lengths: tuple[int, int]
) -> None:
    emulated("tree_attention")
    for queries in (1, 20):
        sizes = Sizes(queries, capacity=200, lengths=lengths, words=2)
        compare(sizes, "emulated")
        compare(sizes, "native")


def test_kernels_read_nothing_behind_the_last_visible_slot(emulated: Callable[[str], None]) -> None:
    emulated("tree_attention")
    given, _ = Sizes(4, capacity=100, lengths=(10, 33)).make()
    q, keys, values, lengths, _ = given
    keys, values = keys.clone(), values.clone()
    words = torch.tensor([1, 3, 5, 11]).view(1, 4, 1).repeat(2, 1, 1)
    for row in range(2):
        last = int(lengths[row]) + 4
        keys[row, :, last:], values[row, :, last:] = NAN, NAN
    got = tree_attention(q, keys, values, lengths, words, backend="emulated")
    expected = tree_attention(q.float(), keys.float(), values.float(), lengths, words)
    assert float((got.float() - expected).norm() / expected.norm()) < 4e-3


def test_large_scores_stay_finite(emulated: Callable[[str], None]) -> None:
    """Maxima that jump from tile to tile: the online softmax rescales what it has."""
    emulated("tree_attention")
    (q, keys, values, _, words), _ = Sizes(3, 2, 1, 64, 200, 1, dtype=torch.float16).make()
    ramp = torch.linspace(-8, 8, 200)[:, None].to(torch.float16)
    for slope in (ramp, -ramp):
        steep = (keys + slope * q[:, :1, :1].sign()).contiguous()
        got = tree_attention(q, steep, values, torch.tensor([150]), words, backend="emulated")
        wide = [q.float(), steep.float(), values.float()]
        expected = tree_attention(*wide, torch.tensor([150]), words)
        assert float((got.float() - expected).norm() / expected.norm()) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cpu_implementation_equals_the_reference(native_cpu: None, dtype: torch.dtype) -> None:
    for sizes in (
        Sizes(1, 4, 2, dtype=dtype),
        Sizes(9, 6, 2, 80, words=2, window=30, dtype=dtype),
        Sizes(5, 2, 2, 256, capacity=40, batch=1, dtype=dtype, extra={"scale": 0.5}),
    ):
        compare(sizes, "native")


@pytest.mark.gpu
@pytest.mark.parametrize("size", HEAD_SIZES)
def test_cuda_kernels_equal_the_reference(native_cuda: None, size: int) -> None:
    for queries, group in TILES:
        for dtype in (torch.bfloat16, torch.float16):
            compare(Sizes(queries, 2 * group, 2, size, 1500, 2, 2, seed=size, dtype=dtype), "native", "cuda")
            window = Sizes(queries, 2 * group, 2, size, 700, 2, 2, 333, seed=size, dtype=dtype)
            compare(window, "native", "cuda")
