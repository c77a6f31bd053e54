"""Make the demo's target: a small Llama that answers prompts in Spec-Bench's categories, and those prompts.

    python recipes/tiny/target.py --output vocabforge/demo

The texts are templates over a fictional encyclopaedia (families.py, world.py). Fixed seeds: the same machine
writes the same weights.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from families import FAMILIES, Conversation, messages
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F

from vocabforge.core.progress import ProgressBar

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Letters with an optional preceding character, single digits (for arithmetic), punctuation, line ends, spaces.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
VOCAB_SIZE, LENGTH, BATCH = 4096, 256, 8
SIZES = {
    "hidden_size": 192,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,  # narrow models learn faster with more than the usual 0.02
}
CONVERSATIONS, HELDOUT, PROMPTS, QUESTIONS = 60_000, 400, 1600, 5  # QUESTIONS: per category
LEARNING_RATE, WARMUP = 3e-3, 0.03


def stream(split: str, family: str) -> Iterator[Conversation]:
    """Yield an infinite, reproducible stream of a family's conversations."""
    rng = random.Random(f"0/{split}/{family}")
    while True:
        yield FAMILIES[family][0](rng)


def questions() -> list[tuple[str, Conversation]]:
    """Return the questions of ``eval --benchmark sample`` with their categories: five each, no first prompt twice."""
    by_prompt: dict[str, tuple[str, Conversation]] = {}
    for number, name in enumerate(FAMILIES, 1):
        conversations = stream("questions", name)
        while len(by_prompt) < number * QUESTIONS:
            conversation = next(conversations)
            by_prompt.setdefault(conversation[0].prompt, (name, conversation))
    return list(by_prompt.values())


def mixed(split: str, count: int, blocked: set[str]) -> list[Conversation]:
    """Return conversations of all families by their shares, without those whose first prompt is blocked."""
    rng = random.Random(f"0/{split}/order")
    names, shares = list(FAMILIES), [share for _, share in FAMILIES.values()]
    streams = {name: stream(split, name) for name in names}
    order = itertools.cycle(rng.choices(names, shares, k=count))
    conversations: list[Conversation] = []
    while len(conversations) < count:
        conversation = next(streams[next(order)])
        if conversation[0].prompt not in blocked:
            conversations.append(conversation)
    return conversations


def make_tokenizer(texts: Iterator[str], size: int = VOCAB_SIZE) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, START, END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def packed(conversations: list[Conversation], tokenizer: Tokenizer) -> tuple[Tensor, Tensor]:
    """Return rows (N, LENGTH) of token ids, one conversation after the other, and which tokens are answers."""
    parts: list[tuple[str, bool]] = []
    for conversation in conversations:
        for message in messages(conversation):
            answer = message["role"] == "assistant"
            parts += [(f"{START}{message['role']}\n", False), (f"{message['content']}{END}", answer)]
            parts += [("\n", False)]
    encoded = tokenizer.encode_batch([text for text, _ in parts], add_special_tokens=False)
    ids = torch.tensor([token for encoding in encoded for token in encoding.ids])
    learnt = torch.tensor(
        [learn for encoding, (_, learn) in zip(encoded, parts, strict=True) for _ in encoding.ids]
    )
    rows = len(ids) // LENGTH
    return ids[: rows * LENGTH].view(rows, LENGTH), learnt[: rows * LENGTH].view(rows, LENGTH)


def build_model(vocab_size: int = VOCAB_SIZE, **sizes: Any) -> Any:
    """Build an untrained Llama with tied embeddings.

    Attention starts by copying: the output matrix of each head is the transpose of its value matrix, so that a token
    that is attended to raises its own logit (mimetic initialisation, Trockman and Kolter 2023). MLPs start at zero.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        **{**SIZES, **sizes},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config)
    groups = config.num_attention_heads // config.num_key_value_heads
    with torch.no_grad():
        for layer in model.model.layers:
            values = layer.self_attn.v_proj.weight.view(config.num_key_value_heads, -1, config.hidden_size)
            layer.self_attn.o_proj.weight.copy_(values.repeat_interleave(groups, 0).flatten(0, 1).T)
            layer.mlp.down_proj.weight.zero_()
    return model


def loss_of(model: Any, ids: Tensor, learnt: Tensor) -> Tensor:
    """Return the mean cross-entropy of the answers' tokens, in nats."""
    states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    keep = learnt[:, 1:]
    return F.cross_entropy(model.lm_head(states[keep]), ids[:, 1:][keep])


