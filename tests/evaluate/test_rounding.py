from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluate.divergence_support import full_pass, make_target
from vocabforge.core.errors import DataError
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.target_side import TargetSide
from vocabforge.evaluate.identity import rounding
from vocabforge.evaluate.identity.rounding import OutputPosition, ask_target

GREEDY = SamplingParams()
PROMPT = (1, 3, 9, 31, 17, 8, 44, 4)
COMMON = (12, 12, 7, 30, 22, 8, 19, 41, 6, 6, 13)


def ask(target: Any, prompt: Sequence[int] = PROMPT, common: Sequence[int] = COMMON, **sampling: Any) -> Any:
    with torch.inference_mode():
        return ask_target(target, OutputPosition(tuple(prompt), tuple(common)), SamplingParams(**sampling))


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_way_is_exactly_what_plain_decoding_computes(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, window: int | None
) -> None:
    target = make_target(dtype, window=window)
    seen: list[np.ndarray] = []
    look = TargetSide.look

    def watched(self: TargetSide, *given: Any) -> Any:
        output = look(self, *given)
        seen.append(output.logits[0, 0].float().numpy())
        return output

    monkeypatch.setattr(TargetSide, "look", watched)
    made = Decoder(target, context=256).generate(PROMPT, max_new_tokens=12, stop_ids=()).token_ids
    for position in (1, 5, 11):
        evidence = ask(target, common=made[:position])
        assert np.array_equal(evidence.scores, seen[position - 1])
        assert int(evidence.scores.argmax()) == made[position]


def test_every_way_reads_the_same_tokens() -> None:
    for count in (0, 1, 2, 7, 8, 9, 11):
        place = OutputPosition(PROMPT, COMMON[:count])
        ways = rounding._ways(place)
        assert ways[0] == (PROMPT, *((token,) for token in COMMON[:count]))
        assert len(set(ways)) == len(ways) == (3 if count else 2)
        for way in ways:
            assert sum(way, ()) == PROMPT + COMMON[:count]
            assert all(way)
    assert rounding._ways(OutputPosition((1,), ())) == [((1,),)]
    assert max(map(len, rounding._ways(OutputPosition(PROMPT, COMMON))[2][1:])) == rounding.BLOCK


@pytest.mark.parametrize("window", [None, 6])
def test_the_noise_is_that_of_the_passes(window: int | None) -> None:
    target = make_target(window=window)
    evidence = ask(target)
    alone = full_pass(target, PROMPT + COMMON).numpy()
    apart = float(np.abs(alone - evidence.scores).max())
    size = float(np.abs(evidence.scores).max())
    assert evidence.sound
    assert apart <= 2 * evidence.noise < 1e-4 * size  # another cut is at most about as far away
    assert evidence.noise >= 4 * torch.finfo(torch.float32).eps * size


@pytest.mark.parametrize(
    ("dtype", "units"), [(torch.float32, 4), (torch.bfloat16, 1), (torch.float16, 1)], ids=str
)
def test_ways_that_agree_leave_the_rounding_of_the_last_place(dtype: torch.dtype, units: int) -> None:
    evidence = ask(make_target(dtype), prompt=(9,), common=())  # there is but one way
    size = float(np.abs(evidence.scores).max())
    assert evidence.noise == pytest.approx(units * torch.finfo(dtype).eps * size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_passes_that_differ_by_more_than_rounding_are_not_sound(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    target = make_target(dtype)
    forward = target.forward

    def broken(ids: torch.Tensor, positions: torch.Tensor, **given: Any) -> Any:
        late = int(positions[0, 0]) > 0  # passes behind others begin at a wrong position
        return forward(ids, positions + late, **given)

    monkeypatch.setattr(target, "forward", broken)
    evidence = ask(target)
    assert not evidence.sound
    assert evidence.noise > 0.5


def test_penalties_are_those_of_decoding() -> None:
    """By the definition: tokens of prompt and output, the output's occurrences counted."""
    settings = {"repetition_penalty": 1.7, "presence_penalty": 0.3, "frequency_penalty": 0.2}
    target = make_target()
    bare, penalised = ask(target), ask(target, **settings)
    for token in range(target.config.vocab_size):
        expected = float(bare.scores[token])
        if token in PROMPT + COMMON:
            expected = expected / 1.7 if expected > 0 else expected * 1.7
        expected -= 0.2 * COMMON.count(token) + 0.3 * (token in COMMON)
        assert penalised.scores[token] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    made = Decoder(target, context=256)
    given = made.generate(
        PROMPT, max_new_tokens=6, stop_ids=(), sampling=SamplingParams(repetition_penalty=1.7)
    )
    for position, token in enumerate(given.token_ids):
        found = ask(target, common=given.token_ids[:position], repetition_penalty=1.7)
        assert int(found.scores.argmax()) == token


def test_logits_that_are_no_distribution_are_an_error() -> None:
    target = make_target()
    target.lm_head_weight[9] = float("nan")
    with pytest.raises(DataError, match="no largest number"):
        ask(target)


def test_long_texts_are_read_in_the_chunks_of_decoding() -> None:
    target = make_target(window=6)
    text = [5 + (index * 7 + index // 5) % 40 for index in range(600)]  # beyond a prefill's chunk
    evidence = ask(target, prompt=text[:590], common=text[590:])
    assert evidence.sound
    assert np.abs(full_pass(target, text).numpy() - evidence.scores).max() <= 2 * evidence.noise
