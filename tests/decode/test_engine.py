"""The decode loop: whatever is drafted, the output is the target's own."""

from __future__ import annotations

import dataclasses

import pytest

from tests.decode.drafting import FAMILY_CASES, PROMPT, SHAPES, Pair, check_figures, eagle, hf_greedy, knowing
from vocabforge.decode import target_side
from vocabforge.decode.engine import Decoder
from vocabforge.models.drafters.eagle3 import Eagle3Drafter
from vocabforge.models.heads.registry import FullHead


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
