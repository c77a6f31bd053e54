"""Tiny Hugging Face models of every family, and ways to run the lean decoder over a text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from vocabforge.models.kv_cache import causal_mask
from vocabforge.models.lean.config import FAMILIES
from vocabforge.models.lean.model import LeanModel

VOCAB = 67
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 3.0}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "rope_theta": 9_000.0, "factor": 8.0, "original_max_position_embeddings": 16}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "hidden_size": 32}
MOE = {**EXPERTS, "num_experts": 5, "moe_intermediate_size": 12, "head_dim": 12}
BY_TYPE = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
TWO_ROPES = {
    "rope_parameters": {
        "full_attention": {**LINEAR},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    }
}
GRANITE = {
    "embedding_multiplier": 6.5,
    "attention_multiplier": 0.4,
    "residual_multiplier": 0.3,
    "logits_scaling": 0.7,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "qwen3-moe": ("qwen3_moe", {**MOE, "norm_topk_prob": True}),
    "qwen3-moe-all-probabilities": (
        "qwen3_moe",
        {**MOE, "norm_topk_prob": False, "tie_word_embeddings": True},
    ),
    "qwen3-moe-some-layers": ("qwen3_moe", {**MOE, "mlp_only_layers": [1], "rope_parameters": YARN}),
    "qwen3-moe-every-second": ("qwen3_moe", {**MOE, "decoder_sparse_step": 2, "attention_bias": True}),
    "qwen3-moe-window": ("qwen3_moe", {**MOE, "use_sliding_window": True, "sliding_window": 5}),
    "mixtral": ("mixtral", {**EXPERTS, "num_local_experts": 3}),
    "mixtral-window": ("mixtral", {**EXPERTS, "num_local_experts": 4, "sliding_window": 6}),
    "gpt-oss": (
        "gpt_oss",
        {**EXPERTS, **BY_TYPE, "num_local_experts": 4, "head_dim": 8, "rope_parameters": YARN},
    ),
    "gpt-oss-default": (
        "gpt_oss",
        {**EXPERTS, "sliding_window": 4, "num_local_experts": 3, "head_dim": 16, "swiglu_limit": 0.5},
    ),
    "gemma-3": ("gemma3_text", {**BY_TYPE, **TWO_ROPES, "head_dim": 12, "query_pre_attn_scalar": 5}),
    "gemma-3-tied": (
        "gemma3_text",
        {**BY_TYPE, "head_dim": 8, "tie_word_embeddings": True, "final_logit_softcapping": 2.0},
    ),
    "glm-4": ("glm4", {"head_dim": 12, "attention_bias": True}),
    "glm-4-quarter": (
        "glm4",
        {"head_dim": 16, "attention_bias": False, "rope_parameters": {**YARN, "partial_rotary_factor": 0.25}},
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "smollm3-default": ("smollm3", {"num_hidden_layers": 5, "tie_word_embeddings": True, "mlp_bias": True}),
    "smollm3-window": (
        "smollm3",
        {
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 5,
            "attention_bias": True,
        },
    ),
    "granite": ("granite", {**GRANITE}),
    "granite-bias": (
        "granite",
        {**GRANITE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "olmo3": ("olmo3", {**BY_TYPE, **TWO_ROPES}),
    "olmo3-bias": ("olmo3", {**BY_TYPE, "attention_bias": True, "tie_word_embeddings": True}),
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 12, "num_key_value_heads": 1}),
    "llama-mha": ("llama", {"num_key_value_heads": 4, "rms_norm_eps": 1e-2}),
    "llama-llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": ("llama", {"rope_parameters": LINEAR}),
    "llama-relu2": ("llama", {"hidden_act": "relu2"}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 6}),
    "mistral-head-dim": ("mistral", {"sliding_window": 4, "head_dim": 6}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True, "sliding_window": 3}),
    "qwen2-window": ("qwen2", WINDOWED),
    "qwen2-layer-types": (
        "qwen2",
        {**WINDOWED, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "qwen3-bias-window": ("qwen3", {"head_dim": 8, "attention_bias": True, **WINDOWED}),
    "qwen3-tied": ("qwen3", {"head_dim": 10, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "olmo2": ("olmo2", {}),
    "olmo2-bias": ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}),
    "olmo2-head-dim": ("olmo2", {"head_dim": 6, "tie_word_embeddings": True}),
    "bitnet": ("bitnet", {"hidden_act": "silu"}),
    "bitnet-relu2": ("bitnet", {"hidden_act": "relu2", "tie_word_embeddings": True}),
    "bitnet-bias": ("bitnet", {"attention_bias": True, "num_key_value_heads": 1}),
}


def random_case(model_type: str, seed: int) -> tuple[str, dict[str, Any]]:
    """A configuration with sizes and switches drawn at random, valid for the family."""
    draw = random.Random(f"{model_type}{seed}")
    heads = draw.choice([2, 3, 4, 6])
    hidden = heads * draw.choice([4, 6, 8, 10])
    values: dict[str, Any] = {
        "vocab_size": draw.randint(20, 90),
        "hidden_size": hidden,
        "intermediate_size": draw.randint(5, 60),
        "num_hidden_layers": draw.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "rope_parameters": draw.choice([LLAMA3, LINEAR, {"rope_type": "default", "rope_theta": 700.0}]),
        "attention_bias": draw.random() < 0.5,
        "sliding_window": draw.randint(2, 12),
        "use_sliding_window": draw.random() < 0.7,
        "max_window_layers": draw.randint(0, 2),
        # BitNet's norm before o_proj has hidden_size entries, so its heads must fill the hidden size.
        "head_dim": hidden // heads if model_type == "bitnet" else draw.choice([4, 6, 8, 14]),
    }
    family = next(one for one in FAMILIES.values() if one.model_type == model_type)
    if family.rope == "types":
        kinds = ("full_attention", "sliding_attention")
        values["rope_parameters"] = {
            kind: dict(draw.choice([LLAMA3, LINEAR, {"rope_type": "default", "rope_theta": 700.0}]))
            for kind in kinds
        }
    if family.rope == "neighbours":
        values["rope_parameters"] = {
            **values["rope_parameters"],
            "partial_rotary_factor": draw.choice([0.5, 1.0]),
        }
        values["head_dim"] = draw.choice([4, 8, 12])
    if family.windows == "types":
        drawn = draw.choices(["full_attention", "sliding_attention"], k=values["num_hidden_layers"])
        values["layer_types"] = drawn
    if family.scales == "granite":
        values |= {key: draw.uniform(0.3, 3.0) for key in GRANITE}
    if family.experts is not None:  # grouped products want vectors of 16 bytes
        count = draw.randint(2, 6)
        values |= {"hidden_size": 4 * draw.randint(2, 10), "intermediate_size": 4 * draw.randint(1, 10)}
        values |= {
            "num_experts": count,
            "num_local_experts": count,
            "num_experts_per_tok": draw.randint(1, count),
        }
        values |= {"moe_intermediate_size": 4 * draw.randint(1, 10), "norm_topk_prob": draw.random() < 0.5}
    return model_type, values


CASES |= {
    f"{traits.model_type}-random{seed}": random_case(traits.model_type, seed)
    for traits in FAMILIES.values()
    for seed in range(3)
}


def build(case: str, folder: Path, **save: Any) -> torch.nn.Module:
    """Make a case's Hugging Face model, with no weight at its initial value, and save it to ``folder``."""
    model_type, changes = CASES[case]
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    return build_from_config(config, folder, **save)


