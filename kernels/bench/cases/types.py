"""Parts of an op's benchmark: sizes of models, and cases with inputs, floor, baselines and check.

A module ``cases/X.py`` gives ``cases(shape) -> list[OpCase]`` for the op X; everything else is the protocol of
``timing.py``. For an example see docs/guides/add-a-kernel.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
        router_tokens: in the clusters that the router opens, about; it has ``clusters``.
        context_tokens: size of the context's vocabulary.
        topk: children of a tree node, and nodes expanded in a round.
        depth: rounds after the root's expansion; a tree has depth + 1 levels.
        nodes: nodes of the verified tree, root included.
        prefix: committed positions in the caches.
        qk_norm: the heads of queries and keys are normed (Qwen3).
        small: sizes for a CPU, where nothing is timed for its own sake.
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
        """Levels of a tree below the root."""
        return self.depth + 1


def _shape(name: str, vocab: int, intermediate: int, layers: int, qk_norm: bool, eps: float) -> ModelShape:
    return ModelShape(
        name, 4096, vocab, 10, intermediate, layers, heads=32, kv_heads=8, head_dim=128, qk_norm=qk_norm, eps=eps
    )  # fmt: skip


# Sizes from the models' published config.json; `rows` is replaced by each N that is measured.
LLAMA3_8B = _shape("llama3-8b", 128_256, 14_336, 32, False, 1e-5)
QWEN3_8B = _shape("qwen3-8b", 151_936, 12_288, 36, True, 1e-6)
# For a CPU: V is no multiple of a tile, N of no power of two.
SMALL = ModelShape(
    "small", hidden=64, vocab=1003, rows=5, intermediate=96, layers=2, heads=4, kv_heads=2, head_dim=64,
    static=256, shortlists=(16, 64), ranks=(8, 16), router_tokens=200, context_tokens=40, clusters=12, topk=4, depth=2,
    nodes=12, prefix=48, qk_norm=True, small=True,
)  # fmt: skip
SHAPES: dict[str, ModelShape] = {shape.name: shape for shape in (LLAMA3_8B, QWEN3_8B, SMALL)}
ROWS = (1, 10, 60)  # N of the figures


CaseCheck: TypeAlias = Callable[[Inputs, tuple[Tensor, ...], tuple[Tensor, ...]], "str | None"]


TRITON = "bench.triton_ops"  # needs Triton, which CUDA builds of torch bring


@dataclass(frozen=True)
class LibraryWay:
    """Another library's way to the result of a case.

    Attributes:
        module: imported first; if that fails, the way is skipped with the reason.
        prepare: inputs -> the call that is timed; it does once what users of the library do once for many calls.
        untimed: what that was, for the report.
        check: as :attr:`OpCase.check`; None: the case's own.
    """

    module: str
    prepare: Callable[[Inputs], Callable[[], Outputs]]
    untimed: str = ""
    check: CaseCheck | None = None


@dataclass(frozen=True)
class OpCase:
    """One op at one size.

    Attributes:
        name: op and sizes for people, unique within the op, such as ``indexed_logits N=10 k=2048 shared``.
        op: row of ``OP_BENCHES``.
        sizes: the numbers behind ``name``, for the JSON.
        make: (generator on the device, dtype) -> inputs by name. Random data, never zeros.
        run: (inputs, backend) -> the op's outputs, without waiting for the device; a written input is returned.
        reference: inputs -> what ``run`` must give, in plain PyTorch.
        floor_bytes: fewest bytes moved, each input read and each output written once; may depend on the inputs.
        floor_flops: operations that must be done, a multiply-add being 2.
        baselines: name -> another way to the same result; timed, not checked.
        check: (inputs after the run, outputs, expected) -> what is wrong; None: :func:`close` with ``tolerance``.
        tolerance: most ‖out − expected‖ / ‖expected‖ over finite floating-point entries; integers are equal.
        mutates: names of the inputs that ``run`` writes to; the check works on copies.
        dtypes: of hidden states and weights; the first is measured, all are checked.
        measures: name -> (inputs after the run, outputs) -> a figure beside time, such as recall.
        goal: a stated goal hangs on its time: it is measured before the others.
        libraries: library -> its way; checked, then timed beside the op in the part ``libraries``.
    """

    name: str
    op: str
    sizes: Mapping[str, int]
    make: Callable[[torch.Generator, torch.dtype], Inputs]
    run: Callable[[Inputs, str], Outputs]
    reference: Callable[[Inputs], Outputs]
    floor_bytes: float | Callable[[Inputs], float]
    floor_flops: float = 0.0
    baselines: Mapping[str, Callable[[Inputs], Any]] = field(default_factory=dict)
    check: CaseCheck | None = None
    tolerance: float = 1e-2
    mutates: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)
    measures: Mapping[str, Callable[[Inputs, tuple[Tensor, ...]], float]] = field(default_factory=dict)
    goal: bool = False
    libraries: Mapping[str, LibraryWay] = field(default_factory=dict)

    def problem(
        self,
        inputs: Inputs,
        got: tuple[Tensor, ...],
        expected: tuple[Tensor, ...],
        check: CaseCheck | None = None,
    ) -> str | None:
        """Return the problems of outputs, found by ``check``, else by the case's own check, else by :func:`close`."""
        check = check or self.check
        return check(inputs, got, expected) if check else close(got, expected, self.tolerance)

    def inputs(self, device: torch.device, dtype: torch.dtype, seed: int) -> Inputs:
        """Inputs on a device, the same for the same seed."""
        return self.make(generator(device, seed), dtype)

    def bytes_of(self, inputs: Inputs) -> float:
        """The floor in bytes for these inputs."""
        return float(self.floor_bytes(inputs) if callable(self.floor_bytes) else self.floor_bytes)


