from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluate.divergence_support import (
    LIMIT,
    QUESTION,
    VOCAB,
    World,
    compared,
    edited,
    full_pass,
    make_target,
    make_twins,
    parting,
    place_of,
    settings_of,
    speculating,
)
from tests.evaluate.eval_fakes import EOS, make_tokenizer
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer
from vocabforge.decode.request import Generation
from vocabforge.evaluate.identity.divergence import TOLERANCE


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def world(tokenizer: TextTokenizer) -> World:
    return World(make_target(), tokenizer)


@pytest.mark.parametrize(("position", "turn"), [(0, 0), (1, 0), (9, 0), (0, 1), (5, 1)])
def test_another_token_is_a_fault_with_the_targets_own_logits(world: World, position: int, turn: int) -> None:
    logits = world.logits(position, turn)
    best, second, *_, last = np.argsort(-logits)
    assert world.turns[turn][position] == best
    for got in (second, last):
        row = world.one(position, int(got), turn)
        assert row.judgement == "fault"
        assert (row.expected, row.got) == (best, got)
        assert row.expected_logit == pytest.approx(float(logits[best]), abs=1e-4)
        assert row.got_logit == pytest.approx(float(logits[got]), abs=1e-4)
        assert row.gap == pytest.approx(float(logits[best] - logits[got]), abs=1e-4)
        assert 0 < row.noise < 1e-4
        assert row.reason.startswith("this method's token lies ")
        space = " " if position else ""
        assert (row.expected_text, row.got_text) == (f"{space}w{best - 5}", f"{space}w{got - 5}")


def test_a_wrong_token_of_plain_decoding_is_its_own_fault(world: World) -> None:
    """The target is the judge, not plain decoding: here the method says what the target says."""
    right, wrong = world.turns[0][3], (world.turns[0][3] - 4) % 40 + 5
    plain = edited(world.plain, "token_ids", [*world.turns[0][:3], wrong])
    found = world.judge(parting(plain, 3, right), plain=plain)[0]
    assert (found.judgement, found.expected, found.got) == ("fault", wrong, right)
    assert found.reason.startswith("plain decoding's token lies ")


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_that_rounding_alone_parts_are_near_tied(
    tokenizer: TextTokenizer, dtype: torch.dtype, window: int | None
) -> None:
    """The twin's row of the LM head is one unit in the last place away, the next token's is not."""
    target = make_target(dtype, window=window)
    world = World(target, tokenizer)
    for position in (0, 7):
        chosen = world.turns[0][position]
        twin = chosen + 1 if chosen + 1 < VOCAB else chosen - 1
        kept = target.lm_head_weight[twin].clone()
        make_twins(target, chosen, twin, 1 + torch.finfo(dtype).eps)
        row = world.one(position, twin)
        assert (row.judgement, row.expected, row.got) == ("near-tied", chosen, twin)
        assert row.gap <= TOLERANCE * row.noise
        # Both are as near to each other as before, but a third token is the target's choice now.
        third = next(token for token in range(5, VOCAB) if token not in (chosen, twin))
        before = target.lm_head_weight[third].clone()
        make_twins(target, chosen, third, 1.5)
        row = world.one(position, twin)
        assert row.judgement == "fault"
        assert row.gap <= TOLERANCE * row.noise
        with torch.no_grad():
            target.lm_head_weight[third], target.lm_head_weight[twin] = before, kept


def test_a_narrow_dtype_does_not_excuse_everything(tokenizer: TextTokenizer) -> None:
    """In bf16, tokens a tenth below the best one are faults."""
    target = make_target(torch.bfloat16)
    world = World(target, tokenizer)
    chosen = world.turns[0][5]
    other = chosen + 1 if chosen + 1 < VOCAB else chosen - 1
    make_twins(target, chosen, other, 0.9)
    assert world.one(5, other).judgement == "fault"


def test_real_speculation_among_twins_parts_by_rounding_alone(tokenizer: TextTokenizer) -> None:
    """Each word has a twin, and n-gram drafts are verified several at a time: rounding decides now and then."""
    found = []
    question = dataclasses.replace(QUESTION, turns=QUESTION.turns[:1])
    for seed in (1, 4, 5):
        target = make_target(seed=seed)
        with torch.no_grad():
            target.lm_head_weight[25:45] = target.lm_head_weight[5:25]
            target.lm_head_weight[25:45, 0] += (
                torch.finfo(torch.float32).eps * target.lm_head_weight[5:25, 0].abs()
            )
        found += compared(target, tokenizer, speculating(target), settings_of(24), question)
    if not found:
        pytest.skip("this machine rounds alike in passes of all sizes")
    assert [row.judgement for row in found] == ["near-tied"] * len(found)
    assert all(abs(row.expected - row.got) == 20 for row in found)


