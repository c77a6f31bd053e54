"""Convert a llama2.c checkpoint (legacy layout) to a Hugging Face folder.

Run as ``python tests/models/llama2c.py MODEL.bin CONFIG.json TOKENIZER.json FOLDER``, or call :func:`convert`.

Layout: seven little-endian int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len), then
fp32 tensors; rotary pairs are adjacent (2i, 2i + 1) and become halves (i, i + D/2) here. A positive
vocab_size means that the output matrix is the embedding.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def _halves(matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder (heads * D, d) rows in every head: even rows first, then odd."""
    heads = matrix.reshape(-1, head_dim // 2, 2, matrix.shape[-1])
    return heads.transpose(0, 2, 1, 3).reshape(matrix.shape)


SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def _header(binary: Path, config: Path) -> list[int]:
    """The seven numbers at the beginning, which must be those of the configuration."""
    header: list[int] = np.fromfile(binary, "<i4", 7).tolist()
    if len(header) < 7:
        raise ValueError(f"{binary} is too short for a llama2.c checkpoint")
    if header[5] <= 0:
        raise ValueError("untied llama2.c checkpoints are not handled here")
    wanted = json.loads(config.read_text("utf-8"))
    for name, found in zip(SIZES, header):
        if wanted[name] != found:
            raise ValueError(f"{name} is {found} in {binary} and {wanted[name]} in {config}")
    return header


def convert(binary: Path, config: Path, folder: Path) -> None:
    """Write ``folder`` with the ``config.json`` given and the binary's weights as model.safetensors.

    Raises:
        ValueError: a file of another size than its header says, another model than the configuration's, or an
            output matrix of its own.
    """
    dim, inner, layers, heads, kv_heads, vocab, seq_len = _header(binary, config)
    data = np.fromfile(binary, "<f4", offset=28)
    head_dim, used = dim // heads, 0

    def take(*shape: int) -> np.ndarray:
        nonlocal used
        start, used = used, used + int(np.prod(shape))
        if used > data.size:
            raise ValueError(f"{binary} holds {data.size} numbers, its header promises more")
        return data[start:used].reshape(shape)

    tensors = {"model.embed_tokens.weight": take(vocab, dim)}
    kv_dim = kv_heads * head_dim
    stacks = {
        "input_layernorm": take(layers, dim),
        "self_attn.q_proj": take(layers, dim, dim),
        "self_attn.k_proj": take(layers, kv_dim, dim),
        "self_attn.v_proj": take(layers, kv_dim, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, inner, dim),
        "mlp.down_proj": take(layers, dim, inner),
        "mlp.up_proj": take(layers, inner, dim),
    }
    tensors["model.norm.weight"] = take(dim)
    take(2, seq_len, head_dim // 2)  # rotary tables, recomputed by whoever reads
    if used != data.size:
        raise ValueError(f"{binary} holds {data.size} numbers, its header promises {used}")
    for name, stack in stacks.items():
        rotary = name.endswith(("q_proj", "k_proj"))
        for index, matrix in enumerate(stack):
            chosen = _halves(matrix, head_dim) if rotary else matrix
            tensors[f"model.layers.{index}.{name}.weight"] = chosen
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config, folder / "config.json")
    save_file({name: torch.from_numpy(t.copy()) for name, t in tensors.items()}, folder / "model.safetensors")


def main(arguments: Sequence[str]) -> int:
    """Convert, and put the tokenizer beside the weights."""
    if len(arguments) != 4:
        print("usage: llama2c.py MODEL.bin CONFIG.json TOKENIZER.json FOLDER", file=sys.stderr)
        return 2
    binary, config, tokenizer, folder = map(Path, arguments)
    try:
        convert(binary, config, folder)
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