def build_from_config(config: Any, folder: Path, **save: Any) -> torch.nn.Module:
    torch.manual_seed(11)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
            elif parameter.dim() == 3:  # experts
                parameter.normal_(std=max(parameter.shape[1:]) ** -0.5)
            else:
                # Norm scales around 1 and biases around 0, all different, so that none can be forgotten.
                parameter.normal_(mean=0.0 if name.endswith("bias") else 1.0, std=0.3)
    model.save_pretrained(folder, **save)
    return model


def window_mask(model: LeanModel, q_positions: Tensor, key_positions: Tensor) -> Tensor | None:
    window = model.config.sliding_window
    if window is None:
        return None
    return causal_mask(q_positions, key_positions) & (q_positions[:, None] - key_positions < window)


@torch.inference_mode()
def run_full(model: LeanModel, ids: Tensor, aux_layers: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
    """Logits (B, T, V) and aux of one pass over (B, T) ids."""
    return run_chunks(model, ids, [ids.shape[1]], torch.arange(ids.shape[1]), aux_layers)


@torch.inference_mode()
def run_chunks(
    model: LeanModel, ids: Tensor, chunks: list[int], slots: Tensor, aux_layers: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor | None]:
    """The same in chunks; position p goes to slot ``slots[p]``, slots not yet written are poisoned."""
    capacity = int(slots.max()) + 4
    cache = model.new_cache(capacity, batch=ids.shape[0])
    cache.k.fill_(50.0)
    cache.v.fill_(-1e4)
    key_positions = torch.full((capacity,), -1)
    logits, aux, start = [], [], 0
    for size in chunks:
        positions = torch.arange(start, start + size)
        key_positions[slots[positions]] = positions
        out = model(
            ids[:, positions],
            positions.expand(ids.shape[0], -1),
            cache=cache,
            slots=slots[positions],
            mask=causal_mask(positions, key_positions),
            window_mask=window_mask(model, positions, key_positions),
            aux_layers=aux_layers,
        )
        logits.append(model.logits(out.hidden))
        aux.append(out.aux)
        start += size
    return torch.cat(logits, 1), torch.cat(aux, 1) if aux_layers else None


@torch.inference_mode()
def greedy(model: LeanModel, prompt: list[int], count: int) -> tuple[list[int], Tensor]:
    """``count`` greedy tokens after a prompt, and the prompt's logits (T, V)."""
    total = len(prompt) + count
    cache, slots = model.new_cache(total), torch.arange(total)
    new: list[int] = []
    step, start = torch.tensor([prompt]), 0
    prompt_logits = None
    while len(new) < count:
        positions = slots[start : start + step.shape[1]]
        mask, limited = causal_mask(positions, slots), window_mask(model, positions, slots)
        out = model(step, positions[None], cache=cache, slots=positions, mask=mask, window_mask=limited)
        logits = model.logits(out.hidden)[0]
        prompt_logits = logits if prompt_logits is None else prompt_logits
        new.append(int(logits[-1].argmax()))
        start += step.shape[1]
        step = torch.tensor([[new[-1]]])
    assert prompt_logits is not None
    return new, prompt_logits