def case_of_op(
    op: Callable[..., Outputs | None],
    reference: Callable[..., Outputs | None],
    fixed: Mapping[str, Any] | None = None,
    *,
    name: str,
    mutates: tuple[str, ...] = (),
    **rest: Any,
) -> OpCase:
    """The case of an op that takes its inputs by name, and of its reference, which is the baseline ``torch``.

    Args:
        fixed: further arguments of both.
        name: without the op's.
        mutates: of :class:`OpCase`; these inputs are outputs, too.
        rest: of :class:`OpCase`.
    """
    fixed = fixed or {}

    def with_written(made: Outputs | None, inputs: Inputs) -> Outputs:
        if not mutates:
            assert made is not None
            return made
        return (*(() if made is None else outputs_of(made)), *(inputs[name] for name in mutates))

    def run(inputs: Inputs, backend: str) -> Outputs:
        return with_written(op(**inputs, **fixed, backend=backend), inputs)

    def plain(inputs: Inputs) -> Outputs:
        return with_written(reference(**inputs, **fixed), inputs)

    own = {"op": op.__name__, "run": run, "reference": plain, "baselines": {"torch": plain}}
    return OpCase(**{**own, **rest, "name": f"{op.__name__} {name}", "mutates": mutates})


def generator(device: torch.device, seed: int) -> torch.Generator:
    """A seeded generator on the device of what it fills."""
    return torch.Generator(device=device).manual_seed(seed)


def normal(shape: tuple[int, ...], random: torch.Generator, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Gaussian noise; big tensors are filled a slab at a time, so that fp32 copies of them never exist whole."""
    out = torch.empty(shape, dtype=dtype, device=random.device)
    flat, step = out.view(-1), 1 << 24
    for start in range(0, flat.numel(), step):
        part = flat[start : start + step]
        noise = torch.randn(part.numel(), generator=random, device=random.device)
        part.copy_(noise.mul_(scale))
    return out


def integers(high: int, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """Uniform int64 below ``high``."""
    return torch.randint(high, shape, generator=random, device=random.device)


def uniform(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    """fp32 in [0, 1)."""
    return torch.rand(shape, generator=random, device=random.device)


def distinct_ids(high: int, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """(N, k) int64 below ``high``, no id twice in a row, unordered."""
    rows, k = shape
    noise = uniform((rows, high), random)
    return noise.topk(k, dim=1).indices


def shared_ids(high: int, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """(N, k) int64 where all rows hold the same ids, each in its own order, as siblings of a draft step about do."""
    rows, k = shape
    pool = torch.randperm(high, generator=random, device=random.device)[:k]
    order = uniform((rows, k), random).argsort(dim=1)
    return pool[order]


def outputs_of(result: Outputs) -> tuple[Tensor, ...]:
    """A result as a tuple."""
    return (result,) if isinstance(result, Tensor) else tuple(result)


def close(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> str | None:
    """None, or what differs: the shape, NaN, an infinity elsewhere, an integer, or a norm beyond ``tolerance``."""
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
