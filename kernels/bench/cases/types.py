"""Types of an op's benchmark: model sizes, and cases with inputs, floor, plain form and check.

A function ``cases(shape) -> list[OpCase]`` makes those of an op; ``timing.py`` does the rest.
See docs/guides/add-a-kernel.md for an example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

Inputs: TypeAlias = Mapping[str, Any]
Outputs: TypeAlias = "Tensor | tuple[Tensor, ...]"


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model and of a draft step.

    Attributes:
        hidden, vocab: d and V of the LM head.
        rows: N, hidden states of one draft step (1 to 64).
        static: rows of a static draft vocabulary.
        shortlists, ranks: candidates k and rank r of the ranker.
        router_tokens: approximate number of tokens in the clusters that the router opens, out of
            ``clusters``.
        context_tokens: size of the context's vocabulary.
        topk: children of a tree node, and nodes expanded in a round.
        depth: rounds after the root's expansion; a tree has depth + 1 levels.
        nodes: nodes of the verified tree, root included.
        prefix: committed positions in the caches.
        qk_norm: whether query and key heads are normed (Qwen3).
        small: whether these are test sizes for a CPU: attention at one prefix.
    """

    name: str
    hidden: int
    vocab: int
    rows: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    static: int = 32768
    shortlists: tuple[int, ...] = (512, 1024, 2048, 4096)
    ranks: tuple[int, ...] = (512, 256)
    router_tokens: int = 27344
    context_tokens: int = 3000
    clusters: int = 1024
    topk: int = 10
    depth: int = 5
    nodes: int = 60
    prefix: int = 1024
    eps: float = 1e-5
    qk_norm: bool = False
    small: bool = False

    @property
    def levels(self) -> int:
        return self.depth + 1


# Sizes from the models' published config.json; `rows` is replaced by each measured N.
LLAMA3_8B = ModelShape(
    "llama3-8b", hidden=4096, vocab=128_256, rows=10, intermediate=14_336, layers=32, heads=32, kv_heads=8, head_dim=128
)  # fmt: skip
QWEN3_8B = replace(
    LLAMA3_8B, name="qwen3-8b", vocab=151_936, intermediate=12_288, layers=36, qk_norm=True, eps=1e-6
)
# For a CPU: V is not a multiple of a tile, N not a multiple of a power of two.
SMALL = ModelShape(
    "small", hidden=64, vocab=1003, rows=5, intermediate=96, layers=2, heads=4, kv_heads=2, head_dim=64,
    static=256, shortlists=(16, 64), ranks=(8, 16), router_tokens=200, context_tokens=40, clusters=12, topk=4, depth=2,
    nodes=12, prefix=48, qk_norm=True, small=True,
)  # fmt: skip


