"""Shapes that training is measured at: random weights of a known architecture, nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..capture.online import RowBatch
from ..core.errors import UsageError, did_you_mean
from ..models.target import HFTarget


@dataclass(frozen=True)
class Shape:
    """A target's sizes, and rows that fit one device.

    Attributes:
        model_type: Hugging Face's name of the architecture.
        sizes: fields of its configuration.
        batch, length: packed rows a step, and their tokens.
        steps: K of the training-time test.
        loss_rows: rows for the vocabulary loss alone.
    """

    model_type: str
    sizes: Mapping[str, Any]
    batch: int
    length: int
    steps: int = 7
    loss_rows: int = 8192


def _sizes(
    hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        **more,
    }


_LONG = {"head_dim": 128, "max_position_embeddings": 40_960}

SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        # As bitllama-3M: many rows of a tiny vocabulary.
        "tiny": Shape("llama", _sizes(256, 256, 8, 8, 4, 512), batch=4, length=256, steps=4, loss_rows=4096),
        "tiny-long": Shape(
            "llama", _sizes(256, 256, 8, 8, 4, 512), batch=1, length=512, steps=4, loss_rows=4096
        ),
        "small": Shape(
            "llama", _sizes(256, 512, 4, 8, 4, 16_384), batch=1, length=512, steps=4, loss_rows=1024
        ),
        "qwen3-0.6b": Shape(
            "qwen3",
            _sizes(1024, 3072, 28, 16, 8, 151_936, **{**_LONG, "tie_word_embeddings": True}),
            batch=8,
            length=2048,
        ),
        "qwen3-8b": Shape("qwen3", _sizes(4096, 12_288, 36, 32, 8, 151_936, **_LONG), batch=4, length=2048),
        "llama3-8b": Shape("llama", _sizes(4096, 14_336, 32, 32, 8, 128_256, **_LONG), batch=4, length=2048),
    }
)
CPU_SHAPES = ("tiny", "tiny-long", "small")
CUDA_SHAPES = ("qwen3-0.6b", "qwen3-8b", "llama3-8b")


def find_shape(name: str) -> Shape:
    """The shape of this name.

    Raises:
        UsageError: there is none; names those that there are.
    """
    if name not in SHAPES:
        raise UsageError(
            "there is no shape of this name",
            got=name,
            expected=", ".join(SHAPES),
            remedy=did_you_mean(name, SHAPES),
        )
    return SHAPES[name]


def random_target(shape: Shape, device: torch.device, dtype: torch.dtype) -> HFTarget:
    """A target with random weights, made on the device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(shape.model_type, **shape.sizes)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    return HFTarget(model, source=f"random weights of the shape {shape.model_type}")


def random_rows(shape: Shape, device: torch.device, seed: int) -> RowBatch:
    """Rows of one document each, all of it the assistant's, so that nearly every row counts."""
    size = (shape.batch, shape.length)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, int(shape.sizes["vocab_size"]), size, generator=generator)
    position = torch.arange(shape.length).expand(size)
    ones = torch.ones(size, dtype=torch.int64)

    def move(x: Tensor) -> Tensor:
        return x.contiguous().to(device)

    return RowBatch(move(ids), move(ones.bool()), move(ones), move(position))
