"""The demo's target: its recipe repeats its recorded losses, and its weights know the answers."""

from __future__ import annotations

import hashlib
import json

import pytest
import target as recipe
import torch

from vocabforge.corpus.tokenizer.tokenizer import encode_prompt, load_tokenizer
from vocabforge.demo import QUESTIONS, TARGET
from vocabforge.models.lean.model import load_target

# Of the first 4,000 conversations: their digest, and the nats a token of the first steps on them, recorded on an
# x86-64 CPU (2026-11-30).
CONVERSATIONS = "6b49b06d8fa8fcfe521cd92f546f7f69b0c3b812f9b64bdd5ff3a6e2d302f41a"
LOSSES = [8.8872, 8.926, 8.9576, 8.6413, 8.778, 8.7855, 8.8103, 8.4303]


@pytest.mark.long
def test_the_recipe_repeats_its_losses() -> None:
    conversations = recipe.texts(4200)[0][:4000]
    messages = [recipe.messages(one) for one in conversations]
    assert hashlib.sha256(json.dumps(messages).encode()).hexdigest() == CONVERSATIONS
    tokenizer = recipe.make_tokenizer(message["content"] for one in messages for message in one)
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
