"""Tiny random targets of every family with an MTP module, written as their publishers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vocabforge.layouts.registry import load_drafter
from vocabforge.models.drafters.io import save_drafter
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.head import load_target_tensors

_SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.4,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 12}
_LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_GROUPS = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}

# model_type of the text configuration -> keys beside the common sizes.
FAMILY_KEYS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        **_EXPERTS,
        **_GROUPS,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 10,
        "head_dim": 4,
        "num_nextn_predict_layers": 1,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 64,
        },
    },
    "glm4_moe": {
        **_EXPERTS,
        **_GROUPS,
        "attention_bias": True,
        "use_qk_norm": True,
        "num_nextn_predict_layers": 1,
        "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
    },
    "qwen3_next": {
        **_EXPERTS,
        **_LINEAR,
        "num_experts": 4,
        "shared_expert_intermediate_size": 12,
        "num_nextn_predict_layers": 1,
        "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
    },
    "qwen3_5_text": {
        **_LINEAR,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {
            **_ROPE,
            "partial_rotary_factor": 0.5,
            "mrope_section": [1, 1, 0],
            "mrope_interleaved": True,
        },
    },
    "qwen3_5_moe_text": {
        **_EXPERTS,
        **_LINEAR,
        "num_experts": 4,
        "shared_expert_intermediate_size": 12,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {**_ROPE, "partial_rotary_factor": 0.5},
    },
}
EXPERTS = [name for name, keys in FAMILY_KEYS.items() if "num_experts_per_tok" in keys]


def text_keys(family: str) -> dict[str, Any]:
    """A text configuration, as ``config.json`` has it."""
    return {"model_type": family, **_SIZES, **FAMILY_KEYS[family]}


def family_switches(family: str) -> dict[str, Any]:
    """What a module of this family has other than a fresh one for a target of the same width."""
    from vocabforge.models.drafters.mtp import MtpConfig

    sizes = MtpConfig.of_family(text_keys(family))
    names = ("family", "layer", "post_norm", "num_heads", "num_kv_heads", "head_dim")
    return {name: getattr(sizes, name) for name in names}


def make_target(folder: Path, family: str, *, fused: bool = False, seed: int = 0, **changes: Any) -> Path:
    """A target with its module, in two shards with an index; no tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = text_keys(family) | changes
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**{**keys, "rope_parameters": dict(keys["rope_parameters"])})
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(-0.5, 0.5).add_(0 if family.startswith("qwen") else 1)
    model.save_pretrained(folder)
    body = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(body | keys), "utf-8")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    module = module_tensors(family, fused=fused, vocab=keys["vocab_size"])
    if module_prefix(family) != "mtp.":  # its publishers repeat the target's
        prefix = module_prefix(family)
        module[f"{prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        module[f"{prefix}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    names = sorted(tensors)
    half = len(names) // 2
    second = {name: tensors[name] for name in names[half:]} | module
    write_shards(folder, [{name: tensors[name] for name in names[:half]}, second])
    return folder


def write_shards(folder: Path, shards: list[dict[str, Tensor]]) -> None:
    """Weights in shards, and their index."""
    places = {}
    for at, shard in enumerate(shards, 1):
        file = f"model-{at:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def module_prefix(family: str) -> str:
    return (
        f"model.layers.{_SIZES['num_hidden_layers']}."
        if "first_k_dense_replace" in text_keys(family)
        else "mtp."
    )


def module_tensors(family: str, *, fused: bool = False, vocab: int = 61) -> dict[str, Tensor]:
    """A random module under its publishers' names."""
    keys, prefix = text_keys(family), module_prefix(family)
    size, inner, heads, kv, dim = (
        keys[name]
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        )
    )
    block = prefix if prefix != "mtp." else "mtp.layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        f"{block}input_layernorm.weight": (size,),
        f"{block}post_attention_layernorm.weight": (size,),
    }
    attention = f"{block}self_attn."
    if family == "deepseek_v3":
        rank, latent, rope, nope, value = (
            keys[name]
            for name in ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
        shapes |= {
            f"{attention}q_a_proj.weight": (rank, size),
            f"{attention}q_a_layernorm.weight": (rank,),
            f"{attention}q_b_proj.weight": (heads * (rope + nope), rank),
            f"{attention}kv_a_proj_with_mqa.weight": (latent + rope, size),
            f"{attention}kv_a_layernorm.weight": (latent,),
            f"{attention}kv_b_proj.weight": (heads * (nope + value), latent),
            f"{attention}o_proj.weight": (size, heads * value),
        }
    else:
        gated = 1 if family == "glm4_moe" else 2
        shapes |= {
            f"{attention}q_proj.weight": (gated * heads * dim, size),
            f"{attention}k_proj.weight": (kv * dim, size),
            f"{attention}v_proj.weight": (kv * dim, size),
            f"{attention}o_proj.weight": (size, heads * dim),
            f"{attention}q_norm.weight": (dim,),
            f"{attention}k_norm.weight": (dim,),
        }
    if family == "glm4_moe":
        shapes |= {
            f"{attention}{one}_proj.bias": (n * dim,) for one, n in (("q", heads), ("k", kv), ("v", kv))
        }
    shapes |= _mlp_shapes(f"{block}mlp.", family, keys, size, inner, fused=fused)
    parts = (
        ("eh_proj", "enorm", "hnorm", "shared_head.norm")
        if prefix != "mtp."
        else ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    )
    shapes[f"{prefix}{parts[0]}.weight"] = (size, 2 * size)
    shapes |= {f"{prefix}{name}.weight": (size,) for name in parts[1:]}
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) == 1 else 1.2 * shape[-1] ** -0.5)
        for name, shape in shapes.items()
    }


def _mlp_shapes(
    mlp: str, family: str, keys: dict[str, Any], size: int, inner: int, *, fused: bool
) -> dict[str, tuple[int, ...]]:
    def gated(place: str, width: int) -> dict[str, tuple[int, ...]]:
        wide = {f"{place}{name}_proj.weight": (width, size) for name in ("gate", "up")}
        return {**wide, f"{place}down_proj.weight": (size, width)}

    if family not in EXPERTS:
        return gated(mlp, inner)
    width = keys["moe_intermediate_size"]
    count = keys.get("num_experts") or keys["n_routed_experts"]
    shapes: dict[str, tuple[int, ...]] = {f"{mlp}gate.weight": (count, size)}
    if "num_experts" in keys:
        shapes |= gated(f"{mlp}shared_expert.", width) | {f"{mlp}shared_expert_gate.weight": (1, size)}
    else:
        shapes |= gated(f"{mlp}shared_experts.", width) | {f"{mlp}gate.e_score_correction_bias": (count,)}
    if fused:
        shapes |= {f"{mlp}experts.gate_up_proj": (count, 2 * width, size)}
        return shapes | {f"{mlp}experts.down_proj": (count, size, width)}
    for index in range(count):
        shapes |= gated(f"{mlp}experts.{index}.", width)
    return shapes


@torch.no_grad()
def save_changed_module(target: Path, folder: Path) -> None:
    """Write a target's MTP module, with other weights than the target's."""
    module, _ = load_drafter(target, load_target_tensors(target), target)
    for parameter in module.parameters():
        parameter.mul_(1.25)
    save_drafter(folder, module, {"target_fingerprint": target_fingerprint(target)})