@dataclass(frozen=True)
class OpCase:
    """An op at a size.

    Attributes:
        name: op and all sizes that decide its time, such as ``silu_mul R=10 i=14336``.
        make: (generator on the device, dtype) -> inputs by name. Random data, never zeros.
        run: (inputs, backend) -> the op's outputs, without waiting for the device; modified inputs are
            returned.
        reference: inputs -> expected result of ``run``, in plain PyTorch.
        floor_bytes: minimum bytes moved: inputs read once, outputs written once; may depend on the inputs.
        floor_flops: minimum operations; a multiply-add counts as 2.
        plain: the same with PyTorch's own operations, in the inputs' dtypes; timed, not checked.
        check: (inputs after the run, outputs, expected) -> problem or None; default: :func:`close` with
            ``tolerance``.
        tolerance: maximum ‖out − expected‖ / ‖expected‖ over finite floating-point entries; integers must be
            equal.
        mutates: names of the inputs that ``run`` writes to; the check uses copies.
        dtypes: dtypes of hidden states and weights; the first is measured, all are checked.
        goal: whether a goal of docs/performance/gpu.md depends on this case; such cases are measured first.
    """

    name: str
    make: Callable[[torch.Generator, torch.dtype], Inputs]
    run: Callable[[Inputs, str], Outputs]
    reference: Callable[[Inputs], Outputs]
    floor_bytes: float | Callable[[Inputs], float]
    floor_flops: float = 0.0
    plain: Callable[[Inputs], Any] | None = None
    check: Callable[[Inputs, tuple[Tensor, ...], tuple[Tensor, ...]], str | None] | None = None
    tolerance: float = 1e-2
    mutates: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    goal: bool = False

    def problem(self, inputs: Inputs, got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> str | None:
        """Return the problem with outputs, using the case's check or :func:`close`."""
        return self.check(inputs, got, expected) if self.check else close(got, expected, self.tolerance)

    def inputs(self, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
        return self.make(generator(device, seed), dtype)

    def bytes_of(self, inputs: Inputs) -> float:
        return float(self.floor_bytes(inputs) if callable(self.floor_bytes) else self.floor_bytes)


def case_of_op(
    op: Callable[..., Outputs | None],
    reference: Callable[..., Outputs | None],
    fixed: Mapping[str, Any] | None = None,
    *,
    name: str,
    mutates: tuple[str, ...] = (),
    plain: Callable[[Inputs], Any] | None = None,
    **rest: Any,
) -> OpCase:
    """Create the case of an op that takes its inputs by name.

    Args:
        fixed: additional arguments of both.
        name: sizes, as in ``R=10 i=14336``.
        mutates: see :class:`OpCase`; these inputs are also outputs.
        plain: see :class:`OpCase`; default: the reference.
        rest: other fields of :class:`OpCase`.
    """
    fixed = fixed or {}

    def with_written(made: Outputs | None, inputs: Inputs) -> Outputs:
        if not mutates:
            assert made is not None
            return made
        return (*(() if made is None else outputs_of(made)), *(inputs[name] for name in mutates))

    def run(inputs: Inputs, backend: str) -> Outputs:
        return with_written(op(**inputs, **fixed, backend=backend), inputs)

    def expected(inputs: Inputs) -> Outputs:
        return with_written(reference(**inputs, **fixed), inputs)

    own: Any = {"run": run, "reference": expected, "plain": plain or expected, "mutates": mutates}
    return OpCase(f"{op.__name__} {name}", **own, **rest)


def generator(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


def normal(shape: tuple[int, ...], random: torch.Generator, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Return Gaussian noise; large tensors are filled in slabs, to avoid full fp32 copies."""
    out = torch.empty(shape, dtype=dtype, device=random.device)
    flat, step = out.view(-1), 1 << 24
    for start in range(0, flat.numel(), step):
        part = flat[start : start + step]
        noise = torch.randn(part.numel(), generator=random, device=random.device)
        part.copy_(noise.mul_(scale))
    return out


def integers(high: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Return uniform int64 values below ``high``."""
    return torch.randint(high, shape, generator=random, device=random.device)


def uniform(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Return uniform fp32 values in [0, 1)."""
    return torch.rand(shape, generator=random, device=random.device)


def distinct_ids(high: int, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """Return (N, k) unordered int64 ids below ``high``, distinct within each row."""
    rows, k = shape
    noise = uniform((rows, high), random)
    return noise.topk(k, dim=1).indices


def shared_ids(high: int, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """Return (N, k) int64 with the same ids in every row, in different order, like siblings."""
    rows, k = shape
    pool = torch.randperm(high, generator=random, device=random.device)[:k]
    order = uniform((rows, k), random).argsort(dim=1)
    return pool[order]


def outputs_of(result: Outputs) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def close(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> str | None:
    """Describe a difference in shape, NaN, infinities, integers or norm (``tolerance``), or return None."""
    if len(got) != len(expected):
        return f"{len(got)} outputs instead of {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(got, expected)):
        if ours.shape != theirs.shape:
            return f"output {number} has shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
        if not (ours.is_floating_point() and theirs.is_floating_point()):
            wrong = int((ours.long() != theirs.long()).sum())
            if wrong:
                return f"output {number}: {wrong} of {ours.numel()} integers differ"
            continue
        problem = _close(ours.double(), theirs.double(), tolerance)
        if problem is not None:
            return f"output {number}: {problem}"
    return None


def _close(ours: Tensor, theirs: Tensor, tolerance: float) -> str | None:
    unlike = int((ours.isnan() | theirs.isnan()).sum())
    if unlike:
        return f"{unlike} NaN"
    finite = theirs.isfinite()
    elsewhere = int((finite != ours.isfinite()).sum() + (ours[~finite] != theirs[~finite]).sum())
    if elsewhere:
        return f"{elsewhere} infinities differ"
    scale = float(theirs[finite].norm())
    error = float((ours[finite] - theirs[finite]).norm()) / (scale or 1.0)
    return None if error <= tolerance else f"relative error {error:.2e}, at most {tolerance:.0e} allowed"
