"""Whole decode cycles of real shapes with random weights, against the bytes that they must read.

A cycle is what the engine pays for: draft loop, verification, commit, and the host that reads the accepted count. Its
time does not depend on how much is accepted, so that tokens a second follow for accepted lengths measured elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..decode.engine import Decoder
from ..decode.graphs import GraphCapture, capture_passes
from ..decode.request import Generation, Request
from .bench_cycle_models import Pair, for_each_pair, head_settings, label_of
from .bench_kernels_parts import Journal, Options
from .op_benches.heads_build import HeadSetting
from .op_benches.types import SHAPES, Shape

_WARM = 4  # cycles before the clock counts: captures, first allocations

# (shape, kind of head) -> accepted lengths that others or other models had, with where from.
ACCEPTED: dict[tuple[str, str], tuple[tuple[float, str], ...]] = {
    ("qwen3-8b", "full"): ((5.26, "Qwen3-8B, full head, SpecVocab's paper"),),
    ("qwen3-8b", "static"): (
        (4.78, "Qwen3-8B, EAGLE-3's reduced vocabulary, SpecVocab's paper"),
        (4.69, "Qwen3-8B, FR-Spec's vocabulary, SpecVocab's paper"),
    ),
    ("qwen3-8b", "ranker"): ((5.01, "Qwen3-8B, SpecVocab's paper"),),
}
# No other model's accepted length is known with absolute figures: this one only shows what a length would give.
ANYWHERE = (4.33, "bitllama-3M, tree of 30 nodes, docs/performance.md")


class CallAgain:
    """A recorder for machines without CUDA graphs: a replay runs the pass again."""

    def warm_up(self, run: Callable[[], Any]) -> None:
        """Run the pass once."""
        run()

    def record(self, function: Callable[..., Any], inputs: Sequence[Tensor | None]) -> Callable[[], Any]:
        """The pass over these inputs, to be called again."""
        return lambda: function(*inputs)


def new_capture(device: torch.device) -> GraphCapture:
    """Whole passes as graphs; on a CPU the same passes, called."""
    return capture_passes(device) if device.type == "cuda" else GraphCapture(CallAgain)


def cycle_part(options: Options, journal: Journal) -> None:
    """Plain decoding and speculative cycles of every shape."""
    for_each_pair(options, journal, _names, _measure_all)


def _measure_all(pair: Pair, options: Options, journal: Journal) -> None:
    """Plain decoding, then a cycle with each head."""
    shape = pair.shape
    plain: dict[str, Any] = {}

    def measure_plain() -> dict[str, Any]:
        plain.update(_measured(pair, None, options))
        return plain

    def measure(setting: HeadSetting) -> dict[str, Any]:
        row = _measured(pair, setting, options)
        return row | {"follows": follows(shape.name, setting.kind, row["ms"], plain.get("ms"))}

    journal.measure(_name(shape, None), measure_plain)
    for setting in head_settings(shape):
        journal.measure(_name(shape, setting), partial(measure, setting))


def cycle_names(options: Options) -> list[str]:
    """Figures of this part."""
    return [name for shape in options.shapes for name in _names(SHAPES[shape])]


def _names(shape: Shape) -> list[str]:
    return [_name(shape, setting) for setting in (None, *head_settings(shape))]


def _name(shape: Shape, setting: HeadSetting | None) -> str:
    return f"{shape.name}: " + ("plain" if setting is None else f"cycle, {label_of(setting)}")


def _measured(pair: Pair, setting: HeadSetting | None, options: Options) -> dict[str, Any]:
    """One kind of decoding with and without graphs, beside the bytes that it must read."""
    assert options.ceilings is not None
    moved = pair.plain_bytes() if setting is None else pair.cycle_bytes(setting)
    floor = moved / options.ceilings.copy
    count = max(8, int(options.measure * 1000)) if options.device != "cpu" else 3
    graphs = cycle_times(pair, setting, count, new_capture(pair.target.device))
    plainly = cycle_times(pair, setting, -(-count // 2), None)
    ordered = sorted(graphs)
    return {
        "name": _name(pair.shape, setting),
        "model": pair.shape.name,
        "by": "one token a step" if setting is None else label_of(setting),
        "ms": median(graphs) * 1e3,
        "low_ms": ordered[len(ordered) // 10] * 1e3,
        "high_ms": ordered[-1 - len(ordered) // 10] * 1e3,
        "without_ms": median(plainly) * 1e3,
        "cycles": len(graphs),
        "prefix": pair.shape.prefix,
        "nodes": 1 if setting is None else pair.shape.nodes,
        "bytes": moved,
        "floor_ms": floor * 1e3,
        "share": floor / median(graphs),
    }


def cycle_times(
    pair: Pair, setting: HeadSetting | None, count: int, capture: GraphCapture | None
) -> list[float]:
    """Host seconds from one committed cycle to the next; each ends with the host reading what was accepted."""
    proposer = None if setting is None else pair.proposer(setting)
    levels = 0 if setting is None else pair.shape.levels
    most = (levels + 1) * (count + _WARM + 2)
    decoder = Decoder(pair.target, proposer, pair.shape.prefix + most, wrap=capture)
    stream = decoder.stream(Request(pair.prompt(), most, ()), Generation())
    times: list[float] = []
    for _ in range(_WARM):
        next(stream)
    last = time.perf_counter()
    for _ in range(count):
        next(stream)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    stream.close()  # type: ignore[attr-defined]
    return times


def follows(model: str, kind: str, cycle_ms: float, plain_ms: float | None) -> list[dict[str, Any]]:
    """Tokens a second for accepted lengths measured elsewhere, and how many times plain decoding's.

    Args:
        model: name of a shape.
        kind: of the draft head.
        cycle_ms: of one cycle.
        plain_ms: of one step of plain decoding; None where it is not known.
    """
    return [
        {
            "accepted": accepted,
            "source": source,
            "tokens_per_s": accepted / cycle_ms * 1e3,
            "speedup": None if plain_ms is None else accepted / cycle_ms * plain_ms,
        }
        for accepted, source in (*ACCEPTED.get((model, kind), ()), ANYWHERE)
    ]
