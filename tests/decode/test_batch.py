"""Several requests side by side: each gives what it gives alone, whatever the others do."""

from __future__ import annotations

import itertools

import pytest

from tests.decode.drafting import PROMPT, SHAPES, Pair, check_figures, knowing
from vocabforge.core.errors import UsageError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, Request, SamplingParams

PROMPTS = [PROMPT, [60, 2], [(7 * i + 3) % 67 for i in range(31)], PROMPT[::-1], [5] * 9]


def alone(pair: Pair, prompt: list[int], count: int = 40) -> list[int]:
    return Decoder(pair.lean).generate(prompt, max_new_tokens=count, stop_ids=()).token_ids


@pytest.mark.parametrize("case", ["llama", "mistral-window", "qwen3-bias-window"])
@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_rows_of_different_accepted_lengths_give_what_they_give_alone(
    pairs: dict[str, Pair], case: str, shape: str
) -> None:
    pair = pairs[case]
    expected = [alone(pair, prompt) for prompt in PROMPTS[:3]]
    truths = [prompt + tokens for prompt, tokens in zip(PROMPTS, expected)]
    decoder = Decoder(pair.lean, rows=3)
    for seed in range(2):
        proposer = knowing(pair.proposer(SHAPES[shape]), *truths, seed=seed)
        decoder = Decoder(pair.lean, proposer, rows=3)
        for _ in range(2):  # nothing is remembered of the first batch
            results = decoder.generate_batch([Request(prompt, 40) for prompt in PROMPTS[:3]])
            assert [result.token_ids for result in results] == expected
            assert len({tuple(result.accept_lengths) for result in results}) == 3, "rows must differ"
            for prompt, result in zip(PROMPTS, results):
                assert max(result.accept_lengths) > 1
                check_figures(result, decoder, prompt)


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


def test_what_a_row_gives_does_not_depend_on_its_company(pair: Pair) -> None:
    """Sampling: the same seed gives the same tokens alone, in company, and in other company."""
    sampling = [SamplingParams(1.0, seed=seed) for seed in range(5)]
    decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"]), rows=3)
    single = Decoder(pair.lean, pair.proposer(SHAPES["tree"]))
    requests = [Request(prompt, 25, (), one) for prompt, one in zip(PROMPTS, sampling)]
    expected = [single.generate_batch([request])[0].token_ids for request in requests]
    assert len({tuple(tokens) for tokens in expected}) == 5
    for order in ([0, 1, 2, 3, 4], [4, 2, 0], [3, 0, 1, 2, 4]):
        results = decoder.generate_batch([requests[i] for i in order])
        assert [result.token_ids for result in results] == [expected[i] for i in order]


def test_requests_of_a_batch_may_differ_in_everything(pair: Pair) -> None:
    greedy = alone(pair, PROMPT)
    stop = greedy[7]
    mixed = [
        Request(PROMPT, 30, {stop}),
        Request(PROMPT, 30, (), SamplingParams(0.8, top_k=5, seed=3)),
        Request(PROMPT, 30, (), SamplingParams(repetition_penalty=1.5)),
        Request(PROMPT, 500),
    ]
    single = [Decoder(pair.lean, pair.proposer(SHAPES["tree"])).generate_batch([one])[0] for one in mixed]
    together = Decoder(pair.lean, pair.proposer(SHAPES["tree"]), rows=4).generate_batch(mixed)
    for one, other in zip(single, together):
        assert (one.token_ids, one.finish) == (other.token_ids, other.finish)
    assert single[0].token_ids == greedy[: greedy.index(stop) + 1]
    assert len({tuple(one.token_ids[:8]) for one in single[1:]}) == 3
    assert single[3].finish == "cache"


def test_streams_name_the_request_and_lose_nothing(pair: Pair) -> None:
    requests = [Request(prompt, 20) for prompt in PROMPTS]
    results = [Generation() for _ in requests]
    pieces: dict[int, list[int]] = {}
    decoder = Decoder(pair.lean, pair.proposer(SHAPES["tree"]), rows=2)
    for number, tokens in decoder.stream_batch(requests, results):
        pieces.setdefault(number, []).extend(tokens)
        assert pieces[number] == results[number].token_ids
    assert [pieces[number] for number in range(5)] == [alone(pair, prompt, 20) for prompt in PROMPTS]


def test_a_decoder_needs_a_row(pair: Pair) -> None:
    with pytest.raises(UsageError, match="needs a row"):
        Decoder(pair.lean, rows=0)
