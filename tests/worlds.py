"""The tiny worlds of the tests: targets, tokenizers, drafters, vocabularies, and where the development data are.

Heavy libraries are imported where they are needed: the GPU tests run on machines without most of them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VOCABFORGE_DATA", ROOT.parent / "shared" / "data"))

needs_data = pytest.mark.skipif(
    not (DATA / "SOURCES.md").is_file(), reason=f"development data not found at {DATA} (set VOCABFORGE_DATA)"
)


def tiny_target(folder: Path, *, seed: int = 0, kind: str = "llama", **changes: Any) -> Path:
    """A random Llama of a few thousand parameters, saved as a Hugging Face folder (no tokenizer)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 61,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "initializer_range": 0.4,  # large, so that attention and argmax matter
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**settings, **changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder


def tiny_drafter(target: Any, *, seed: int = 1, own_head: int | None = None, target_ids: Any = None) -> Any:
    """A random EAGLE-3 drafter for an ``HFTarget``."""
    import torch

    from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter

    torch.manual_seed(seed)
    config = Eagle3Config(
        hidden_size=target.hidden_size,
        intermediate_size=40,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=target.vocab_size,
        draft_vocab_size=own_head,
        aux_layers=target.aux_layers,
        max_position_embeddings=256,
    )
    drafter = Eagle3Drafter(config, target.embedding, target.head_weight, target_ids)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0.0, 0.3)
        if drafter.has_own_head:
            drafter.lm_head.weight.copy_(drafter.target_head[drafter.target_ids])
    return drafter.eval()


CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"
)
CHAT_TOKENS = ("<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")


def byte_tokenizer(
    folder: Path, *, template: str | None = CHAT_TEMPLATE, bos: bool = False, **config: Any
) -> Path:
    """Write a byte-level tokenizer of 256 bytes and five specials (ids 256..260); ``bos``: one before a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: at for at, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in CHAT_TOKENS])
    if bos:
        begin = ("<|bos|>", backend.token_to_id("<|bos|>"))
        backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[begin])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    side = {"eos_token": "<|end|>", "bos_token": "<|bos|>", "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(side), "utf-8")
    return folder


def other_tokenizer(folder: Path) -> Path:
    """As many ids, one of another meaning."""
    file = byte_tokenizer(folder) / "tokenizer.json"
    file.write_text(file.read_text("utf-8").replace("<|system|>", "<|sistem|>"), "utf-8")
    return folder


BOS, EOS = 0, 1
ENDS = ("<s>", "</s>")


def merging_tokenizer(folder: Path, letters: str, words: Sequence[str]) -> int:
    """Write a byte-level BPE tokenizer of these letters and words; returns the number of its ids.

    The ids: beginning, end, letters, words. Each word is merged from the longest earlier token that begins it and
    the letter or token behind that.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = [*ENDS, *letters, *words]
    vocab = {token: at for at, token in enumerate(tokens)}
    merges = []
    for word in words:
        splits = [at for at in range(1, len(word)) if word[:at] in vocab and word[at:] in vocab]
        merges += [(word[:at], word[at:]) for at in splits]
    backend = Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in ENDS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    side = {"bos_token": ENDS[0], "eos_token": ENDS[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(side), "utf-8")
    return len(tokens)


ROWS = 264  # three more than the byte tokenizer has ids


class World(NamedTuple):
    """Folders that belong together, and the texts to train on."""

    target: Path
    drafter: Path
    vocab: Path
    text: Path


def make_target(folder: Path, *, seed: int = 0, **changes: object) -> Path:
    """Weights and tokenizer in one folder."""
    tiny_target(
        folder, seed=seed, **{"vocab_size": ROWS, "eos_token_id": 257, "bos_token_id": 256, **changes}
    )
    (folder / "generation_config.json").unlink(missing_ok=True)
    return byte_tokenizer(folder)


def make_drafter(folder: Path, target: Path, **options: object) -> Path:
    """A random drafter artefact that records its target and tokenizer."""
    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
    from vocabforge.models.drafters.io import save_drafter
    from vocabforge.models.target.fingerprint import target_fingerprint
    from vocabforge.models.target.hf import HFTarget

    meta = {
        "target_fingerprint": target_fingerprint(target),
        "target_name": target.name,
        "tokenizer_fingerprint": load_tokenizer(target).fingerprint,
        "eos_ids": [257],
    }
    drafter = tiny_drafter(HFTarget.load(target), **options)
    save_drafter(folder, drafter, meta, config={"target": str(target)})
    return folder


def make_vocab(folder: Path, tokenizer: Path, *, size: int = 64, eos: bool = True) -> Path:
    """A subset artefact of the first ids and, if wanted, the end token."""
    import numpy as np

    from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
    from vocabforge.vocab.subset.subset import VocabSubset, save_subset

    loaded = load_tokenizer(tokenizer)
    ids = np.array([*range(size - 1), 257 if eos else size - 1])
    subset = VocabSubset.from_ranked(ids, vocab_size=loaded.vocab_size, fingerprint=loaded.fingerprint)
    save_subset(subset, folder)
    return folder


def make_world(folder: Path) -> World:
    target = make_target(folder / "target")
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"story {n}: " + "once upon a time " * 8 for n in range(30)), "utf-8")
    return World(target, make_drafter(folder / "drafter", target), make_vocab(folder / "vocab", target), text)


def ttt_loss(drafter: Any, target: Any, batch: Any, *, steps: int, decay: float, **settings: Any) -> Any:
    """Loss and figures of one captured batch that is the whole batch of its step."""
    from torch import nn

    from vocabforge.train.config import TTTConfig
    from vocabforge.train.step import TrainStep
    from vocabforge.train.ttt import rows_by_step

    ttt = TTTConfig(decay=decay, token_weight=1.0, feature_weight=0.0, **settings)
    step = TrainStep(drafter, nn.ModuleDict(), target.head_weight, ttt)
    loss, figures, _ = step(batch, steps, rows_by_step(batch.loss_mask, batch.document, steps))
    return loss, figures


def write_questions(file: Path, *questions: Sequence[str]) -> Path:
    """Questions by their turns."""
    rows = ({"question_id": at, "category": "qa", "turns": turns} for at, turns in enumerate(questions))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def cached_model(
    monkeypatch: pytest.MonkeyPatch, cache: Path, name: str, files: Path | dict[str, str]
) -> Path:
    """A folder, or files, as huggingface_hub keeps a model of that name; ``cache`` is the Hub's from now on."""
    import shutil

    from huggingface_hub import constants

    commit = "c" * 40
    storage = cache / f"models--{name.replace('/', '--')}"
    place = storage / "snapshots" / commit
    if isinstance(files, Path):
        shutil.copytree(files, place)
    else:
        place.mkdir(parents=True)
        for file, text in files.items():
            (place / file).write_text(text)
    (storage / "refs").mkdir(exist_ok=True)
    (storage / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return place
