"""Parts of captured cycles: each is captured alone and replayed, since a whole cycle is one graph without a seam.

What belongs to no part (committing, the host that reads the accepted count, what overlaps) is left to the fitted rest.
On a CPU the same calls are made under a host clock, so that every line is proved without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...bench.kernels.cycle import layer_call
from ...bench.kernels.timing import Protocol, time_calls
from ...decode.accelerate.device_cycle import DeviceCycle
from ...decode.engine import Decoder
from ...decode.proposers.model import ModelProposer
from ...decode.request import Generation, Request
from ...models.heads.registry import DraftHead, DraftState
from .parts import CycleRun, CycleRunner
from .records import PartKey, place_of
from .table import head_family

SECONDS = 0.02  # for the repeats of one part


class _Recorder:
    """A head that keeps what it is asked: hidden rows, k, state."""

    def __init__(self, head: DraftHead) -> None:
        self._head = head
        self.asked: list[tuple[Tensor, int, DraftState | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._head, name)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        self.asked.append((hidden.clone(), k, state))
        return self._head.topk(hidden, k, state)


@torch.inference_mode()
def captured_parts(
    bench: CycleRunner, run: CycleRun, *, seconds: float = SECONDS
) -> list[tuple[PartKey, float]]:
    """Seconds of the parts of a cycle that is captured whole; nothing if it cannot be.

    Args:
        seconds: for the repeats of one part.
    """
    assert run.tree is not None
    tree, setting, proposer = run.tree, bench.setting(run), bench.proposer(run.head, run.tree)
    cycle = _prepared(bench, run, proposer)
    if cycle is None:
        return []
    protocol = Protocol(bench.model.device, seconds=seconds)
    roots = torch.zeros(run.batch, dtype=torch.int64, device=bench.model.device)
    head = proposer.head
    proposer.head = recorder = _Recorder(head)
    try:
        drafted = proposer.draft(roots, proposer.plan)
    finally:
        proposer.head = head

    def timed(call: Callable[[], Any]) -> float:
        return time_calls([call], protocol).seconds

    def again(place: int) -> float:
        hidden, k, state = recorder.asked[place]
        if state is not None:  # what was prepared was so for one answer
            state = DraftState(state.step, state.tokens, state.previous, state.requests, state.context)
        return timed(lambda: head.topk(hidden, k, state))

    loop = timed(lambda: proposer.draft(roots, proposer.plan).tokens)
    heads = [again(0), again(-1)]
    layer = timed(layer_call(proposer, roots, tree.topk)) if tree.depth else 0.0
    at = setting.sizes
    found = [
        (place_of("verify", tree.kind, **at), timed(lambda: cycle.verify(drafted))),
        (place_of("commit", tree.kind, **at), 0.0),
        (place_of("start", "", **at), 0.0),
    ]
    for step, spent in zip((0, tree.depth)[: tree.levels], heads):
        where = head_family(setting.head.family, first=step == 0)
        found.append((place_of("head", where, **at, scored=setting.head.at(step)), spent))
    if tree.depth:
        found.append((place_of("layer", tree.kind, **at), layer))
    grown = loop - heads[0] - tree.depth * (heads[1] + layer)
    found.append((place_of("choose", tree.kind, **at), max(0.0, grown)))  # with all growing in it
    for position in ("first", "further", "last"):
        found.append((place_of("grow", f"{tree.kind} {position}", **at), 0.0))
    return found


def _prepared(bench: CycleRunner, run: CycleRun, proposer: ModelProposer) -> DeviceCycle | None:
    """The captured cycle of a decoder that has read its prompts and is about to draft."""
    plan, limit = proposer.plan, bench.model.config.max_positions
    room = 4 * (plan.nodes + plan.levels)
    tokens = max(1, min(run.prefix, limit - room))
    capture = None if bench.capture is None else bench.capture()
    decoder = Decoder(bench.model, proposer, rows=run.batch, wrap=capture)
    if (cycle := decoder.device_cycle) is None:
        return None
    requests = [Request(bench.prompt(tokens, row), room, ()) for row in range(run.batch)]
    stream = decoder.stream_batch(requests, [Generation() for _ in requests])
    for _ in requests:
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    proposer.prepare()
    return cycle
