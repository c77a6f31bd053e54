"""How outputs are compared with plain decoding's, and what the target says of a difference."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.evaluate.eval_fakes import EOS, WORDS, FakeMethod, make_tokenizer
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.decode.request import Generation, SamplingParams
from vocabforge.evaluate import identity
from vocabforge.evaluate.benchmarks import Question
from vocabforge.evaluate.identity import compare_outputs, first_difference
from vocabforge.evaluate.results.answers import MethodRows, answer_row, detail_row
from vocabforge.evaluate.results.schema import DivergenceRow, Outputs
from vocabforge.evaluate.results.settings import RunSettings
from vocabforge.evaluate.run.request import Asking
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import LeanModel
from vocabforge.models.target.interface import next_logits

VOCAB = WORDS + 5
QUESTION = Question(7, "qa", ("w1 w2 w3 w4 w5", "w6 w7"))
LIMIT = 12  # tokens of an answer


def make_target(dtype: torch.dtype = torch.float32, seed: int = 0) -> LeanModel:
    """A random decoder over the words of ``eval_fakes.make_tokenizer``."""
    values: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    model = LeanModel(LeanConfig.from_hf_config(values), dtype=dtype)
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.empty(parameter.shape).normal_(0.0, 0.4, generator=stream)
            parameter.copy_(drawn + 1 if "norm" in name else drawn)
        model.lm_head_weight[:5] = 0  # no special token: their logits are 0, far below the best word's
    return model


def make_twins(model: LeanModel, first: int, second: int, factor: float = 1.0) -> None:
    """Give token ``second`` the logit of ``first``, times a factor."""
    with torch.no_grad():
        model.lm_head_weight[second] = model.lm_head_weight[first] * factor


def neighbour(token: int) -> int:
    return token + 1 if token + 1 < VOCAB else token - 1


class World:
    """A target, what plain decoding made of it, and the comparison of other outputs."""

    def __init__(self, target: Any, tokenizer: TextTokenizer) -> None:
        self.target, self.tokenizer = target, tokenizer
        self.settings = RunSettings(LIMIT, SamplingParams(), prompt_format="chat")
        self.decoder = Decoder(target, context=256)
        self.plain = self.answer(self.decoder)
        self.turns = self.plain.details[0]["choices"][0]["token_ids"]

    def answer(self, generator: Any) -> MethodRows:
        turns = Asking(self.tokenizer, self.settings, lambda: None).ask(
            QUESTION, FakeMethod("asked", generator), self.settings.runs[0]
        )
        row = answer_row(QUESTION, turns, model_id="m", answer_id="a", tstamp=0.0)
        return MethodRows([row], [detail_row(QUESTION, turns)])

    def compare(self, *rows: MethodRows, plain: MethodRows | None = None) -> Outputs:
        evaluation: Any = SimpleNamespace(
            settings=dataclasses.replace(self.settings, repeats=len(rows)),
            methods=[FakeMethod("plain", self.decoder)],
            tokenizer=self.tokenizer,
            benchmark=SimpleNamespace(questions=[QUESTION]),
        )
        return compare_outputs(evaluation, [plain or self.plain] * len(rows), rows)

    def one(
        self, position: int, *tokens: int, turn: int = 0, plain: MethodRows | None = None
    ) -> DivergenceRow:
        """The verdict on an output that agrees up to a position and continues with these tokens."""
        own = edited(self.plain, "token_ids", [*self.turns[turn][:position], *tokens], turn)
        (found,) = self.compare(own, plain=plain).divergences
        return found


def edited(rows: MethodRows, key: str, value: Any, turn: int = 0, part: str = "details") -> MethodRows:
    """The same rows with another value for a turn."""
    copied = json.loads(json.dumps(dataclasses.asdict(rows)))
    copied[part][0]["choices"][0][key][turn] = value
    return MethodRows(**copied)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def world(tokenizer: TextTokenizer) -> World:
    return World(make_target(), tokenizer)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [([], [], None), ([5, 6], (5, 6), None), ([5, 6], [5, 7, 8], 1), ([5], [5, 7], 1), ([5, 7], [], 0)],
)
def test_first_difference(one: list[int], other: list[int], place: int | None) -> None:
    assert first_difference(one, other) == first_difference(other, one) == place


def test_equal_and_cut_outputs_are_identical(world: World) -> None:
    same = world.compare(world.plain, world.plain)
    assert (same.compared, same.identical, same.cut, same.divergences) == (2, 2, 0, [])
    short = edited(edited(world.plain, "token_ids", world.turns[0][:4]), "finish", "cache")
    found = world.compare(short)
    assert (found.identical, found.cut) == (1, 1)
    assert world.compare(world.plain, plain=short).cut == 1
    wrong = edited(short, "token_ids", [*world.turns[0][:3], neighbour(world.turns[0][3])])
    assert (world.compare(wrong).cut, world.compare(wrong).divergences[0].position) == (0, 3)
    # A full cache of the longer output excuses nothing.
    longer = edited(edited(world.plain, "token_ids", [*world.turns[0], 9]), "finish", "cache")
    assert world.compare(longer).divergences[0].got == 9


def test_texts_are_compared_where_token_ids_are_unknown(world: World) -> None:
    unknown = edited(world.plain, "token_ids", None, turn=1)
    assert world.compare(unknown).identical == 1
    text = world.plain.answers[0]["choices"][0]["turns"][1]
    other = edited(unknown, "turns", text[:5] + "?", turn=1, part="answers")
    (row,) = world.compare(other).divergences
    assert (row.turn, row.position, row.unit, row.expected, row.got) == (1, 5, "character", None, None)


@pytest.mark.parametrize(("position", "turn"), [(0, 0), (9, 0), (5, 1)])
def test_another_token_is_a_fault_with_the_targets_own_logits(world: World, position: int, turn: int) -> None:
    prompts = []

    class Watched(Decoder):
        def generate(self, prompt_ids: Any, **given: Any) -> Any:
            prompts.append(list(prompt_ids))
            return super().generate(prompt_ids, **given)

    world.answer(Watched(world.target, context=256))
    with torch.inference_mode():
        logits = next_logits(world.target, [*prompts[turn], *world.turns[turn][:position]]).numpy()
    best, second, *_ = np.argsort(-logits)
    row = world.one(position, int(second), turn=turn)
    assert (row.judgement, row.expected, row.got) == ("fault", best, second)
    assert row.expected_logit == pytest.approx(float(logits[best]), abs=1e-4)
    assert row.got_logit == pytest.approx(float(logits[second]), abs=1e-4)
    assert row.gap == pytest.approx(float(logits[best] - logits[second]), abs=1e-4)
    assert row.reason.startswith("this method's token is ")
    assert (row.expected_text, row.got_text) == (f"w{best - 5}", f"w{second - 5}")


def test_a_wrong_token_of_plain_decoding_is_its_own_fault(world: World) -> None:
    wrong = edited(world.plain, "token_ids", [*world.turns[0][:3], neighbour(world.turns[0][3])])
    row = world.compare(world.plain, plain=wrong).divergences[0]
    assert (row.judgement, row.reason.split(" token")[0]) == ("fault", "plain decoding's")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tokens_that_rounding_alone_parts_are_near_tied(tokenizer: TextTokenizer, dtype: torch.dtype) -> None:
    """The twin's row of the LM head is one unit in the last place away."""
    target = make_target(dtype)
    world = World(target, tokenizer)
    chosen = world.turns[0][7]
    twin = neighbour(chosen)
    make_twins(target, chosen, twin, 1 + torch.finfo(dtype).eps)
    row = world.one(7, twin)
    assert (row.judgement, row.expected, row.got) == ("near-tied", chosen, twin)
    assert row.gap <= row.tolerance
    # Both are as near to each other as before, but a third token is the target's choice now.
    make_twins(target, chosen, next(token for token in range(5, VOCAB) if token not in (chosen, twin)), 1.5)
    row = world.one(7, twin)
    assert (row.judgement, row.gap <= row.tolerance) == ("fault", True)
    make_twins(target, chosen, twin, 0.9)  # a tenth below is no rounding, not even in bf16
    assert World(target, tokenizer).one(7, twin).judgement == "fault"


