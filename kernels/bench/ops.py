"""Check and time op cases: each gives a row with its time, its floor and its baselines."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vocabforge.models.target.load import dtype_name

from .cases import OP_BENCHES, op_cases
from .cases.types import SHAPES, Inputs, ModelShape, OpCase, outputs_of
from .parts import Figure, KernelOptions
from .timing import Protocol, Replay, Timing, time_calls


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill new tensors with NaN (integers: the maximum) instead of uninitialized memory."""
    filling: Any = torch.utils.deterministic
    was, filled = torch.get_deterministic_debug_mode(), filling.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # operators without a deterministic form
        # use_deterministic_algorithms would import the compiler.
        torch.set_deterministic_debug_mode("warn")
        filling.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(was)
            filling.fill_uninitialized_memory = filled


def poison(tensor: Tensor) -> None:
    """Overwrite with a value that no op returns: NaN, or the integer type's maximum."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.logical_not_()
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def leave_poison(like: tuple[Tensor, ...]) -> None:
    """Free poisoned blocks of the outputs' sizes, so the allocator reuses them for the next outputs.

    :func:`poisoned_memory` does not cover all outputs of compiled ops.
    """
    for tensor in [torch.empty_like(one) for one in like for _ in range(2)]:
        poison(tensor)


def check_case(
    case: OpCase, device: torch.device, dtype: torch.dtype, backend: str, seed: int
) -> dict[str, Any]:
    """Compare an op with its reference on separate inputs.

    Returns:
        ``problem``: None or a description (wrong values, results that vary between runs); ``graph``: the same
        for the replay of a captured graph with poisoned outputs.
    """
    inputs = case.inputs(device, dtype, seed)
    expected = tuple(one.clone() for one in outputs_of(case.reference(_own(case, inputs))))
    ours = _own(case, inputs)
    leave_poison(expected)
    with poisoned_memory():
        got = outputs_of(case.run(ours, backend))
    problem = case.problem(ours, got, expected)
    kept = tuple(one.clone() for one in got)
    if problem is None:
        second = outputs_of(case.run(_own(case, inputs), backend))
        problem = None if _same_bits(kept, second) else "the same inputs gave other bits"
    return {"problem": problem, "graph": _check_graph(case, inputs, backend, device, kept)}


def _check_graph(
    case: OpCase, inputs: Inputs, backend: str, device: torch.device, expected: tuple[Tensor, ...]
) -> str | None:
    ours = _own(case, inputs)
    try:
        replay = Replay(lambda: outputs_of(case.run(ours, backend)), device)
    except RuntimeError as error:  # torch's error if capture forbids a call
        return f"cannot be captured: {str(error).splitlines()[0]}"
    given = {one.data_ptr() for one in _tensors(ours)}
    for output in replay.outputs:
        if output.data_ptr() not in given:  # an op may return an input
            poison(output)
    for name in case.mutates:
        ours[name].copy_(inputs[name])
    replay.replay()
    return None if _same_bits(replay.outputs, expected) else "the replay gave other bits than the call"


def _own(case: OpCase, inputs: Inputs) -> Inputs:
    """Return the inputs, with copies of those that the op writes to."""
    return {name: value.clone() if name in case.mutates else value for name, value in inputs.items()}


def _same_bits(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> bool:
    """Compare for equality; NaN equals NaN."""
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(ours, theirs)
    )


_SEED = 0  # seed of the inputs
PLAIN = "reference"  # the op's PyTorch implementation, timed as a baseline


def op_figures(options: KernelOptions) -> list[Figure]:
    """Return the figures of every op with a benchmark."""
    names = options.ops or tuple(OP_BENCHES)
    return named_figures({name: partial(op_cases, name) for name in names}, options, plain=True)


def head_figures(options: KernelOptions) -> list[Figure]:
    """Return the figures of the draft heads."""
    from .cases.heads import cases

    return named_figures({"heads": cases}, options, plain=False)


def named_figures(
    makers: Mapping[str, Callable[[ModelShape], list[OpCase]]], options: KernelOptions, *, plain: bool
) -> list[Figure]:
    """Return each case once, named with its sizes; cases that cannot be built give an error text instead.

    Cases with goals come first, then the others in the order of ``options.rows``: the least important run
    last, in case time runs out.
    """
    found: dict[str, Any] = {}
    goals: set[str] = set()
    for count in options.rows:
        for name, cases in makers.items():
            for shape in map(SHAPES.__getitem__, options.shapes):
                try:
                    made = cases(shape if shape.small else replace(shape, rows=count))
                except Exception as error:  # noqa: BLE001 (one broken op must not hide the others)
                    found[name] = f"{type(error).__name__}: {error}"
                    continue
                for case in made:
                    sizes = " ".join(f"{key}={value}" for key, value in case.sizes.items())
                    label = f"{case.op}: {case.name} [{sizes}]"
                    found.setdefault(label, partial(measure_case, case, options, plain=plain))
                    goals |= {label} if case.goal else set()
    return sorted(found.items(), key=lambda figure: figure[0] not in goals)


def measure_case(case: OpCase, options: KernelOptions, *, plain: bool = True) -> dict[str, Any]:
    """Check a case in all its dtypes and time it in the first.

    Args:
        plain: whether to time the PyTorch reference.

    Returns:
        Row with ``op``, ``case``, ``sizes``, ``dtype``, ``problems`` (by dtype; if any, the case is not
        timed), ``graph_problems`` (the same for a captured graph), and the figures of :func:`_figures`.
    """
    protocol = options.protocol()
    problems: dict[str, str] = {}
    graphs: dict[str, str] = {}
    for dtype in case.dtypes:
        found = check_case(case, protocol.device, dtype, options.backend, _SEED + 1)
        for told, part in ((problems, "problem"), (graphs, "graph")):
            if (text := found[part]) is not None:
                told[dtype_name(dtype)] = text
    row: dict[str, Any] = {
        "op": case.op,
        "case": case.name,
        "sizes": dict(case.sizes),
        "dtype": dtype_name(case.dtypes[0]),
        "backend": options.backend,
        "problems": problems,
        "graph_problems": graphs,
    }
    if not problems:
        row |= _figures(case, options, protocol, plain=plain)
    _make_room(protocol)
    return row


def _make_room(protocol: Protocol) -> None:
    """Run the garbage collector, which is slow, only if much of the device's memory is in use."""
    if protocol.cuda:
        free, total = torch.cuda.mem_get_info(protocol.device)
        cached = torch.cuda.memory_reserved(protocol.device) - torch.cuda.memory_allocated(protocol.device)
        if free + cached < total / 2:
            gc.collect()


