"""Parts of captured cycles: each is captured alone and replayed, since a whole cycle is one graph without a seam.

What belongs to no part (committing, the host that reads the accepted count, what overlaps) is left to the fitted rest.
On a CPU the same calls are made under a host clock, so that every line is proved without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...bench.kernels.cycle import begin_drafting, layer_call, record_drafting, unprepared
from ...bench.kernels.timing import Protocol, time_calls
from ...decode.engine import Decoder
from .parts import CycleRun, CycleRunner
from .records import PartKey, place_of
from .table import head_family

SECONDS = 0.02  # for the repeats of one part


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
    room = 4 * (proposer.plan.nodes + proposer.plan.levels)
    tokens = max(1, min(run.prefix, bench.model.config.max_positions - room))
    capture = None if bench.capture is None else bench.capture()
    decoder = Decoder(bench.model, proposer, rows=run.batch, wrap=capture)
    if (cycle := decoder.device_cycle) is None:
        return []
    begin_drafting(decoder, [bench.prompt(tokens, row) for row in range(run.batch)], room)
    protocol = Protocol(bench.model.device, seconds=seconds)
    roots = torch.zeros(run.batch, dtype=torch.int64, device=bench.model.device)
    drafted, asked = record_drafting(proposer, roots)

    def timed(call: Callable[[], Any]) -> float:
        return time_calls([call], protocol).seconds

    def again(place: int) -> float:
        hidden, k, state = asked[place]
        return timed(lambda: proposer.head.topk(hidden, k, unprepared(state)))

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
