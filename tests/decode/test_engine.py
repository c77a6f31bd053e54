"""The decode loop: whatever is drafted, the output is the target's own; caches, streams, batches, errors, devices."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.decode.drafting import FAMILY_CASES, PROMPT, SHAPES, Pair, check_figures, eagle, hf_greedy, knowing
from tests.decode.node_support import Alternating
from tests.worlds import tiny_drafter, tiny_target
from vocabforge.core.errors import DataError, MismatchError, UsageError
from vocabforge.decode import caches, target_side
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import Generation, Request
from vocabforge.decode.spec import MethodSpec
from vocabforge.decode.tree import TreeSettings
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.heads.registry import FullHead
from vocabforge.models.target.hf import HFTarget

OTHER = [60, 2, 33]
PROMPTS = [PROMPT, [60, 2], [(7 * i + 3) % 67 for i in range(31)], PROMPT[::-1], [5] * 9]


def alone(pair: Pair, prompt: list[int], count: int = 30) -> list[int]:
    return Decoder(pair.lean).generate(prompt, max_new_tokens=count, stop_ids=()).token_ids


@pytest.mark.parametrize("case", FAMILY_CASES)
def test_output_is_hugging_faces_greedy_output(pairs: dict[str, Pair], case: str) -> None:
    pair = pairs[case]
    expected = hf_greedy(pair.hf, PROMPT, 40)
    plain = Decoder(pair.lean).generate(PROMPT, max_new_tokens=40, stop_ids=())
    assert plain.token_ids == expected
    assert plain.accept_lengths == [1] * 40
    assert plain.target_forwards == 40
    for number, (name, shape) in enumerate(SHAPES.items()):
        for restricted in (False, True):
            decoder = Decoder(
                pair.lean,
                knowing(pair.proposer(shape, restricted=restricted), PROMPT + expected, seed=number),
            )
            result = decoder.generate(PROMPT, max_new_tokens=40, stop_ids=())
            assert result.token_ids == expected, (name, restricted)
            assert result.finish == "length"
            assert max(result.accept_lengths) > 1, "the test needs accepted drafts"
            check_figures(result, decoder, PROMPT)
            assert sum(result.accepted_by_depth) > 0


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 50])
def test_prompts_over_any_number_of_prefill_chunks(pair, monkeypatch, length):
    prompt = [(7 * i + 3) % 67 for i in range(length)]
    expected = hf_greedy(pair.hf, prompt, 20)
    monkeypatch.setattr(target_side, "PREFILL_CHUNK", 8)
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), prompt + expected))
    result = decoder.generate(prompt, max_new_tokens=20, stop_ids=())
    assert result.token_ids == expected
    check_figures(result, decoder, prompt)
    assert Decoder(pair.lean).generate(prompt, max_new_tokens=20, stop_ids=()).token_ids == expected


@pytest.mark.parametrize("shape", ["chain", "tree", "wide"])
def test_a_full_context_ends_by_cache(pair: Pair, shape: str) -> None:
    """The drafter's rotary table ends with the target's context; padding and trees go beyond it."""
    config = dataclasses.replace(pair.drafter.config, max_position_embeddings=128)
    drafter = Eagle3Drafter(config, pair.drafter.embedding, pair.drafter.target_head)
    drafter.load_state_dict(pair.drafter.state_dict())
    prompt = [(5 * i + 1) % 67 for i in range(100)]
    expected = Decoder(pair.lean).generate(prompt, max_new_tokens=500, stop_ids=())
    assert (len(expected.token_ids), expected.finish) == (28, "cache")
    proposer = eagle(drafter, FullHead(drafter.head_weight), SHAPES[shape], 128)
    for seed in range(3):
        decoder = Decoder(pair.lean, knowing(proposer, prompt + expected.token_ids, seed=seed))
        result = decoder.generate(prompt, max_new_tokens=500, stop_ids=())
        assert (result.token_ids, result.finish) == (expected.token_ids, "cache")
    exact = decoder.generate(prompt, max_new_tokens=28, stop_ids=())
    assert (exact.token_ids, exact.finish) == (expected.token_ids, "length")


def test_more_requests_than_rows_of_any_length(pair: Pair) -> None:
    counts = [3, 40, 1, 17, 25]
    expected = [alone(pair, prompt, count) for prompt, count in zip(PROMPTS, counts)]
    requests = [Request(prompt, count) for prompt, count in zip(PROMPTS, counts)]
    for rows, proposer in itertools.product((1, 2, 4, 7), (None, "tree")):
        decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"]) if proposer else None, rows=rows)
        results = decoder.generate_batch(requests)
        assert [result.token_ids for result in results] == expected, (rows, proposer)
        assert [result.finish for result in results] == ["length"] * 5
    assert decoder.generate_batch([]) == []


def test_streams_name_the_request_and_lose_nothing(pair: Pair) -> None:
    requests = [Request(prompt, 20) for prompt in PROMPTS]
    expected = [alone(pair, prompt, 20) for prompt in PROMPTS]
    results = [Generation() for _ in requests]
    pieces: dict[int, list[list[int]]] = {}
    truths = [prompt + text for prompt, text in zip(PROMPTS, expected)]
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), *truths), rows=2)
    for number, tokens in decoder.stream_batch(requests, results):
        pieces.setdefault(number, []).append(tokens)
        assert list(itertools.chain(*pieces[number])) == results[number].token_ids, "filled along the way"
    for number, text in enumerate(expected):
        assert list(itertools.chain(*pieces[number])) == text
        assert len(pieces[number][0]) == 1
        assert 1 < len(pieces[number]) < 20
        assert all(pieces[number])


@pytest.mark.parametrize("other", [False, True])
def test_a_stream_that_another_request_interrupts_ends_with_an_error(pair: Pair, other: bool) -> None:
    """A request on the same decoder, or on another one with its proposer."""
    proposer = pair.proposer(SHAPES["tree"])
    decoder = Decoder(pair.lean, proposer)
    second = Decoder(pair.lean, proposer, rows=2) if other else decoder
    stream = decoder.stream(Request(PROMPT, 30), Generation())
    next(stream)
    assert second.generate(OTHER, max_new_tokens=30, stop_ids=()).token_ids == alone(pair, OTHER)
    with pytest.raises(UsageError, match=r"another request began on this decoder.*or with its proposer"):
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
                pair.lean, drafter, None, MethodSpec(tree="dynamic", depth=2, topk=3, total_nodes=9)
            ),
        )
    control = Alternating(proposer.plans(), (False, False, True, True, False)) if proposer else "fixed"
    decoder = Decoder(pair.lean, proposer, rows=2, control=control)
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


def test_caches_grow_with_the_request_and_keep_the_output(pair, monkeypatch):
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=500, stop_ids=()).token_ids
    monkeypatch.setattr(caches, "FIRST_POSITIONS", 16)
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected))
    sizes = []
    for count in (5, 50, 5, 100):
        assert decoder.generate(PROMPT, max_new_tokens=count, stop_ids=()).token_ids == expected[:count]
        sizes.append(decoder._side.cache.capacity - 17)
    assert sizes == [16, 64, 64, 128]
    assert not decoder._side.cache.k.is_inference()
    assert decoder.generate(PROMPT, max_new_tokens=10**9, stop_ids=()).finish == "cache"
    assert decoder._side.cache.capacity == 128 + 17, "the target's limit"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"prompt_ids": []}, "does not fit the context"),
        ({"prompt_ids": [1] * 128}, "does not fit the context"),
        ({"prompt_ids": [1, 67]}, "token ids that the target does not have"),
        ({"prompt_ids": [-1, 3]}, "token ids that the target does not have"),
        ({"max_new_tokens": 0}, "nothing is to be generated"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
    ],
)
def test_mistakes_are_told(pair: Pair, arguments: dict[str, Any], words: str) -> None:
    given = {"prompt_ids": PROMPT, "max_new_tokens": 4, "stop_ids": (), **arguments}
    with pytest.raises(UsageError, match=words):
        Decoder(pair.lean).generate(given.pop("prompt_ids"), **given)


def test_parts_that_do_not_fit_are_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not fit the target"):
        Decoder(pair.lean, context=129)
    with pytest.raises(UsageError, match="wider than the draft vocabulary"):
        pair.proposer(TreeSettings(30, 0, 31), restricted=True)
    deep = tiny_drafter(HFTarget.load(tiny_target(tmp_path, vocab_size=67, num_hidden_layers=9)))
    assert max(deep.config.aux_layers) == 5
    with pytest.raises(MismatchError, match="layers that the target does not have"):
        Decoder(pair.lean, eagle(deep, FullHead(deep.head_weight), SHAPES["chain"], 16))


class NoDefaultDevice(TorchFunctionMode):
    """Fails where a tensor is made without naming its device: on an accelerator it would lie on the host."""

    MAKERS = frozenset(
        getattr(torch, name)
        for name in ("tensor", "arange", "zeros", "ones", "full", "empty", "eye", "randn")
    )

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in self.MAKERS:
            assert "device" in kwargs, f"{function.__name__}{args} names no device"
        return function(*args, **kwargs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_tensor_of_the_loop_is_made_on_the_default_device(pairs, temperature):
    pair = pairs["mistral-window"]
    pair.drafter.ensure_positions(500)  # made on the host and moved
    with NoDefaultDevice():
        for proposer in (None, pair.proposer(SHAPES["tree"]), pair.proposer(SHAPES["tree"], restricted=True)):
            decoder = Decoder(pair.lean, proposer)
            decoder.generate(PROMPT, max_new_tokens=6, stop_ids=(), temperature=temperature)
