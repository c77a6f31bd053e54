"""Small tokenizers for tests, made in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"
)
SPECIALS = ("<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")


def byte_tokenizer(folder: Path, *, template: str | None = CHAT_TEMPLATE, **config: Any) -> Path:
    """Write a byte-level tokenizer of 256 bytes and five specials (ids 256..260); returns its folder."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: at for at, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    side = {"eos_token": "<|end|>", "bos_token": "<|bos|>", "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(side), "utf-8")
    return folder