def test_a_decoder_that_accepts_wrong_drafts_is_found_out(tokenizer: TextTokenizer) -> None:
    """As with a careless acceptance rule: every so often the second best token."""
    world = World(make_target(seed=4), tokenizer)

    class Careless:
        def generate(self, prompt_ids: Any, *, max_new_tokens: int, **_: Any) -> Generation:
            ids = list(prompt_ids)
            while len(ids) < len(prompt_ids) + max_new_tokens:
                with torch.inference_mode():
                    ranks = next_logits(world.target, ids).argsort(descending=True)
                ids.append(int(ranks[1 if len(ids) % 5 == 0 else 0]))
            return Generation(token_ids=ids[len(prompt_ids) :])

    outputs = world.compare(world.answer(Careless()))
    assert (outputs.faults, outputs.near_tied, outputs.not_judged) == (1, 0, 0)
    assert outputs.divergences[0].expected_logit > outputs.divergences[0].got_logit


def test_a_stop_token_is_judged_like_any_other_and_an_end_without_one_is_a_fault(tokenizer):
    target = make_target()
    world = World(target, tokenizer)
    assert world.one(4, EOS).judgement == "fault"
    make_twins(target, world.turns[0][4], EOS)
    row = world.one(4, EOS)
    assert (row.judgement, row.got, row.got_text) == ("near-tied", EOS, "</s>")
    row = world.one(4)  # the output ends without the stop token
    assert (row.judgement, row.got, row.got_text) == ("fault", None, None)
    assert row.reason == "one output ends after 4 tokens, where the other continues"


