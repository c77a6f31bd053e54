"""Several requests side by side: each gives what it gives alone, whatever the others do."""

from __future__ import annotations

import itertools

from tests.decode.drafting import PROMPT, SHAPES, Pair
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, Request

PROMPTS = [PROMPT, [60, 2], [(7 * i + 3) % 67 for i in range(31)], PROMPT[::-1], [5] * 9]


def alone(pair: Pair, prompt: list[int], count: int = 40) -> list[int]:
    return Decoder(pair.lean).generate(prompt, max_new_tokens=count, stop_ids=()).token_ids


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
