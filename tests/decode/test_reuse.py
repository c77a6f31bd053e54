"""A decoder after what went wrong: abandoned streams, errors, company it does not know of."""

from __future__ import annotations

import pytest
import torch

from tests.decode.drafting import PROMPT, SHAPES, Pair, knowing
from vocabforge.core.errors import DataError, UsageError
from vocabforge.decode.build.spec import MethodSpec
from vocabforge.decode.control.control import CycleFigures
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.interface import PLAIN_PLAN, Plan
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Generation, Request

OTHER = [60, 2, 33]


def alone(pair: Pair, prompt: list[int], count: int = 30) -> list[int]:
    return Decoder(pair.lean).generate(prompt, max_new_tokens=count, stop_ids=()).token_ids


def test_a_stream_that_another_request_interrupts_ends_with_an_error(pair: Pair) -> None:
    decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"]))
    stream = decoder.stream(Request(PROMPT, 30), Generation())
    next(stream)
    assert decoder.generate(OTHER, max_new_tokens=30, stop_ids=()).token_ids == alone(pair, OTHER)
    with pytest.raises(UsageError, match="another request began on this decoder"):
        next(stream)
    assert decoder.generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids == alone(pair, PROMPT)


def test_an_abandoned_stream_leaves_nothing(pair: Pair) -> None:
    """Two rows reach the context's end in one cycle; the consumer leaves after the first of them."""
    expected = alone(pair, PROMPT, 26)
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected), 32, rows=2)
    results = [Generation(), Generation()]
    for number, _ in decoder.stream_batch([Request(PROMPT, 99)] * 2, results):
        if results[number].finish == "cache":
            break
    for _ in range(2):
        assert decoder.generate(PROMPT, max_new_tokens=99, stop_ids=()).token_ids == expected
    with pytest.raises(UsageError, match="every request needs a result"):
        next(decoder.stream_batch([Request(PROMPT, 3)], []))


@pytest.mark.parametrize("name", ["plain", "eagle3", "draft-model", "early-exit"])
def test_an_error_in_the_middle_leaves_nothing(pair: Pair, name: str) -> None:
    proposer = None
    if name == "eagle3":
        proposer = pair.proposer(SHAPES["tree"])
    elif name != "plain":
        drafter = pair.lean if name == "draft-model" else None
        proposer = make_proposer(
            name,
            ProposerParts(
                pair.lean,
                drafter,
                None,
                MethodSpec(tree="dynamic", depth=2, topk=3, total_nodes=9),
            ),
        )
    decoder = Decoder(pair.lean, proposer, rows=2, control=PlainFirst(proposer.plan) if proposer else "fixed")
    logits, calls = pair.lean.logits, [0]

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return logits(hidden) * (float("nan") if calls[0] == 6 else 1.0)

    pair.lean.logits = broken  # type: ignore[method-assign]
    try:
        with pytest.raises(DataError, match="the target's logits hold no largest number"):
            decoder.generate_batch([Request(PROMPT, 30), Request(OTHER, 30)])
    finally:
        del pair.lean.logits  # the method is the class's
    results = decoder.generate_batch([Request(OTHER, 30), Request(PROMPT, 30)])
    assert [one.token_ids for one in results] == [alone(pair, OTHER), alone(pair, PROMPT)]


class PlainFirst:
    """Drafts in cycles 3 and 4, plainly in the first two after each ``begin`` and in the fifth."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._cycle = plan, 0

    def begin(self) -> None:
        self._cycle = 0

    def plan(self, ready: object = None) -> Plan:
        self._cycle += 1
        return self._plan if self._cycle % 5 in (3, 4) else PLAIN_PLAN

    def observe(self, cycle: CycleFigures) -> None:
        pass


@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_two_decoders_may_take_turns_with_one_proposer(pair: Pair, shape: str) -> None:
    proposer = pair.proposer(SHAPES[shape])
    first, second = Decoder(pair.lean, proposer, rows=3), Decoder(pair.lean, proposer, 40)
    for decoder in (first, second, first):
        results = decoder.generate_batch([Request(prompt, 20) for prompt in (PROMPT, OTHER)])
        assert [one.token_ids for one in results] == [alone(pair, PROMPT, 20), alone(pair, OTHER, 20)]


def test_a_stream_whose_proposer_another_decoder_takes_ends_with_an_error(pair: Pair) -> None:
    proposer = pair.proposer(SHAPES["tree"])
    first, second = Decoder(pair.lean, proposer), Decoder(pair.lean, proposer, rows=2)
    stream = first.stream(Request(PROMPT, 30), Generation())
    next(stream)
    assert second.generate(OTHER, max_new_tokens=30, stop_ids=()).token_ids == alone(pair, OTHER)
    with pytest.raises(UsageError, match="or with its proposer"):
        next(stream)
    assert first.generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids == alone(pair, PROMPT)


def test_a_damaged_draft_state_costs_speed_alone(pair: Pair) -> None:
    proposer = pair.proposer(SHAPES["tree"])
    decoder = Decoder(pair.lean, proposer)
    read, calls = pair.drafter.read, [0]

    def damaged(g: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        hidden = read(g).clone()
        if calls[0] % 3 == 0:
            hidden[:, 0] = float("nan")
        return hidden

    pair.drafter.read = damaged  # type: ignore[method-assign]
    try:
        assert decoder.generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids == alone(pair, PROMPT)
    finally:
        del pair.drafter.read
