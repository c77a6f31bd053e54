"""Where drafting's time goes: layer, head, softmax and top-k, tree, launch gaps (FR-Spec, figure 6).

The whole draft loop is timed as a graph and without one; its parts as graphs of their own. What the parts leave of the
loop is growing the tree and gathering states; what the loop without a graph takes longer is launching.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..decode.draft import Frontier
from ..decode.engine import Decoder
from ..decode.proposer_model import ModelProposer
from ..decode.request import Generation, Request
from ..models.heads import DraftHead, DraftState
from ..ops.draft_topk import draft_topk
from .bench_cycle import new_capture
from .bench_cycle_models import Pair, for_each_pair, head_settings, label_of
from .bench_kernels_parts import Journal, Options
from .bench_kernels_timing import Protocol, Timing, time_calls
from .op_benches.heads_build import HeadSetting
from .op_benches.types import SHAPES, Shape


def drafting_names(options: Options) -> list[str]:
    """Figures of this part."""
    return [name for shape in options.shapes for name in _names(SHAPES[shape])]


def _names(shape: Shape) -> list[str]:
    return [_name(shape, setting) for setting in head_settings(shape)]


def _name(shape: Shape, setting: HeadSetting) -> str:
    return f"{shape.name}: drafting, {label_of(setting)}"


def drafting_part(options: Options, journal: Journal) -> None:
    """The draft loop of every shape with several heads."""
    for_each_pair(options, journal, _names, _measure_all)


def _measure_all(pair: Pair, options: Options, journal: Journal) -> None:
    for setting in head_settings(pair.shape):
        journal.measure(_name(pair.shape, setting), partial(breakdown, pair, setting, options.protocol()))


@torch.inference_mode()
def breakdown(pair: Pair, setting: HeadSetting, protocol: Protocol) -> dict[str, Any]:
    """Microseconds of one drafting and of its parts.

    Returns:
        ``with_us``, ``without_us`` (graphs), ``parts``: ``layer``, ``head`` (logits, with whatever chooses their
        columns), ``softmax and top-k``, ``tree``, ``launch gaps``.
    """
    proposer = _prepared(pair, setting)
    roots = torch.zeros(1, dtype=torch.int64, device=pair.target.device)
    plan, depth = pair.plan(), pair.shape.depth

    def loop() -> Any:
        return proposer.draft(roots, plan).tokens

    with_graph = time_calls([loop], protocol)
    without = time_calls([loop], protocol, graph=False)
    layer = depth * _layer(proposer, pair, protocol).seconds
    first, further = (_head(proposer.head, pair, rows, protocol) for rows in (1, pair.shape.topk))
    both = first[0] + depth * further[0]
    choosing = first[1] + depth * further[1]
    parts = {
        "layer": layer,
        "head": both - choosing,
        "softmax and top-k": choosing,
        "tree": with_graph.seconds - layer - both,
        "launch gaps": without.seconds - with_graph.seconds,
    }
    return {
        "name": _name(pair.shape, setting),
        "model": pair.shape.name,
        "with_us": with_graph.seconds * 1e6,
        "without_us": without.seconds * 1e6,
        "method": with_graph.method,
        "problem": with_graph.problem,
        "noise": with_graph.noise,
        "parts": {name: seconds * 1e6 for name, seconds in parts.items()},
    }


def _prepared(pair: Pair, setting: HeadSetting) -> ModelProposer:
    """A proposer that has read a prompt and stands before a drafting."""
    proposer = pair.proposer(setting)
    room = 4 * pair.shape.nodes
    capture = new_capture(pair.target.device)
    decoder = Decoder(pair.target, proposer, pair.shape.prefix + room, wrap=capture)
    stream = decoder.stream(Request(pair.prompt(), room, ()), Generation())
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    proposer.prepare()
    return proposer


def _layer(proposer: ModelProposer, pair: Pair, protocol: Protocol) -> Timing:
    """One expansion of a full frontier: the drafter's layer and norm, its keys written, what it sees."""
    backend, width, device = proposer.backend, pair.shape.topk, pair.target.device
    roots = torch.zeros(1, dtype=torch.int64, device=device)
    step = backend.start_in(roots, backend.view())  # type: ignore[attr-defined]
    tokens = torch.arange(width, device=device)[None]  # (1, W)
    frontier = Frontier(tokens, torch.zeros_like(tokens))
    return time_calls([lambda: backend.expand(frontier, step, 1).hidden], protocol)


def _head(head: DraftHead, pair: Pair, rows: int, protocol: Protocol) -> tuple[float, float]:
    """Seconds of a draft head's answer for some rows, and of the softmax and top-k in it."""
    device, k = pair.target.device, pair.shape.topk
    random = torch.Generator(device=device).manual_seed(rows)
    size = (rows, pair.shape.hidden)
    hidden, previous = (
        torch.randn(size, generator=random, device=device).to(pair.target.dtype) for _ in range(2)
    )
    context = None
    if head.context_size:
        context = torch.arange(head.context_size, device=device)[None]
    tokens = torch.randint(pair.shape.vocab, (rows,), generator=random, device=device)
    state = DraftState(1, tokens, previous, 1, context)
    whole = time_calls([lambda: head.topk(hidden, k, state)], protocol)
    logits, ids = head.scores(hidden, k, state)
    if ids.dim() == 1:  # one dense product, whose logits are in the weights' dtype
        logits = logits.to(hidden.dtype)
    logits, ids = logits.contiguous(), ids.contiguous()
    choosing = time_calls([lambda: draft_topk(logits, k, ids=ids)], protocol)
    return whole.seconds, choosing.seconds
