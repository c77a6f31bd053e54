"""Tiny targets with words for tokens, methods that decode with them, and how a method's output is judged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.evaluate.eval_fakes import WORDS, FakeMethod
from vocabforge.corpus.tokenizer.tokenizer import TextTokenizer
from vocabforge.decode.engine import Decoder
from vocabforge.decode.proposers.registry import ProposerParts, make_proposer
from vocabforge.decode.request import SamplingParams
from vocabforge.decode.spec import MethodSpec
from vocabforge.evaluate.benchmarks import Question
from vocabforge.evaluate.identity.compare import compare_outputs
from vocabforge.evaluate.identity.divergence import judge
from vocabforge.evaluate.identity.rounding import OutputPosition
from vocabforge.evaluate.results.answers import MethodRows, answer_row, detail_row
from vocabforge.evaluate.results.schema import DivergenceRow
from vocabforge.evaluate.results.settings import RunSettings
from vocabforge.evaluate.run.request import Asking
from vocabforge.models.kv_cache import causal_mask
from vocabforge.models.lean.config import LeanConfig
from vocabforge.models.lean.model import LeanModel

VOCAB = WORDS + 5
QUESTION = Question(7, "qa", ("w1 w2 w3 w4 w5", "w6 w7"))
LIMIT = 12  # tokens of an answer


def make_target(dtype: torch.dtype = torch.float32, *, seed: int = 0, window: int | None = None) -> LeanModel:
    """A random decoder over the words of ``eval_fakes.make_tokenizer``; with a window, a Mistral."""
    values: dict[str, Any] = {
        "architectures": ["MistralForCausalLM" if window else "LlamaForCausalLM"],
        "model_type": "mistral" if window else "llama",
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
        "sliding_window": window,
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


def make_twins(model: LeanModel, first: int, second: int, factor: float = 1.0) -> LeanModel:
    """Token ``second`` gets the logit of ``first``, times a factor: equal up to rounding."""
    with torch.no_grad():
        model.lm_head_weight[second] = model.lm_head_weight[first] * factor
    return model


def speculating(target: LeanModel) -> Decoder:
    parts = ProposerParts(target, None, None, MethodSpec(depth=3, ngram=(1, 2)))
    return Decoder(target, make_proposer("n-gram", parts), 256)


def settings_of(limit: int = 24, **sampling: Any) -> RunSettings:
    return RunSettings(limit, SamplingParams(**sampling), prompt_format="chat")


def answer(
    generator: Any, tokenizer: TextTokenizer, settings: RunSettings, question: Question = QUESTION
) -> MethodRows:
    """The rows of one question, as the protocol asks it."""
    asking = Asking(tokenizer, settings, lambda: None)
    turns = asking.ask(question, FakeMethod("asked", generator), settings.runs[0])
    row = answer_row(question, turns, model_id="m", answer_id="a", tstamp=0.0)
    return MethodRows([row], [detail_row(question, turns)])


def parting(plain: MethodRows, position: int, got: int | None, turn: int = 0) -> DivergenceRow:
    """A method that agreed with plain decoding up to here and then said ``got``."""
    ids = plain.details[0]["choices"][0]["token_ids"][turn]
    expected = ids[position] if position < len(ids) else None
    return DivergenceRow(
        run=1, question_id=QUESTION.question_id, turn=turn, position=position, expected=expected, got=got
    )


def place_of(plain: MethodRows, position: int, tokenizer: TextTokenizer, turn: int = 0) -> OutputPosition:
    """The place of a divergence by the template's own words."""
    choice = plain.details[0]["choices"][0]
    text = "<s>"
    for number in range(turn + 1):
        text += f"<|user|> {QUESTION.turns[number]} "
        if number < turn:
            text += f"<|assistant|> {plain.answers[0]['choices'][0]['turns'][number]} </s>"
    prompt = tokenizer.encode(text + "<|assistant|>")
    return OutputPosition(tuple(prompt), tuple(choice["token_ids"][turn][:position]))


def full_pass(target: LeanModel, text: Sequence[int]) -> Tensor:
    """(V,) logits after a text, in one pass over a cache of exactly its size."""
    slots, window = torch.arange(len(text)), target.config.sliding_window
    with torch.inference_mode():
        output = target.forward(
            torch.tensor([list(text)]),
            slots[None],
            cache=target.new_cache(len(text)),
            slots=slots,
            mask=causal_mask(slots, slots),
            window_mask=None if window is None else causal_mask(slots, slots, window),
        )
        return target.logits(output.hidden[0, -1])


def compared(
    target: LeanModel, tokenizer: TextTokenizer, method: Any, settings: RunSettings, question: Question
) -> list[DivergenceRow]:
    """What is said of a method's output beside plain decoding's."""
    plain = answer(Decoder(target, context=256), tokenizer, settings, question)
    rows = answer(method, tokenizer, settings, question)
    found = compare_outputs(plain.details, rows.details).divergences
    return judge(found, [question], plain, tokenizer, settings, target)


class World:
    """A target, what plain decoding made of it, and the judge of other outputs."""

    def __init__(
        self, target: LeanModel, tokenizer: TextTokenizer, settings: RunSettings | None = None
    ) -> None:
        self.target, self.tokenizer = target, tokenizer
        self.settings = settings or settings_of(LIMIT)
        self.plain = answer(Decoder(target, context=256), tokenizer, self.settings)
        self.turns = self.plain.details[0]["choices"][0]["token_ids"]

    def judge(self, *rows: DivergenceRow, **given: Any) -> list[DivergenceRow]:
        settings = given.pop("settings", self.settings)
        return judge(
            rows, [QUESTION], given.pop("plain", self.plain), self.tokenizer, settings, self.target, **given
        )

    def one(self, position: int, got: int | None, turn: int = 0, **given: Any) -> DivergenceRow:
        return self.judge(parting(self.plain, position, got, turn), **given)[0]

    def logits(self, position: int, turn: int = 0) -> np.ndarray:
        place = place_of(self.plain, position, self.tokenizer, turn)
        return full_pass(self.target, place.prompt + place.common).float().numpy()


def edited(plain: MethodRows, key: str, value: Any) -> MethodRows:
    """The same rows with another value for the first turn in the details."""
    copied = json.loads(json.dumps(dataclasses.asdict(plain)))
    copied["details"][0]["choices"][0][key][0] = value
    return MethodRows(**copied)
