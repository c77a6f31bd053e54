"""The decode loop: whatever is drafted, the output is the target's own; caches, streams, batches, errors, devices."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.decode.drafting import (
    FAMILY_CASES,
    PROMPT,
    SHAPES,
    Pair,
    check_figures,
    eagle,
    hf_greedy,
    knowing,
    make_pair,
)
from tests.decode.node_support import Alternating
from tests.models.lean_support import build
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
from vocabforge.models.lean.model import load_target
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
def test_prompts_over_any_number_of_prefill_chunks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
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


def test_a_stop_token_inside_a_draft_ends_there(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=40, stop_ids=()).token_ids
    cut_inside = 0
    for stop in sorted(set(expected)):
        end = expected.index(stop) + 1
        for seed in range(2):
            decoder = Decoder(
                pair.lean, knowing(pair.proposer(SHAPES["chain"]), PROMPT + expected, seed=seed)
            )
            result = decoder.generate(PROMPT, max_new_tokens=40, stop_ids={stop})
            assert (result.token_ids, result.finish) == (expected[:end], "stop")
            check_figures(result, decoder, PROMPT)
            cut_inside += 1 + sum(result.verified_lengths) > end
    assert cut_inside > 0, "the test needs a stop token that is not the last of its cycle"


def test_the_number_of_new_tokens_is_exact(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=30, stop_ids=()).token_ids
    decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["tree"]), PROMPT + expected))
    for count in range(1, 14):
        result = decoder.generate(PROMPT, max_new_tokens=count, stop_ids=())
        assert (result.token_ids, result.finish) == (expected[:count], "length")
        check_figures(result, decoder, PROMPT)


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
    results = [Generation() for _ in requests]
    pieces: dict[int, list[int]] = {}
    decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"]), rows=2)
    for number, tokens in decoder.stream_batch(requests, results):
        pieces.setdefault(number, []).extend(tokens)
        assert pieces[number] == results[number].token_ids
    assert [pieces[number] for number in range(5)] == [alone(pair, prompt, 20) for prompt in PROMPTS]


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


def test_caches_grow_with_the_request_and_keep_the_output(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_streaming_yields_exactly_the_tokens_of_the_result(pair: Pair) -> None:
    expected = Decoder(pair.lean).generate(PROMPT, max_new_tokens=40, stop_ids=()).token_ids
    for stop in ((), {expected[20]}):
        decoder = Decoder(pair.lean, knowing(pair.proposer(SHAPES["chain"]), PROMPT + expected))
        result = Generation()
        pieces, growing = [], []
        for piece in decoder.stream(Request(PROMPT, 40, stop), result):
            assert piece
            pieces.append(piece)
            growing += piece
            assert growing == result.token_ids, "the result is filled along the way"
        assert len(pieces) > 1
        assert len(pieces[0]) == 1
        check_figures(result, decoder, PROMPT)


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
def test_no_tensor_of_the_loop_is_made_on_the_default_device(
    pairs: dict[str, Pair], temperature: float
) -> None:
    pair = pairs["mistral-window"]
    pair.drafter.ensure_positions(500)  # made on the host and moved
    with NoDefaultDevice():
        for proposer in (None, pair.proposer(SHAPES["tree"]), pair.proposer(SHAPES["tree"], restricted=True)):
            decoder = Decoder(pair.lean, proposer)
            decoder.generate(PROMPT, max_new_tokens=6, stop_ids=(), temperature=temperature)


@pytest.mark.parametrize("restricted", [False, True])
def test_bf16_decodes_in_bf16(tmp_path: Path, restricted: bool) -> None:
    pair = make_pair(tmp_path, build("llama", tmp_path))
    lean = load_target(tmp_path, dtype=torch.bfloat16)
    drafter = (pair.restricted if restricted else pair.drafter).bfloat16()
    proposer = pair.proposer(SHAPES["tree"], restricted=restricted)
    assert proposer.backend._g.dtype == torch.bfloat16
    result = Decoder(lean, proposer).generate(PROMPT, max_new_tokens=30, stop_ids=())
    assert proposer.backend._g.dtype == torch.bfloat16
    assert bool(proposer.backend._g.isfinite().all())
    assert len(result.token_ids) == 30
    if restricted:
        assert drafter.target_ids.dtype == torch.int64