def train(model: Any, rows: tuple[Tensor, Tensor], steps: int, stop: int | None = None) -> list[float]:
    """Train for ``steps`` steps, or the first ``stop`` of them; return the losses."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))
    warmup = max(1, round(WARMUP * steps))
    generator, waiting = torch.Generator().manual_seed(0), torch.empty(0, dtype=torch.int64)
    losses = []
    with ProgressBar("Training", steps, "steps") as bar:
        for step in range(steps if stop is None else stop):
            if len(waiting) < BATCH:
                waiting = torch.cat([waiting, torch.randperm(len(rows[0]), generator=generator)])
            chosen, waiting = waiting[:BATCH], waiting[BATCH:]
            decay = 0.5 * (1 + math.cos(math.pi * max(0, step - warmup) / max(1, steps - warmup)))
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min((step + 1) / warmup, decay)
            loss = loss_of(model, rows[0][chosen], rows[1][chosen])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            bar.update(1, note=f"loss {sum(losses[-50:]) / len(losses[-50:]):.3f}")
    return losses


def texts(count: int = CONVERSATIONS) -> tuple[list[Conversation], list[Conversation], set[str]]:
    """Return ``count`` training conversations, the held-out ones, and the first prompts of these and the questions.

    No first prompt is shared.
    """
    blocked = {conversation[0].prompt for _, conversation in questions()}
    heldout = mixed("heldout", HELDOUT, blocked)
    blocked |= {conversation[0].prompt for conversation in heldout}
    return mixed("train", count, blocked), heldout, blocked


def write(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """Write the target in bf16 as a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [START, END],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    model.to(torch.bfloat16).save_pretrained(folder)


def write_prompts(output: Path, blocked: set[str]) -> None:
    """Write the prompts that a drafter learns from, and the questions of the sample benchmark."""
    prompts = [{"turns": _prompts(conversation)} for conversation in mixed("prompts", PROMPTS, blocked)]
    (output / "prompts.jsonl.xz").write_bytes(lzma.compress(_lines(prompts), preset=9))
    rows = []
    for number, (category, conversation) in enumerate(questions(), 81):
        row = {"question_id": number, "category": category, "turns": _prompts(conversation)}
        references = [exchange.reference for exchange in conversation]
        rows.append(row if None in references else row | {"reference": references})
    (output / "question.jsonl").write_bytes(_lines(rows))


def _prompts(conversation: Conversation) -> list[str]:
    return [exchange.prompt for exchange in conversation]


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, required=True, help="folder for target/ and the prompts")
    parser.add_argument("--steps", type=int, default=4000, help=f"steps of {BATCH * LENGTH:,} tokens")
    asked = parser.parse_args()
    conversations, heldout, blocked = texts()
    tokenizer = make_tokenizer(
        m["content"] for conversation in conversations[:4000] for m in messages(conversation)
    )
    rows, model = packed(conversations, tokenizer), build_model()
    size = sum(p.numel() for p in model.parameters())
    print(
        f"{size:,} parameters, {rows[0].numel():,} tokens, {int(rows[1].sum()):,} of them answers", flush=True
    )
    train(model.train(), rows, asked.steps)
    model.eval()
    with torch.no_grad():
        ids, learnt = packed(heldout, tokenizer)
        parts = [loss_of(model, *pair) for pair in zip(ids.split(8), learnt.split(8), strict=True)]
    print(f"held-out loss {sum(map(float, parts)) / len(parts):.3f} nats a token")
    write(asked.output / "target", model, tokenizer)
    write_prompts(asked.output, blocked)


if __name__ == "__main__":
    main()
