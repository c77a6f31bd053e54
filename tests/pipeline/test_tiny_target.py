"""The demo's target: its recipe repeats its recorded losses, and its weights know the answers."""

from __future__ import annotations

import json

import pytest
import target as recipe
import torch

from vocabforge.corpus.tokenizer.tokenizer import encode_prompt, load_tokenizer
from vocabforge.demo import QUESTIONS, TARGET
from vocabforge.models.lean.model import load_target

# Nats a token in the first steps, recorded on an x86-64 CPU (2026-11-29).
LOSSES = [8.8426, 8.8497, 8.8061, 8.5839, 8.8214, 8.6598, 8.6346, 8.641]


@pytest.mark.long
def test_the_recipe_repeats_its_losses() -> None:
    conversations, _, _ = recipe.texts()
    tokenizer = recipe.make_tokenizer(m["content"] for one in conversations[:4000] for m in one.messages())
    shipped = load_tokenizer(TARGET).backend
    assert tokenizer.get_vocab() == shipped.get_vocab()
    rows = recipe.packed(conversations, tokenizer)
    losses = recipe.train(recipe.build_model().train(), rows, 4000, stop=len(LOSSES))
    assert losses == pytest.approx(LOSSES, rel=1e-3)


def test_the_shipped_target_answers_its_questions() -> None:
    from vocabforge.decode.engine import Decoder

    tokenizer, model = load_tokenizer(TARGET), load_target(TARGET, dtype=torch.float32)
    decoder, right, asked = Decoder(model), 0, 0
    for row in map(json.loads, QUESTIONS.read_text("utf-8").splitlines()):
        if not row.get("reference") or row["category"] not in ("coding", "math_reasoning"):
            continue
        prompt = encode_prompt(tokenizer, [{"role": "user", "content": row["turns"][0]}])
        made = decoder.generate(prompt, max_new_tokens=160, stop_ids=tokenizer.eos_ids)
        right += row["reference"][0].strip() in tokenizer.decode(made.token_ids)
        asked += 1
    assert asked == 10
    assert right >= 5
