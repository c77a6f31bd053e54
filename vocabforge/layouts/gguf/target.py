"""Llama and Qwen3 targets as floating-point GGUF files. For other targets use llama.cpp's converter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ...core.errors import MismatchError
from ...models.checkpoint import EMBEDDING, FINAL_NORM, LM_HEAD, checkpoint_files, read_headers
from ...models.lean.config import LeanConfig
from .file import LAYER, ROPES, add_tensor, gguf_file, to_neighbours

# model_type -> llama.cpp's architecture, and whether its rotary pairs are adjacent
_ARCHITECTURES = {"llama": ("llama", True), "qwen3": ("qwen3", False)}
_OUTSIDE = {EMBEDDING: "token_embd", FINAL_NORM: "output_norm", LM_HEAD: "output"}


def check_target(folder: Path) -> LeanConfig:
    """Return the sizes of a target; check that it can be written.

    Raises:
        MismatchError: it cannot be written; the remedy names supported targets.
    """
    config = LeanConfig.from_hf_config(folder)
    kind = config.family.model_type
    other = [f"{name}_bias" for name in ("qkv", "o", "mlp") if getattr(config, f"{name}_bias")]
    other += ["sliding attention"] if any(config.sliding_layers) else []
    other += [config.hidden_act] if config.hidden_act != "silu" else []
    other += [f"RoPE of kind {config.rope.kind}"] if config.rope.kind not in ROPES else []
    if kind not in _ARCHITECTURES or other:
        raise MismatchError(
            "this target is not written to GGUF here",
            got=" with ".join([kind, ", ".join(other)] if other else [kind]),
            expected=f"a plain {' or '.join(_ARCHITECTURES)}",
            source=folder,
            remedy="leave --with-target out, and convert the target with llama.cpp's convert_hf_to_gguf.py",
        )
    return config


def write_target(path: Path, folder: Path, name: str, dtype: torch.dtype) -> None:
    """Write a target's weights and tokenizer for llama.cpp.

    Raises:
        MismatchError: see :func:`check_target`.
    """
    config = check_target(folder)
    architecture, neighbours = _ARCHITECTURES[config.family.model_type]
    sizes = {"layers": config.num_layers, "positions": config.max_positions}
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if neighbours else {}
    with gguf_file(path, architecture, config, **sizes, dtype=dtype, tokenizer=folder, name=name) as writer:
        for ours, tensor in _tensors(folder):
            theirs, part = _gguf_name(ours), ours.rsplit(".", 2)[-2]
            moved = to_neighbours(tensor, heads[part]) if part in heads else tensor
            add_tensor(writer, theirs, moved, dtype)


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for name, item in read_headers(checkpoint_files(folder)).items():
        with safe_open(item.file, "pt") as file:
            yield name, file.get_tensor(item.name)


def _gguf_name(name: str) -> str:
    if name in _OUTSIDE:
        return f"{_OUTSIDE[name]}.weight"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if match is None or match[2] not in LAYER:
        raise MismatchError(
            "the target holds a tensor that has no place in GGUF",
            got=name,
            expected="the tensors of its configuration",
            remedy="convert the target with llama.cpp's convert_hf_to_gguf.py",
        )
    return f"blk.{match[1]}.{LAYER[match[2]]}.weight"