def test_penalties_decide_before_tokens_are_compared(tokenizer: TextTokenizer) -> None:
    """Twins by the logits alone: one was there already, so the penalty parts them."""
    target = make_target()
    free = World(target, tokenizer)
    position = next(n for n in range(1, LIMIT) if free.turns[0][n] in free.turns[0][:n])
    words = {*tokenizer.encode(" ".join(QUESTION.turns)), *free.turns[0][:position]}
    new = next(token for token in range(5, VOCAB) if token not in words)
    make_twins(target, free.turns[0][position], new)
    assert free.one(position, new).judgement == "near-tied"
    for penalty in ({"repetition_penalty": 1.2}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}):
        free.settings = dataclasses.replace(free.settings, sampling=SamplingParams(**penalty))
        row = free.one(position, new)
        assert (row.judgement, row.reason.split(" token")[0]) == ("fault", "plain decoding's"), penalty


def test_each_place_is_judged_once_up_to_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    scores = identity._scores
    monkeypatch.setattr(identity, "MOST_JUDGED", 2)
    monkeypatch.setattr(identity, "_scores", lambda *given: asked.append(1) or scores(*given))
    rows = [edited(world.plain, "token_ids", [*world.turns[0][:at], VOCAB - 1]) for at in (1, 1, 2, 3)]
    outputs = world.compare(*rows)
    assert [row.judgement for row in outputs.divergences] == ["fault", "fault", "fault", "not judged"]
    assert [row.run for row in outputs.divergences] == [1, 2, 3, 4]
    assert (outputs.faults, outputs.not_judged, len(asked)) == (3, 1, 2)
    assert outputs.divergences[3].reason == "only 2 divergences of a method are judged"


def test_a_target_that_cannot_be_asked_leaves_the_difference_unjudged(world, monkeypatch):
    assert world.one(3, VOCAB).reason == f"the target has no token {VOCAB}"
    row = world.one(3, 6, plain=edited(world.plain, "prompt_tokens", 99))
    assert row.judgement == "not judged"
    assert row.reason.startswith("the target could not be asked: its prompt has ")

    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried")

    monkeypatch.setattr(world.target, "forward", full)
    assert world.one(3, 6).reason == "the target could not be asked: CUDA out of memory."
