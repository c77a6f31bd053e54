"""Requests through captured passes and without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.decode.trace_recorder import TraceRecorder
from vocabforge.decode.accelerate.device_cycle import DeviceCycle
from vocabforge.decode.accelerate.graphs import GraphCapture
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, Request, SamplingParams
from vocabforge.models.lean.model import LeanModel

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
    return [
        (
            one.token_ids,
            one.accept_lengths,
            one.finish,
            one.drafted_by_depth,
            one.accepted_by_depth,
            one.verified,
        )
        for one in results
    ]


def traced() -> GraphCapture:
    return GraphCapture(TraceRecorder)


def same_as_eager(
    make: Callable[[], Parts], asked: Sequence[Request], *, whole: bool = True, **options: Any
) -> tuple[GraphCapture, list[tuple[Any, ...]]]:
    """Captured passes give what eager ones do, request by request; the recordings and the outcome.

    Args:
        make: gives target and proposer, new ones each time.
        whole: whole cycles must have been captured; else parts of them.
    """
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
        for ours, theirs in zip(decoder.proposer.device_state(), eager.proposer.device_state()):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    return capture, found
