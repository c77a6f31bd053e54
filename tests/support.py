"""What several tests share: the development data's place and tiny models."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("VOCABFORGE_DATA", ROOT.parent / "shared" / "data"))

needs_data = pytest.mark.skipif(
    not (DATA / "SOURCES.md").is_file(),
    reason=f"development data not found at {DATA} (set VOCABFORGE_DATA)",
)


def tiny_target(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A random Llama of a few thousand parameters, saved as a Hugging Face folder (no tokenizer)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

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
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))
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


def ttt_loss(drafter: Any, target: Any, batch: Any, *, steps: int, decay: float, **settings: Any) -> Any:
    """Loss and figures of one captured batch that is the whole batch of its step."""
    from torch import nn

    from vocabforge.train.step import StepSettings, TrainStep
    from vocabforge.train.ttt import rows_by_step

    step = TrainStep(drafter, nn.ModuleDict(), target.head_weight, StepSettings(decay=decay, **settings))
    loss, figures, _ = step(batch, steps, rows_by_step(batch.loss_mask, batch.document, steps))
    return loss, figures


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
