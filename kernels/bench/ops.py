"""Check and time a case: its row has times, and the least bytes and operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vocabforge.models.target.load import dtype_name

from .cases.types import Inputs, OpCase, outputs_of
from .timing import Protocol, Replay, time_calls

_SEED = 0  # seed of the inputs


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
    for tensor in [torch.empty_like(output) for output in like for _ in range(2)]:
        poison(tensor)


def problem_of(
    case: OpCase, device: torch.device, dtype: torch.dtype, backend: str, seed: int = _SEED + 1
) -> str | None:
    """Compare an op with its reference on poisoned memory, with itself, and with the replay of a captured graph.

    Returns:
        A description, or None.
    """
    inputs = case.inputs(device, dtype, seed)
    expected = tuple(output.clone() for output in outputs_of(case.reference(_own(case, inputs))))
    ours = _own(case, inputs)
    leave_poison(expected)
    with poisoned_memory():
        got = outputs_of(case.run(ours, backend))
    if (problem := case.problem(ours, got, expected)) is not None:
        return problem
    kept = tuple(output.clone() for output in got)
    if not _same_bits(kept, outputs_of(case.run(_own(case, inputs), backend))):
        return "the same inputs gave other bits"
    ours = _own(case, inputs)
    try:
        replay = Replay(lambda: outputs_of(case.run(ours, backend)), device)
    except RuntimeError as error:  # torch's error if capture forbids a call
        return f"cannot be captured: {str(error).splitlines()[0]}"
    given = {tensor.data_ptr() for tensor in _tensors(ours)}
    for output in replay.outputs:
        if output.data_ptr() not in given:  # an op may return an input
            poison(output)
    for name in case.mutates:
        ours[name].copy_(inputs[name])
    replay.replay()
    return None if _same_bits(replay.outputs, kept) else "the replay gave other bits than the call"


def _own(case: OpCase, inputs: Inputs) -> Inputs:
    """Return the inputs, with copies of those that the op writes to."""
    return {name: value.clone() if name in case.mutates else value for name, value in inputs.items()}


def _same_bits(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> bool:
    """Compare for equality; NaN equals NaN."""
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(ours, theirs)
    )


def measure_case(case: OpCase, protocol: Protocol, backend: str) -> dict[str, Any]:
    """Check a case in all its dtypes and time it in the first.

    Returns:
        ``problem``, with its dtypes; if there is none, what :func:`time_calls` returns, ``bytes`` and ``flops``
        (the least), the microseconds of the ``plain`` form or why it failed, and whether the inputs are ``cold``,
        at least twice the cache.
    """
    device = protocol.device
    problems = [
        f"{dtype_name(dtype)}: {problem}"
        for dtype in case.dtypes
        if (problem := problem_of(case, device, dtype, backend)) is not None
    ]
    if problems:
        return {"problem": "; ".join(problems)}
    sets = _rotation(case, protocol)
    moved = sum(case.bytes_of(inputs) for inputs in sets) / len(sets)
    timing = time_calls([partial(case.run, inputs, backend) for inputs in sets], protocol)
    return {
        **timing,
        "bytes": moved,
        "flops": case.floor_flops,
        "plain": case.plain and _plain([partial(case.plain, inputs) for inputs in sets], protocol),
        "cold": moved * min(len(sets), timing["calls"]) >= 2 * protocol.cache_bytes(),
    }


def _plain(calls: list[Callable[[], Any]], protocol: Protocol) -> float | str:
    try:
        return float(time_calls(calls, protocol)["us"])
    except (RuntimeError, ValueError) as error:  # it may need more memory than the op
        return str(error).splitlines()[0]


def _rotation(case: OpCase, protocol: Protocol) -> list[Inputs]:
    """Create enough sets of inputs to exceed the cache."""
    device, dtype = protocol.device, case.dtypes[0]
    first = case.inputs(device, dtype, _SEED)
    held = float(sum(tensor.nbytes for tensor in _tensors(first)))
    count = protocol.copies(case.bytes_of(first), held)
    return [first, *(case.inputs(device, dtype, _SEED + 2 + number) for number in range(1, count))]


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [value for value in inputs.values() if isinstance(value, Tensor)]