def test_a_decoder_that_accepts_wrong_drafts_is_found_out(tokenizer: TextTokenizer) -> None:
    """As one would with a careless acceptance rule: every so often the second best token."""
    target = make_target(seed=4)

    class Careless:
        def generate(self, prompt_ids: Any, *, max_new_tokens: int, **_: Any) -> Generation:
            ids = list(prompt_ids)
            while len(ids) < len(prompt_ids) + max_new_tokens:
                ranks = full_pass(target, ids).argsort(descending=True)
                ids.append(int(ranks[1 if len(ids) % 5 == 0 else 0]))
            return Generation(token_ids=ids[len(prompt_ids) :])

    (row,) = compared(target, tokenizer, Careless(), settings_of(LIMIT), QUESTION)
    assert row.judgement == "fault"
    assert row.gap > 100 * row.noise
    assert row.expected_logit > row.got_logit


# ---- outputs that end ----


def test_a_stop_token_is_judged_like_any_other(tokenizer: TextTokenizer) -> None:
    target = make_target()
    world = World(target, tokenizer)
    assert world.one(4, EOS).judgement == "fault"
    make_twins(target, world.turns[0][4], EOS)
    row = world.one(4, EOS)
    assert (row.judgement, row.got, row.got_text) == ("near-tied", EOS, " </s>")
    # ... and the other way round: plain decoding stops, the method goes on.
    stopped = edited(world.plain, "token_ids", [*world.turns[0][:4], EOS])
    row = world.judge(parting(stopped, 4, world.turns[0][4]), plain=stopped)[0]
    assert (row.judgement, row.expected, row.got) == ("near-tied", EOS, world.turns[0][4])


def test_an_output_that_ends_without_a_stop_token_is_a_fault(tokenizer: TextTokenizer) -> None:
    """Even where the target would as soon have stopped: the stop token belongs to an output."""
    target = make_target()
    world = World(target, tokenizer)
    row = world.one(4, None)
    assert (row.judgement, row.got, row.got_text) == ("fault", None, None)
    assert row.reason == (
        "this method's output ends without a stop token, 4 tokens long and below the limit of 12"
    )
    logits = world.logits(4)
    assert row.expected_logit == pytest.approx(float(logits[row.expected]), abs=1e-4)
    assert row.got_logit == pytest.approx(float(logits[EOS]), abs=1e-4)  # the likeliest stop token's
    make_twins(target, world.turns[0][4], EOS)
    row = world.one(4, None)
    assert row.judgement == "fault"
    assert row.gap <= TOLERANCE * row.noise


def test_an_output_that_is_too_long_is_a_fault(world: World) -> None:
    row = world.one(LIMIT, 9)
    assert (row.judgement, row.expected, row.got) == ("fault", None, 9)
    assert row.reason == "this method's output continues beyond the limit of 12 tokens"
    row = world.one(LIMIT, 9, settings=dataclasses.replace(world.settings, max_new_tokens=20))
    assert row.reason.startswith("plain decoding's output ends without a stop token, 12 tokens long")
    row = world.one(6, None, settings=dataclasses.replace(world.settings, max_new_tokens=6))
    assert row.reason == "plain decoding's output continues beyond the limit of 6 tokens"
    assert {row.judgement} == {"fault"}


def test_an_output_that_goes_on_after_a_stop_token_is_a_fault(tokenizer: TextTokenizer) -> None:
    target = make_target()
    make_twins(target, World(target, tokenizer).turns[0][4], EOS, 1.5)
    world = World(target, tokenizer)
    end = len(world.turns[0])
    assert end < LIMIT
    row = world.one(end, 9)
    assert (row.judgement, row.expected) == ("fault", None)
    assert row.reason == "this method's output continues after a stop token"


# ---- penalties ----


def test_penalties_decide_before_tokens_are_compared(tokenizer: TextTokenizer) -> None:
    """Twins by the logits alone: one was there already, so that the penalty parts them."""
    target = make_target()
    free = World(target, tokenizer)
    position = next(n for n in range(1, LIMIT) if free.turns[0][n] in free.turns[0][:n])
    seen = free.turns[0][position]
    place = place_of(free.plain, position, tokenizer)
    new = next(token for token in range(5, VOCAB) if token not in place.prompt + place.common)
    make_twins(target, seen, new)
    assert free.one(position, new).judgement == "near-tied"
    for penalty in ({"repetition_penalty": 1.2}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}):
        row = free.one(position, new, settings=settings_of(LIMIT, **penalty))
        assert row.judgement == "fault", penalty
        assert row.reason.startswith("plain decoding's token lies ")
        assert row.got_logit - row.expected_logit == pytest.approx(row.gap)
