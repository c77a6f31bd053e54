"""Tiny random targets of the architectures in recipes/models: the published models in all but size.

What a recipe's own target has in common with its tiny one: architecture, kind of rotary scaling, grouped or full
key heads, a head size that is not hidden_size / heads (Qwen3-0.6B), norms, biases, tied or own LM head.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.worlds import byte_tokenizer

# recipe -> (configuration class of transformers, what tells this model from the class's defaults)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama3-8b-instruct": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "rms_norm_eps": 1e-5},
    ),
    "llama3.2-1b": (
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500_000.0,
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 128,
            },
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
    ),
    **dict.fromkeys(
        ("qwen3-8b", "qwen3-8b-eagle3.1"),
        ("Qwen3Config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}),
    ),
    "qwen3-0.6b": (
        "Qwen3Config",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "head_dim": 16,  # 4 heads of 16 over a hidden size of 32, as 16 of 128 over 1,024
            "tie_word_embeddings": True,
        },
    ),
    "smollm2-135m": (
        "LlamaConfig",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0},
            "num_hidden_layers": 30,  # the recipe names layers
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
        },
    ),
    "gemma3-270m": ("Gemma3TextConfig", {"sliding_window": 64, "tie_word_embeddings": True}),
    "olmo2-7b": (
        "Olmo2Config",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-6,
        },
    ),
}

SIZES: dict[str, Any] = {
    "vocab_size": 264,  # three padded rows more than the tokenizer has ids
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 2048,  # the recipes' rows, which --plan holds against it
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}

_WORDS = ("the", "cat", "dog", "rain", "hill", "river", "one", "two", "sat", "ran", "fell", "was")


def make_recipe_target(name: str, folder: Path) -> Path:
    """A Hugging Face folder with a byte tokenizer that has a chat template."""
    import torch
    import transformers

    kind, traits = ARCHITECTURES[name]
    sizes = {**SIZES, **traits}
    if kind == "Olmo2Config":
        del sizes["head_dim"]  # this family has hidden_size / heads always
    config = getattr(transformers, kind)(**sizes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return byte_tokenizer(folder)


def make_chat(file: Path, rows: int = 24) -> Path:
    """Conversations of one or two questions."""
    draw = random.Random(0)
    lines = []
    for _ in range(rows):
        turns = []
        for _ in range(draw.randint(1, 2)):
            turns.append({"role": "user", "content": " ".join(draw.choices(_WORDS, k=3))})
            turns.append({"role": "assistant", "content": " ".join(draw.choices(_WORDS, k=6))})
        lines.append(json.dumps({"messages": turns}))
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file
