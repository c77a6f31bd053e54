"""Captured passes: a pass is recorded once for each set of shapes and then replayed without its Python code.

On a GPU a decoding pass is hundreds of small kernels, and launching them one by one takes longer than running
them. A CUDA graph launches all of them at once. It requires that inputs, outputs and all tensors that the
pass accesses keep their addresses, that nothing is read on the host, and that no shape depends on data. The
same rules hold for any other recorder, so tests without a GPU can also record passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from ...core.console import say
from ...core.errors import UsageError

MOST_RECORDINGS = 24  # per pass; rarer shapes run eagerly


class CudaRecorder:
    """Recorder of CUDA graphs that share one memory pool and one stream; others have the same methods."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # On this device, because torch's own capture stream is on the first device that captured. Only one
        # stream, because cuBLAS keeps a workspace (32 MiB on Hopper) for each.
        self._stream = torch.cuda.Stream(device)

    def warm_up(self, run: Callable[[], Any]) -> None:
        """Run on the recording stream, so that the libraries' per-stream state exists before recording."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)

    def record(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> Callable[[], Any]:
        """Return a call that runs the pass on the current contents of ``inputs`` and returns its outputs.

        Recording may or may not run the pass; calls may return the same output tensors every time.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph, self._pool, self._stream):
            outputs = function(*inputs)

        def replay() -> Any:
            graph.replay()
            return outputs

        return replay


class MadePass(NamedTuple):
    """A pass recorded or compiled for one set of shapes, and the seconds that this took."""

    name: str
    seconds: float


class GraphCapture:
    """``Wrap`` that records passes; see :func:`capture_passes`."""

    def __init__(self, make_recorder: Callable[[], CudaRecorder]) -> None:
        self.done: list[MadePass] = []
        self._make_recorder, self._recorder = make_recorder, make_recorder()
        self.recording = False
        self._passes: WeakSet[GraphPass] = WeakSet()

    def own(self) -> GraphCapture:
        """Return a new capture whose passes can be forgotten separately; its recordings also count here."""
        made = GraphCapture(self._make_recorder)
        made.done = self.done
        return made

    def __call__(
        self, name: str, function: Callable[..., Any], state: Callable[[], Sequence[Tensor]] = tuple
    ) -> GraphPass:
        """Return the function, to be recorded at the first call with new shapes.

        Args:
            name: shown in messages.
            function: takes tensors (or None) by position. It may write to tensors that it accesses through
                attributes; these keep their addresses until :meth:`forget`. Its outputs are tensors, or
                tuples and dataclasses of them.
            state: tensors that a run changes in a way that affects the next run. They are restored after
                recording.
        """
        made = GraphPass(name, function, state, self)
        self._passes.add(made)
        return made

    def forget(self) -> None:
        """Drop all recordings, because the tensors that they access have moved."""
        for graph_pass in self._passes:
            graph_pass.forget()
        self._recorder = self._make_recorder()  # a memory pool without graphs cannot be used again

    def record(
        self,
        name: str,
        function: Callable[..., Any],
        state: Sequence[Tensor],
        inputs: Sequence[Tensor | None],
    ) -> Callable[[], Any]:
        """Record a function over static inputs and restore ``state``."""
        began = time.perf_counter()
        kept = [(tensor, tensor.clone()) for tensor in state]
        self.recording = True
        try:
            self._recorder.warm_up(lambda: function(*inputs))
            _put_back(kept)
            replay = self._recorder.record(function, inputs)
        finally:
            self.recording = False
        _put_back(kept)
        shapes = " ".join(str(list(tensor.shape)) for tensor in inputs if tensor is not None)
        seconds = time.perf_counter() - began
        say(f"Captured {name} {shapes}".rstrip() + f" in {seconds:.1f} s")
        self.done.append(MadePass(name, seconds))
        return replay

    @property
    def seconds(self) -> float:
        return sum(recorded.seconds for recorded in self.done)


def capture_passes(device: torch.device | str) -> GraphCapture:
    """Return the ``wrap`` argument of ``Decoder`` for CUDA graphs; a UsageError on other devices."""
    device = torch.device(device)
    if device.type != "cuda":
        raise UsageError(
            "passes are captured as CUDA graphs on CUDA devices only",
            got=str(device),
            expected="cuda",
            remedy="leave --graphs out, or add --device cuda; on a CPU --compile makes passes faster",
        )
    return GraphCapture(lambda: CudaRecorder(device))


class GraphPass:
    """A function (see :meth:`GraphCapture.__call__`) with a recording for each set of shapes."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        state: Callable[[], Sequence[Tensor]],
        capture: GraphCapture,
    ) -> None:
        self._name, self._function, self._state, self._capture = name, function, state, capture
        self._recorded: dict[tuple[object, ...], tuple[list[Tensor | None], Callable[[], Any]]] = {}

    def forget(self) -> None:
        self._recorded.clear()

    @torch.inference_mode()
    def __call__(self, *args: Tensor | None) -> Any:
        if self._capture.recording:  # part of another pass
            return self._function(*args)
        key = tuple(None if arg is None else (arg.shape, arg.dtype) for arg in args)
        if key not in self._recorded and len(self._recorded) == MOST_RECORDINGS:
            return self._function(*args)
        if key not in self._recorded:
            own = [None if arg is None else arg.clone() for arg in args]
            self._recorded[key] = own, self._capture.record(self._name, self._function, self._state(), own)
        inputs, replay = self._recorded[key]
        for static, arg in zip(inputs, args):
            if static is not None and arg is not None:
                static.copy_(arg)
        return each_tensor(replay(), Tensor.clone)  # the next replay overwrites the outputs


def _put_back(kept: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, before in kept:
        tensor.copy_(before)


def each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``change`` to every tensor of a nested structure."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        parts = [each_tensor(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: each_tensor(getattr(value, field.name), change) for field in fields(value)}
        )
    return value
