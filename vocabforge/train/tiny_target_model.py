"""The Llama of a small target and the tokenizer that goes with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from ..core.errors import DataError
from ..corpus.tokenizer import TextTokenizer, load_tokenizer
from ..corpus.tokenizer_files import find_tokenizer_json, usual_eos_ids
from ..models.target import check_tokenizer_fits
from .induction import build_induction
from .tiny_target_config import TinyTargetConfig

# What AutoTokenizer may read of a folder; those that are there are copied.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def copy_tokenizer(source: Path, folder: Path) -> TextTokenizer:
    """Copy a tokenizer's files into ``folder`` and load it from there.

    Raises:
        DataError: no usable tokenizer, or none that says where an answer ends.
    """
    for path in tokenizer_files(source):
        shutil.copyfile(path, folder / path.name)
    tokenizer = load_tokenizer(folder)
    if not _end_ids(tokenizer, given=True):
        raise DataError(
            "the tokenizer names no end token, so that the target could not end its answers",
            expected="eos_token in tokenizer_config.json",
            source=source,
            remedy="write eos_token into tokenizer_config.json",
        )
    return tokenizer


def tokenizer_files(source: Path) -> list[Path]:
    """The files of a tokenizer's folder that belong to it.

    Raises:
        DataError: there is no tokenizer.json.
    """
    folder = find_tokenizer_json(source).parent
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def build_model(config: TinyTargetConfig, tokenizer: TextTokenizer) -> Any:
    """A fresh Llama, on the CPU, in fp32.

    Raises:
        MismatchError: the tokenizer has more entries than ``config.rows``.
        UsageError: the model is too small for the circuit that ``config.induction`` asks for.
    """
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()  # a bar for one small file, in the middle of ours
    torch.manual_seed(config.seed)
    rows = tokenizer.vocab_size if config.rows is None else config.rows
    check_tokenizer_fits(tokenizer.vocab_size, rows, tokenizer=tokenizer.source, target="this target")
    ends = _end_ids(tokenizer, given=config.tokenizer is not None)
    pad = tokenizer.backend.token_to_id(tokenizer.special_text.get("pad_token", ""))
    settings = LlamaConfig(
        vocab_size=rows,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=config.max_position_embeddings,
        rope_theta=config.rope_theta,
        initializer_range=config.init_std,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends[0],
        pad_token_id=ends[0] if pad is None else pad,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(settings)
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends
    _start_copying(model)
    if config.induction:
        build_induction(model, config.sequence_length)
    return model


def _end_ids(tokenizer: TextTokenizer, *, given: bool) -> list[int]:
    """End tokens, the one of a turn first. A tokenizer that others made may end plain texts by another one, as Qwen3's
    does: that one ends answers, too."""
    return list(dict.fromkeys([*tokenizer.eos_ids, *(usual_eos_ids(tokenizer.backend) if given else ())]))


@torch.no_grad()
def _start_copying(model: Any) -> None:
    """Let attention start as copying and the MLPs as nothing.

    The output matrix of each head starts as the transpose of its value matrix, so that a token that is
    attended to raises its own logit (mimetic initialisation, Trockman and Kolter 2023, with the sign for
    copying). Answers repeat much of their prompts, and a tiny target sees few tokens to learn that from.
    """
    config = model.config
    groups = config.num_attention_heads // config.num_key_value_heads
    for layer in model.model.layers:
        values = layer.self_attn.v_proj.weight  # (nkv * D, H)
        heads = values.view(config.num_key_value_heads, -1, config.hidden_size).repeat_interleave(groups, 0)
        layer.self_attn.o_proj.weight.copy_(heads.flatten(0, 1).T)  # (H, nq * D)
        layer.mlp.down_proj.weight.zero_()
