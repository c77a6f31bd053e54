"""Random EAGLE-3 drafters of every form, and writing them without a target model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from vocabforge.layouts.interface import Export
from vocabforge.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter
from vocabforge.models.rope import RopeSettings
from vocabforge.models.target.head import TargetTensors

LAYERS = 12  # of the target that these drafters are for
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "bos_token_id": 1,
    "eos_token_id": [2, 7],
}
ROPES = (
    RopeSettings(),
    RopeSettings(theta=7e4),
    RopeSettings(theta=1e4, kind="linear", factor=3.0),
    RopeSettings(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
    RopeSettings(1.5e5, "yarn", 32.0, original_positions=4096, beta_fast=32.0, beta_slow=1.0, truncate=False),
    RopeSettings(1e4, "yarn", 40.0, original_positions=4096, attention_factor=1.0),
)
H, V, ROWS, D, HEADS, KV, INNER = 16, 31, 9, 6, 4, 2, 20  # sizes of `config_of`
# Tensors of such a drafter in the published form, without a head of its own.
SHAPES = {
    "fc.weight": (H, 3 * H),
    "midlayer.self_attn.q_proj.weight": (HEADS * D, 2 * H),
    "midlayer.self_attn.k_proj.weight": (KV * D, 2 * H),
    "midlayer.self_attn.v_proj.weight": (KV * D, 2 * H),
    "midlayer.self_attn.o_proj.weight": (H, HEADS * D),
    "midlayer.mlp.gate_proj.weight": (INNER, H),
    "midlayer.mlp.up_proj.weight": (INNER, H),
    "midlayer.mlp.down_proj.weight": (H, INNER),
    "midlayer.hidden_norm.weight": (H,),
    "midlayer.input_layernorm.weight": (H,),
    "midlayer.post_attention_layernorm.weight": (H,),
    "norm.weight": (H,),
}
OWN_HEAD = {"lm_head.weight": (ROWS, H), "d2t": (ROWS,), "t2d": (V,)}
VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "qk_norm")


def drafter_of(config: Eagle3Config, seed: int = 0) -> Eagle3Drafter:
    """Random weights over a random embedding and head; an own head below V holds random ascending ids."""
    torch.manual_seed(seed)
    shape = (config.vocab_size, config.hidden_size)
    rows = config.draft_vocab_size
    ids = None
    if rows is not None and rows < config.vocab_size:
        ids = torch.randperm(config.vocab_size)[:rows].sort().values
    drafter = Eagle3Drafter(config, torch.randn(shape), torch.randn(shape), ids)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.normal_()
    return drafter.eval().requires_grad_(False)


def config_of(**changes: Any) -> Eagle3Config:
    """A drafter's sizes, small and all different."""
    sizes: dict[str, Any] = {
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_heads": HEADS,
        "num_kv_heads": KV,
        "head_dim": D,
        "vocab_size": V,
        "draft_vocab_size": ROWS,
        "aux_layers": (1, 5, 8),
        "max_position_embeddings": 64,
        "rms_norm_eps": 3e-6,
        "rope": ROPES[1],
    }
    return Eagle3Config(**{**sizes, **changes})


def random_config(seed: int, forms: tuple[str, ...], last: int, least: int) -> Eagle3Config:
    """Random sizes, RoPE and head, at least ``least`` layers up to ``last``; ``forms``: switches that may be on."""
    draw = random.Random(seed)
    kv = draw.choice((1, 2))
    vocab = draw.randint(12, 40)
    on = {name: True for name in forms if draw.random() < 0.4}
    if on.get("norm_before_fc"):
        on.pop("fc_norm", None)
    return config_of(
        hidden_size=draw.choice((8, 12, 16)),
        intermediate_size=draw.randint(5, 30),
        num_kv_heads=kv,
        num_heads=kv * draw.choice((1, 2, 3)),
        head_dim=2 * draw.randint(1, 6),
        vocab_size=vocab,
        draft_vocab_size=draw.choice((None, vocab, draw.randint(1, vocab - 1))),
        aux_layers=tuple(sorted(draw.sample(range(last + 1), draw.randint(least, 5)))),
        max_position_embeddings=draw.choice((32, 200)),
        rms_norm_eps=draw.choice((1e-5, 1e-6, 3.3e-6)),
        rope=draw.choice(ROPES),
        **on,
    )


def shared_of(drafter: Eagle3Drafter) -> TargetTensors:
    return TargetTensors(drafter.embedding, drafter.target_head)


def write(
    layout: Any, path: Path, drafter: Any, dtype: torch.dtype = torch.float32, **fields: Any
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Write a folder; its configuration and tensors."""
    target = {**TARGET, **fields.pop("target", {})}
    layout.write(path, Export(drafter, target, shared_of(drafter), "org/target", dtype, **fields))
    return json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")


def shapes_of(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def put(path: Path, body: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """A folder as another tool may have written it: no manifest."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(body))
    save_file(tensors, path / "model.safetensors")
    return path


def assert_same(loaded: Eagle3Drafter, drafter: Eagle3Drafter, dtype: torch.dtype = torch.float32) -> None:
    """The same sizes, ids and, as ``dtype`` rounds them, the same parameters bit for bit."""
    assert loaded.config == drafter.config
    assert torch.equal(loaded.target_ids, drafter.target_ids)
    ours, theirs = dict(drafter.named_parameters()), dict(loaded.named_parameters())
    assert list(ours) == list(theirs)
    for name, parameter in ours.items():
        assert torch.equal(theirs[name], parameter.to(dtype).float()), name
