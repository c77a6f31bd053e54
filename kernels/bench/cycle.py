"""Time full decode cycles at real shapes with random weights, against the bytes that they must read.

A cycle covers the draft loop, verification, commit, and the host's read of the accepted count. Its time does
not depend on the accepted length, so tokens/s = accepted length with real weights / cycle seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from vocabforge.decode.accelerate.graphs import GraphCapture, capture_passes
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.interface import Frontier
from vocabforge.decode.proposers.model import ModelProposer
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.tree import DraftTree
from vocabforge.models.heads.registry import DraftHead, DraftState
from vocabforge.ops.draft_topk import draft_topk
from vocabforge.ops.trees import bits_of

from .cases.heads import BenchHead
from .cases.types import SHAPES, ModelShape
from .parts import Figure, KernelOptions
from .shapes import Pair, ShapePairs, head_settings, label_of
from .timing import Protocol, time_calls

Asked = tuple[Tensor, int, "DraftState | None"]  # arguments of a head's call: hidden rows, k, state


def drafting_figures(options: KernelOptions) -> list[Figure]:
    """Return the draft-loop figures of every shape with several heads."""
    pairs = ShapePairs(options.device)

    def measure(shape: ModelShape, setting: BenchHead, name: str) -> dict[str, Any]:
        return {"name": name, **breakdown(pairs.of(shape), setting, options.protocol())}

    return [
        (name, partial(measure, shape, setting, name))
        for shape in map(SHAPES.__getitem__, options.shapes)
        for setting in head_settings(shape)
        for name in [f"{shape.name}: drafting, {label_of(setting)}"]
    ]


@torch.inference_mode()
def breakdown(pair: Pair, setting: BenchHead, protocol: Protocol) -> dict[str, Any]:
    """Measure the microseconds of one drafting and its parts.

    Returns:
        ``with_us``, ``without_us`` (graphs), ``parts``: ``layer``, ``head`` (logits and the selection of
        their columns), ``softmax and top-k``, ``tree``, ``launch gaps``.
    """
    proposer, plan, depth = pair.proposer(setting), pair.plan(), pair.shape.depth
    device, room = pair.target.device, 4 * pair.shape.nodes
    decoder = Decoder(pair.target, proposer, pair.shape.prefix + room, wrap=new_capture(device))
    begin_drafting(decoder, [pair.prompt()], room)
    roots = torch.zeros(1, dtype=torch.int64, device=device)
    head, asked = proposer.head, record_drafting(proposer, roots)[1]

    def loop() -> Any:
        return proposer.draft(roots, plan).tokens

    def answer(place: int) -> tuple[float, float]:
        """Return the seconds of the head's call, and of its softmax and top-k."""
        hidden, k, state = asked[place]
        whole = time_calls([lambda: head.topk(hidden, k, unprepared(state))], protocol)
        logits, ids = head.scores(hidden, k, unprepared(state))
        if ids.dim() == 1:  # one dense product, whose logits are in the weights' dtype
            logits = logits.to(hidden.dtype)
        logits, ids = logits.contiguous(), ids.contiguous()
        return whole.seconds, time_calls([lambda: draft_topk(logits, k, ids=ids)], protocol).seconds

    with_graph = time_calls([loop], protocol)
    without = time_calls([loop], protocol, graph=False)
    layer = depth * time_calls([layer_call(proposer, roots, pair.shape.topk)], protocol).seconds
    first, further = answer(0), answer(-1)
    both, choosing = (one + depth * other for one, other in zip(first, further))
    parts = {
        "layer": layer,
        "head": both - choosing,
        "softmax and top-k": choosing,
        "tree": with_graph.seconds - layer - both,
        "launch gaps": without.seconds - with_graph.seconds,
    }
    return {
        "model": pair.shape.name,
        "with_us": with_graph.seconds * 1e6,
        "without_us": without.seconds * 1e6,
        "method": with_graph.method,
        "problem": with_graph.problem,
        "parts": {name: seconds * 1e6 for name, seconds in parts.items()},
    }


def begin_drafting(decoder: Decoder, prompts: Sequence[Sequence[int]], room: int) -> None:
    """Prefill the prompts up to the first drafting, leaving room for ``room`` more tokens."""
    requests = [Request(prompt, room, ()) for prompt in prompts]
    stream = decoder.stream_batch(requests, [Generation() for _ in requests])
    for _ in requests:
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    cast("ModelProposer", decoder.proposer).prepare()


class _Recorder:
    """A head that records the arguments of its calls."""

    best = None  # chains then use topk, as trees do

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        self.asked: list[Asked] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        self.asked.append((hidden.clone(), k, state))
        return self._head.topk(hidden, k, state)


