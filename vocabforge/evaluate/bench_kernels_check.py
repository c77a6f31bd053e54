"""Whether an op is right, before it is timed: fresh random inputs, poisoned outputs, replayed graphs, equal bits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .bench_kernels_timing import Replay
from .op_benches.types import Inputs, OpCase, close, outputs_of


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """New tensors start as NaN (integers: their highest value) instead of whatever lies there."""
    filling: Any = torch.utils.deterministic
    was, filled = torch.get_deterministic_debug_mode(), filling.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of operators without a deterministic form
        # Not use_deterministic_algorithms, which imports the compiler.
        torch.set_deterministic_debug_mode("warn")
        filling.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(was)
            filling.fill_uninitialized_memory = filled


def poison(tensor: Tensor) -> None:
    """Overwrite with what no op gives: NaN, or the integer type's highest value."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.logical_not_()
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def leave_poison(like: tuple[Tensor, ...]) -> None:
    """Free poisoned blocks of the outputs' sizes: an allocator hands them to the next who asks.

    Outputs of compiled ops do not all pass through what :func:`poisoned_memory` switches.
    """
    for tensor in [torch.empty_like(one) for one in like for _ in range(2)]:
        poison(tensor)


def check_case(
    case: OpCase, device: torch.device, dtype: torch.dtype, backend: str, seed: int
) -> dict[str, Any]:
    """Compare an op with its reference on inputs that nothing else uses.

    Returns:
        ``problem``: None, or what is wrong (values, bits that change between runs); ``graph``: the same for the
        replay of a captured graph whose outputs were poisoned; ``measured``: the case's own figures by name.
    """
    inputs = case.make(device, dtype, seed)
    expected = tuple(one.clone() for one in outputs_of(case.reference(_own(case, inputs))))
    ours = _own(case, inputs)
    leave_poison(expected)
    with poisoned_memory():
        got = outputs_of(case.run(ours, backend))
    problem = _judge(case, ours, got, expected)
    kept = tuple(one.clone() for one in got)
    if problem is None:
        second = outputs_of(case.run(_own(case, inputs), backend))
        problem = None if _same_bits(kept, second) else "the same inputs gave other bits"
    measured = {name: round(float(measure(ours, kept)), 4) for name, measure in case.measures.items()}
    return {
        "problem": problem,
        "graph": _check_graph(case, inputs, backend, device, kept),
        "measured": measured,
    }


def _check_graph(
    case: OpCase, inputs: Inputs, backend: str, device: torch.device, expected: tuple[Tensor, ...]
) -> str | None:
    ours = _own(case, inputs)
    try:
        replay = Replay(lambda: outputs_of(case.run(ours, backend)), device)
    except RuntimeError as error:  # what torch raises for a call that capture forbids
        return f"cannot be captured: {str(error).splitlines()[0]}"
    given = {one.data_ptr() for one in ours.values() if isinstance(one, Tensor)}
    for output in replay.outputs:
        if output.data_ptr() not in given:  # an op may hand an input on
            poison(output)
    for name in case.mutates:
        ours[name].copy_(inputs[name])
    replay.replay()
    return None if _same_bits(replay.outputs, expected) else "the replay gave other bits than the call"


def _own(case: OpCase, inputs: Inputs) -> Inputs:
    """The inputs with copies of what the op writes to."""
    return {name: value.clone() if name in case.mutates else value for name, value in inputs.items()}


def _judge(case: OpCase, inputs: Inputs, got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> str | None:
    if case.check is not None:
        return case.check(inputs, got, expected)
    return close(got, expected, case.tolerance)


def _same_bits(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> bool:
    """Equal, NaN being equal to NaN."""
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
        for a, b in zip(ours, theirs)
    )
