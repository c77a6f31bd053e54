"""Requests through captured passes and without them; a recorder of passes for machines without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vocabforge.decode.accelerate.graphs import GraphCapture, each_tensor
from vocabforge.decode.device_cycle import DeviceCycle
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, Request, SamplingParams
from vocabforge.models.lean.model import LeanModel
from vocabforge.ops import tree_select

# Functions that read a tensor on the host or make one of host data; the dispatcher does not see all of them.
HOST = ("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__", "cpu")
HOST += ("tensor", "new_tensor", "as_tensor", "from_numpy")
# Operations that wait for the device or have results of unknown size.
FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "equal")
_NUMBER = torch.ops.aten.lift_fresh.default


class Forbidden(Exception):
    """An operation that a CUDA graph cannot hold."""


class NoHost(TorchFunctionMode):
    """Refuses what goes from the device to the host or back."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in HOST:
            raise Forbidden(f"{function.__name__} in a pass that is being captured")
        return function(*args, **(kwargs or {}))


class Tape(TorchDispatchMode):
    """Notes every operation with its operands and results."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1]
        )
        if name in FORBIDDEN or by_mask:
            raise Forbidden(f"{name} in a pass that is being captured")
        # A number that is assigned to a slice fills it; one that is assigned to an element is copied from the host.
        if name == "copy_" and any(args[1] is made for call, _, _, made in self.calls if call is _NUMBER):
            raise Forbidden("a number for one element in a pass that is being captured")
        found = function(*args, **(kwargs or {}))
        self.calls.append((function, args, kwargs or {}, found))
        return found

    def play(self) -> dict[int, Tensor]:
        """Run the operations again; what now stands for each result of the recording."""
        now: dict[int, Tensor] = {}

        def current(value: Any) -> Any:
            if isinstance(value, Tensor):
                return now.get(id(value), value)
            return type(value)(map(current, value)) if type(value) in (list, tuple) else value

        for function, args, kwargs, found in self.calls:
            again = function(*map(current, args), **{name: current(one) for name, one in kwargs.items()})
            pairs = [(found, again)] if isinstance(found, Tensor) else zip(found or (), again or ())
            now.update({id(old): new for old, new in pairs if isinstance(old, Tensor)})
        return now


@contextmanager
def as_captured() -> Iterator[None]:
    """Nothing is read, and what an op asserts on a CPU alone is not asserted."""
    with NoHost(), patch.object(tree_select, "_assert_closed", lambda *_: None):
        yield


class TraceRecorder:
    """Records passes on tapes."""

    def warm_up(self, run: Callable[[], Any]) -> None:
        run()

    def record(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> Callable[[], Any]:
        with as_captured(), Tape() as tape:
            outputs = function(*inputs)
        recorded = tensors_of(outputs)
        static = each_tensor(outputs, Tensor.clone)  # every replay writes here, as a graph does

        def replay() -> Any:
            now = tape.play()
            for one, old in zip(tensors_of(static), recorded):
                one.copy_(now.get(id(old), old))
            return static

        return replay


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a structure, in order."""
    found: list[Tensor] = []
    each_tensor(value, lambda one: found.append(one) or one)
    return found


PROMPTS = ([3, 17, 8, 44, 21, 9], [5, 9, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [40, 3], [7])
LENGTHS = (7, 12, 4, 9, 11)
SAMPLED = (
    SamplingParams(1.1),
    SamplingParams(0.8, top_k=9),
    SamplingParams(),
    SamplingParams(1.5, top_p=0.8, min_p=0.02),
)
Parts = tuple[LeanModel, Any]


def requests(count: int, *settings: SamplingParams) -> list[Request]:
    """Prompts of different lengths that end at different times, each with a seed of its own."""
    settings = settings or (SamplingParams(),)
    return [
        Request(PROMPTS[place], LENGTHS[place], (), replace(settings[place % len(settings)], seed=place + 1))
        for place in range(count)
    ]


def outcome(results: Sequence[Generation]) -> list[tuple[Any, ...]]:
    """What must not depend on how passes run."""
    names = "token_ids", "accept_lengths", "finish", "drafted_by_depth", "accepted_by_depth", "verified"
    return [attrgetter(*names)(one) for one in results]


def traced() -> GraphCapture:
    return GraphCapture(TraceRecorder)


def same_as_eager(
    make: Callable[[], Parts], asked: Sequence[Request], *, whole: bool = True, **options: Any
) -> tuple[GraphCapture, list[tuple[Any, ...]]]:
    """Captured passes give what eager ones do, request by request; the recordings and the outcome."""
    eager = Decoder(*make(), **options)
    expected = outcome(eager.generate_batch(asked))
    capture = traced()
    decoder = Decoder(*make(), wrap=capture, **options)
    found = outcome(decoder.generate_batch(asked))
    assert found == expected
    assert isinstance(decoder._cycles, DeviceCycle) == whole
    assert any("cycle" in one.name for one in capture.done) == whole
    # Wrong drafts do not show in what is generated, and what a random drafter drafts is hardly ever accepted.
    assert torch.equal(decoder._side.committed, eager._side.committed)
    if whole and decoder.proposer is not None:
        for ours, theirs in zip(
            decoder.proposer.backend.device_state(), eager.proposer.backend.device_state()
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    return capture, found
