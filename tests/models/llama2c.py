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
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


def _halves(matrix: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder (heads * D, d) rows in every head: even rows first, then odd."""
    heads = matrix.reshape(-1, head_dim // 2, 2, matrix.shape[-1])
    return heads.transpose(0, 2, 1, 3).reshape(matrix.shape)


SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "vocab_size"),
)


def convert(binary: Path, config: Path, folder: Path) -> None:
    """Write ``folder`` with the ``config.json`` given and the binary's weights as model.safetensors."""
    header: list[int] = np.fromfile(binary, "<i4", 7).tolist()
    dim, inner, layers, heads, kv_heads, vocab, seq_len = header
    values = json.loads(config.read_text("utf-8"))
    assert vocab > 0, "an output matrix of its own"
    assert [dim, inner, layers, heads, kv_heads, vocab] == [values[name] for name in SIZES]
    data = np.fromfile(binary, "<f4", offset=28)
    head_dim, used = dim // heads, 0

    def take(*shape: int) -> np.ndarray:
        nonlocal used
        start, used = used, used + int(np.prod(shape))
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
    assert used == data.size, f"{binary} holds {data.size} numbers, its header promises {used}"
    for name, stack in stacks.items():
        rotary = name.endswith(("q_proj", "k_proj"))
        for index, matrix in enumerate(stack):
            chosen = _halves(matrix, head_dim) if rotary else matrix
            tensors[f"model.layers.{index}.{name}.weight"] = chosen
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config, folder / "config.json")
    save_file({name: torch.from_numpy(t.copy()) for name, t in tensors.items()}, folder / "model.safetensors")


if __name__ == "__main__":
    *source, tokenizer, target = map(Path, sys.argv[1:])
    convert(*source, target)
    shutil.copyfile(tokenizer, target / "tokenizer.json")
