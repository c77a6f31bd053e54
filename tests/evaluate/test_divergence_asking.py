from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.evaluate.divergence_support import (
    LIMIT,
    QUESTION,
    VOCAB,
    World,
    answer,
    edited,
    make_target,
    parting,
    settings_of,
)
from tests.evaluate.eval_fakes import make_tokenizer
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.evaluate.identity import divergence
from vocabforge.evaluate.identity.divergence import judge


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def world(tokenizer: TextTokenizer) -> World:
    return World(make_target(), tokenizer)


# ---- what is asked, and how often ----


@pytest.mark.parametrize("prompt_format", ["chat", "raw"])
def test_the_place_is_what_the_generator_read(tokenizer: TextTokenizer, prompt_format: Any) -> None:
    target, prompts = make_target(), []

    class Watched(Decoder):
        def generate(self, prompt_ids: Any, **given: Any) -> Any:
            prompts.append(tuple(prompt_ids))
            return super().generate(prompt_ids, **given)

    question = dataclasses.replace(QUESTION, system="w8 w9")
    settings = dataclasses.replace(settings_of(5), prompt_format=prompt_format, system="w30")
    plain = answer(Watched(target, context=256), tokenizer, settings, question)
    ids = plain.details[0]["choices"][0]["token_ids"]
    known: dict[Any, Any] = {}
    rows = [parting(plain, 3, 6), parting(plain, 2, 7, turn=1)]
    judge(rows, [question], plain, tokenizer, settings, target, known=known)
    places = [place for place, *_ in known]
    assert [place.prompt for place in places] == prompts
    assert len(prompts) == 2
    assert [list(place.common) for place in places] == [ids[0][:3], ids[1][:2]]
    assert tokenizer.encode("w8")[0] in prompts[0] or prompt_format == "raw"


def test_the_target_is_asked_no_more_often_than_allowed_and_once_for_each_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def watched(*given: Any) -> Any:
        asked.append(given)
        return ask(*given)

    ask = divergence.ask_target
    monkeypatch.setattr(divergence, "ask_target", watched)
    rows = [parting(world.plain, position, 6) for position in (1, 1, 2, 3, 2)]
    known: dict[Any, Any] = {}
    found = world.judge(*rows, most=2, known=known)
    assert [row.judgement for row in found] == ["fault", "fault", "fault", "not judged", "fault"]
    assert found[3].reason == "only 2 divergences of a method are judged"
    assert found[3].got_text == " w1"
    assert len(asked) == len(known) == 2
    other = world.judge(parting(world.plain, 1, 7), most=3, known=known)[0]
    assert (other.judgement, other.got_logit != found[0].got_logit) == ("fault", True)
    assert len(asked) == len(known) == 3
    again = [row.model_copy(update={"run": 2}) for row in rows]
    repeated = world.judge(*again, most=3, known=known)
    assert [row.judgement for row in repeated] == [row.judgement for row in found]
    assert {row.run for row in repeated} == {2}
    assert len(asked) == 3


def test_sampled_outputs_are_not_judged(world: World) -> None:
    row = world.one(3, 6, settings=settings_of(LIMIT, temperature=0.7))
    assert (row.judgement, row.reason) == ("not judged", "sampled outputs are not judged")
    assert row.got_text == " w1"


# ---- what stands in the way ----


def test_a_token_that_the_target_does_not_have_is_a_fault(world: World) -> None:
    row = world.one(3, VOCAB)
    assert row.judgement == "fault"
    assert row.noise is None
    assert row.reason == f"the target has {VOCAB} tokens, and this is none of them"


def broken(error: Exception) -> Callable[..., Any]:
    def raises(*_: Any, **__: Any) -> Any:
        raise error

    return raises


def test_where_the_target_cannot_be_asked_the_figures_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = world.one(3, 6, plain=edited(world.plain, "prompt_tokens", 99))
    assert row.judgement == "not judged"
    assert row.reason.startswith("the target could not be asked: its prompt has ")
    monkeypatch.setattr(world.target, "forward", broken(torch.OutOfMemoryError("CUDA out of memory.\nTried")))
    row = world.one(3, 6)
    assert (row.judgement, row.reason) == (
        "not judged",
        "the target could not be asked: CUDA out of memory.",
    )


def test_passes_that_disagree_excuse_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the target's own passes differ wildly, every token would lie within the noise."""
    forward = world.target.forward

    def shifted(ids: torch.Tensor, positions: torch.Tensor, **given: Any) -> Any:
        return forward(ids, positions + int(positions[0, 0] > 0), **given)

    monkeypatch.setattr(world.target, "forward", shifted)
    row = world.one(6, 6)
    assert row.judgement == "fault"
    assert "own passes over the same tokens differ by" in row.reason
    assert row.gap is not None
    assert row.noise > 0.1