def record_drafting(proposer: ModelProposer, roots: Tensor) -> tuple[DraftTree, list[Asked]]:
    """Run one drafting without a graph; return its tree and the arguments of its head's calls, by level.

    Args:
        roots: (B,) tokens that a drafting starts from.
    """
    head = proposer.head
    proposer.head = recorder = _Recorder(head)
    try:
        return proposer.draft(roots, proposer.plan), recorder.asked
    finally:
        proposer.head = head


def unprepared(state: DraftState | None) -> DraftState | None:
    """Return a copy of the state without prepared data, which is valid for one call only."""
    if state is None:
        return None
    return DraftState(state.step, state.tokens, state.previous, state.requests, state.context)


def layer_call(proposer: ModelProposer, roots: Tensor, width: int) -> Callable[[], Tensor]:
    """Return a call that expands a full frontier: the drafter's layer and norm, key writes and attention.

    Args:
        roots: (B,) tokens that a drafting starts from.
    """
    backend = proposer.backend
    step = backend.start_in(roots, backend.view())
    tokens = torch.arange(width, device=roots.device).expand(len(roots), -1)  # (B, W)
    words = bits_of(torch.eye(width, dtype=torch.bool, device=roots.device)).repeat(len(roots), 1, 1)
    frontier = Frontier(tokens, torch.zeros_like(tokens), words)
    return lambda: backend.expand(frontier, step, 1).hidden


_WARM = 4  # untimed cycles: graph captures, first allocations


class CallAgain:
    """A recorder for machines without CUDA graphs; a replay runs the pass again."""

    def warm_up(self, run: Callable[[], Any]) -> None:
        """Run the pass once."""
        run()

    def record(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> Callable[[], Any]:
        """Return a callable that runs the pass on these inputs."""
        return lambda: function(*inputs)


def new_capture(device: torch.device) -> GraphCapture:
    """Return a recorder of full passes as graphs; on a CPU the passes are called again."""
    return capture_passes(device) if device.type == "cuda" else GraphCapture(CallAgain)


def cycle_figures(options: KernelOptions) -> list[Figure]:
    """Return figures of plain decoding and of a cycle with each head, per shape; ranker heads come first."""
    pairs = ShapePairs(options.device)

    def measure(shape: ModelShape, setting: BenchHead | None, name: str) -> dict[str, Any]:
        return {"name": name, **_measured(pairs.of(shape), setting, options)}

    return [
        (name, partial(measure, shape, setting, name))
        for shape in map(SHAPES.__getitem__, options.shapes)
        for setting in (None, *sorted(head_settings(shape), key=lambda one: one.kind != "ranker"))
        for name in [f"{shape.name}: " + ("plain" if setting is None else f"cycle, {label_of(setting)}")]
    ]


def _measured(pair: Pair, setting: BenchHead | None, options: KernelOptions) -> dict[str, Any]:
    """Time a decoding method with graphs, without graphs and ahead, and compare with its byte floor."""
    assert options.ceilings is not None
    moved = pair.plain_bytes() if setting is None else pair.cycle_bytes(setting)
    floor = moved / options.ceilings.copy
    count = max(8, int(options.measure * 1000)) if options.device != "cpu" else 3
    graphs = cycle_times(pair, setting, count, new_capture(pair.target.device))
    ahead = cycle_times(pair, setting, count, new_capture(pair.target.device), ahead=True)
    plainly = cycle_times(pair, setting, -(-count // 2), None)
    return {
        "model": pair.shape.name,
        "by": "one token a step" if setting is None else label_of(setting),
        "ms": median(graphs) * 1e3,
        "ahead_ms": median(ahead) * 1e3,
        "without_ms": median(plainly) * 1e3,
        "cycles": len(graphs),
        "prefix": pair.shape.prefix,
        "nodes": 1 if setting is None else pair.shape.nodes,
        "bytes": moved,
        "floor_ms": floor * 1e3,
        "share": floor / median(graphs),
    }


def cycle_times(
    pair: Pair, setting: BenchHead | None, count: int, capture: GraphCapture | None, *, ahead: bool = False
) -> list[float]:
    """Measure host seconds between committed cycles; each ends when the host reads the accepted count.

    ``ahead``: see ``Decoder``; a head that reads the text still waits for it.
    """
    proposer = None if setting is None else pair.proposer(setting)
    levels = 0 if setting is None else pair.shape.levels
    most = (levels + 1) * (count + _WARM + 2)
    decoder = Decoder(pair.target, proposer, pair.shape.prefix + most, wrap=capture, ahead=ahead)
    stream = decoder.stream(Request(pair.prompt(), most, ()), Generation())
    for _ in range(_WARM):
        next(stream)
    marks = [time.perf_counter()]
    for _ in range(count):
        next(stream)
        marks.append(time.perf_counter())
    stream.close()  # type: ignore[attr-defined]
    return [after - before for before, after in pairwise(marks)]