def _figures(case: OpCase, options: KernelOptions, protocol: Protocol, *, plain: bool) -> dict[str, Any]:
    """Time the op and its baselines.

    The figures are ``timing`` (graph replays if possible), ``eager`` (events around plain calls),
    ``floor_us`` and ``share`` (floor over time), ``bound``, achieved ``gb_per_s``, ``baselines`` with their
    ``ratio`` (baseline's time over the op's), ``copies`` of the inputs and ``cold`` (whether the copies are
    at least twice the cache).
    """
    assert options.ceilings is not None
    sets = _rotation(case, protocol)
    moved = sum(case.bytes_of(one) for one in sets) / len(sets)
    floor, bound = options.ceilings.floor(moved, case.floor_flops)
    backend = options.backend
    timing = time_calls(_calls(sets, lambda inputs: case.run(inputs, backend)), protocol)
    eager = time_calls(_calls(sets, lambda inputs: case.run(inputs, backend)), protocol, graph=False)
    used = min(len(sets), timing.calls)
    ways = {**({PLAIN: case.reference} if plain else {}), **case.baselines}
    baselines = {name: _baseline(_calls(sets, way), protocol, timing) for name, way in ways.items()}
    return {
        "timing": timing.to_dict(),
        "eager": eager.to_dict(),
        "floor_bytes": moved,
        "floor_flops": case.floor_flops,
        "floor_us": floor * 1e6,
        "bound": bound,
        "share": floor / timing.seconds,
        "gb_per_s": moved / timing.seconds / 1e9,
        "baselines": baselines,
        "copies": used,
        "cold": moved * used >= 2 * protocol.cache_bytes(),
    }


def _baseline(calls: list[Callable[[], Any]], protocol: Protocol, ours: Timing) -> dict[str, Any]:
    """Time a baseline, or return why it failed: it may need more memory than the op."""
    try:
        timing = time_calls(calls, protocol)
    except (RuntimeError, ValueError) as error:
        return {"problem": str(error).splitlines()[0]}
    return {**timing.to_dict(), "ratio": timing.seconds / ours.seconds}


def _calls(sets: Sequence[Inputs], way: Callable[[Inputs], Any]) -> list[Callable[[], Any]]:
    def call(inputs: Inputs) -> Callable[[], Any]:
        return lambda: way(inputs)

    return [call(inputs) for inputs in sets]


def _rotation(case: OpCase, protocol: Protocol) -> list[Inputs]:
    """Create enough sets of inputs to exceed the cache."""
    device, dtype = protocol.device, case.dtypes[0]
    first = case.inputs(device, dtype, _SEED)

    held = float(sum(one.nbytes for one in _tensors(first)))
    count = protocol.copies(case.bytes_of(first), held)
    return [first, *(case.inputs(device, dtype, _SEED + 2 + number) for number in range(1, count))]


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [one for one in inputs.values() if isinstance(one, Tensor)]
