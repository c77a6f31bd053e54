"""Tiny random targets of every architecture that the documentation lists, with windows and chunks of 8 tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

VOCAB, WINDOW = 96, 8
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


@dataclass(frozen=True)
class Architecture:
    """One configuration.

    Attributes:
        config: class in transformers.
        keys: beside the common sizes.
        drafts: what can be verified: trees, chains, or nothing.
        without: common sizes that this configuration does not take.
        rows: requests side by side.
    """

    config: str
    keys: dict[str, Any] = field(default_factory=dict)
    drafts: Literal["trees", "chains"] = "trees"
    without: tuple[str, ...] = ()
    rows: int = 3


_WINDOWED = {"sliding_window": WINDOW}
_TYPES = {"layer_types": ["sliding_attention", "full_attention"] * 2}

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaConfig"),
    "llama-3 rope": Architecture(
        "LlamaConfig",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2.5": Architecture("Qwen2Config"),
    "qwen3": Architecture("Qwen3Config"),
    "qwen3-moe": Architecture("Qwen3MoeConfig", {**_EXPERTS, "num_experts": 4}),
    "mixtral": Architecture("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "minimax-m2": Architecture("MiniMaxM2Config", {**_EXPERTS, "num_local_experts": 4, "num_experts": 4}),
    "mistral": Architecture("MistralConfig", _WINDOWED),
    "phi-3": Architecture("Phi3Config", _WINDOWED),
    "starcoder2": Architecture("Starcoder2Config", _WINDOWED),
    "smollm3": Architecture("SmolLM3Config"),
    "gpt-oss": Architecture(
        "GptOssConfig", {**_WINDOWED, **_TYPES, "num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "gemma-2": Architecture("Gemma2Config", {**_WINDOWED, **_TYPES, "query_pre_attn_scalar": 16}),
    "gemma-3": Architecture("Gemma3TextConfig", {**_WINDOWED, **_TYPES, "query_pre_attn_scalar": 16}),
    "olmo-2": Architecture("Olmo2Config"),
    "olmo-3": Architecture("Olmo3Config", {**_WINDOWED, **_TYPES}),
    "exaone-4": Architecture("Exaone4Config", {**_WINDOWED, **_TYPES}),
    "cohere-2": Architecture("Cohere2Config", {**_WINDOWED, **_TYPES}),
    "llama-4": Architecture(
        "Llama4TextConfig",
        {
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": WINDOW,
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "no_rope_layers": [1, 0, 1, 0],
            "floor_scale": 4,
        },
        rows=1,
    ),
    "glm-4": Architecture("Glm4Config"),
    "glm-4-moe": Architecture(
        "Glm4MoeConfig",
        {**_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    ),
    "ministral-3": Architecture("Ministral3Config"),
    "hunyuan": Architecture("HunYuanDenseV1Config"),
    "seed-oss": Architecture("SeedOssConfig"),
    "ernie-4.5": Architecture("Ernie4_5Config"),
    "gpt-2": Architecture(
        "GPT2Config",
        {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512},
        without=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
            "head_dim",
        ),
    ),
    "deepseek-v3": Architecture(
        "DeepseekV3Config",
        {
            **_EXPERTS,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 24,
            "num_key_value_heads": 4,
        },
        without=("head_dim",),
    ),
    "granite": Architecture("GraniteConfig", {"logits_scaling": 8.0, "embedding_multiplier": 12.0}),
    "granite-moe": Architecture(
        "GraniteMoeConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "logits_scaling": 8.0}
    ),
    "qwen3-next": Architecture(
        "Qwen3NextConfig",
        {
            **_EXPERTS,
            "num_experts": 4,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
        drafts="chains",
    ),
    "qwen3.5": Architecture(
        "Qwen3_5TextConfig",
        {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
        drafts="chains",
    ),
    "lfm2": Architecture(
        "Lfm2Config",
        {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "block_ff_dim": 96},
        drafts="chains",
    ),
    "falcon-h1": Architecture(
        "FalconH1Config",
        {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1},
        drafts="chains",
    ),
    "granite-hybrid": Architecture(
        "GraniteMoeHybridConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 32,
            "layer_types": ["mamba", "attention"] * 2,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
        },
        drafts="chains",
    ),
    "nemotron-h": Architecture(
        "NemotronHConfig",
        {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 1},
        drafts="chains",
    ),
    "mamba-2": Architecture(
        "Mamba2Config",
        {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2},
        drafts="chains",
    ),
}


def make_architecture(name: str, **changes: Any) -> Any:
    """A random model of that name, fp32, with weights large enough that attention matters."""
    import transformers

    row = ARCHITECTURES[name]
    sizes = {key: value for key, value in _SIZES.items() if key not in row.without}
    config = getattr(transformers, row.config)(**{**sizes, **row.keys, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
        model.get_input_embeddings().weight.mul_(4)
    return model
