"""Malformed block drafters, MTP modules and GGUF files: (reader, name) -> how it is spoilt, words of the error."""

from __future__ import annotations

import struct
from typing import Any

from tests.fuzz.changes import Change, at, entry, half, length, put, twice, values, whole
from tests.models.mtp_targets import module_prefix

GGUF, FILE = "drafter GGUF", "drafter.gguf"
BLOCK, SPARK = "drafter block-dflash", "drafter block-dspark"
LIBRARY, PEAGLE = "drafter speculators-dflash", "drafter speculators-peagle"
GLM, DEEPSEEK, NEXT, BACK = (
    *(f"MTP module of {family}" for family in ("glm4_moe", "deepseek_v3", "qwen3_next")),
    "MTP module written back",
)
NATIVE, CONFIG, WEIGHTS, INDEX = (
    "drafter native-mtp",
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
)
SHARD = "model-00002-of-00002.safetensors"
NORM = f"{module_prefix('glm4_moe')}enorm.weight"


def setting(key: str, form: str, value: Any, skip: int = 0) -> Change:
    """A number behind a key of a GGUF file; ``skip``: bytes between the type of the value and the number."""

    def change(data: bytes) -> bytes:
        place = data.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key) + 4 + skip
        return data[:place] + struct.pack(f"<{form}", value) + data[place + struct.calcsize(form) :]

    return at(FILE, change)


def counted(place: int, value: int) -> Change:
    """A number at a place of a GGUF file's first bytes."""
    return at(FILE, lambda data: data[:place] + struct.pack("<Q", value) + data[place + 8 :])


FILES: list[tuple[str, str, Change, str]] = [
    (GGUF, "no bytes", whole(b"", FILE), "cannot be read"),
    (GGUF, "cut short", half(FILE), "cannot be read"),
    (GGUF, "tensors without end", counted(8, 2**63), "cannot be read"),
    (GGUF, "settings without end", counted(16, 2**63), "cannot be read"),
    (GGUF, "layers without end", setting("eagle3.target_layers", "Q", 2**40, 4), "cannot be read"),
    (GGUF, "tokens without end", setting("tokenizer.ggml.token_type", "Q", 2**60, 4), "cannot be read"),
    (GGUF, "no heads", setting("eagle3.attention.head_count", "I", 0), "lacks a part"),
    (GGUF, "heads that do not divide", setting("eagle3.attention.head_count", "I", 3), "3 heads"),
    (GGUF, "heads without end", setting("eagle3.attention.head_count_kv", "I", 2**31), "heads"),
    (GGUF, "a width without end", setting("eagle3.embedding_length", "I", 2**32 - 1), ""),
    (GGUF, "positions without end", setting("eagle3.context_length", "I", 2**32 - 1), ""),
    (GGUF, "an epsilon of NaN", setting("eagle3.attention.layer_norm_rms_epsilon", "f", float("nan")), ""),
    (GGUF, "a RoPE base of infinity", setting("eagle3.rope.freq_base", "f", float("inf")), ""),
    (GGUF, "two layers", setting("eagle3.block_count", "I", 2), "differ in the number of layers"),
    (GGUF, "another alignment", setting("eagle3.vocab_size", "I", 7), ""),
]  # fmt: skip

BLOCKS: list[tuple[str, str, Change, str]] = [
    (BLOCK, "a size twice", twice("hidden_size", 64, CONFIG), "is given twice"),
    (BLOCK, "a mask row cut short", half("mask_embedding.pt"), "mask row"),
    (BLOCK, "a mask row of no archive", whole(b"\x80\x02", "mask_embedding.pt"), "mask row"),
    (BLOCK, "layers of truth", put("dflash_config.target_layer_ids", [True, 2, 3], CONFIG), ""),
    (BLOCK, "a block without end", put("block_size", 2**40, CONFIG), ""),
    (BLOCK, "layers without end", put("num_hidden_layers", 2**40, CONFIG), ""),
    (BLOCK, "settings of a list", put("dflash_config", [1], CONFIG), "not computed here"),
    (BLOCK, "weights cut short", half(WEIGHTS), "cannot be read"),
    (BLOCK, "a header beyond the file", length(2**62, WEIGHTS), "cannot be read"),
    (BLOCK, "weights of NaN", values(b"\xff", WEIGHTS, "fc.weight"), "not finite"),
    (SPARK, "a rank without end", put("markov_rank", 2**40, CONFIG), ""),
    (SPARK, "a rank beyond 64 bits", put("markov_rank", 2**63, CONFIG), "not those of its configuration"),
    (SPARK, "a rank of truth", put("markov_rank", True, CONFIG), ""),
    (SPARK, "a mask token of a float", put("mask_token_id", 2.5, CONFIG), "mask_token_id"),
    (BLOCK, "a RoPE base beyond 64 bits", put("rope_parameters.rope_theta", 10**30, CONFIG), "theta"),
    (LIBRARY, "a type of a list", put("speculators_model_type", ["dflash"], CONFIG), ""),
    (LIBRARY, "a layer of a list", put("transformer_layer_config", [], CONFIG), ""),
    (LIBRARY, "offsets beyond the vocabulary", values(b"\x7f", WEIGHTS, "d2t"), ""),
    (LIBRARY, "a draft vocabulary below none", put("draft_vocab_size", -1, CONFIG), ""),
    (PEAGLE, "methods of a text", put("speculators_config.proposal_methods", "x", CONFIG), ""),
    (PEAGLE, "a method of a text", put("speculators_config.proposal_methods", ["x"], CONFIG), ""),
    (PEAGLE, "a server's part of a list", put("speculators_config", [1], CONFIG), ""),
    (PEAGLE, "drafts without end", put("speculators_config.proposal_methods.0.speculative_tokens", 2**40, CONFIG), ""),
]  # fmt: skip

MODULES: list[tuple[str, str, Change, str]] = [
    (GLM, "two modules", put("num_nextn_predict_layers", 2, CONFIG), "not computed here"),
    (GLM, "no module", put("num_nextn_predict_layers", 0, CONFIG), "no drafter here"),
    (GLM, "modules of a text", put("num_nextn_predict_layers", "1", CONFIG), "harmless: the family has one"),
    (GLM, "a family of a list", put("model_type", ["glm4_moe"], CONFIG), ""),
    (GLM, "experts without end", put("n_routed_experts", 2**40, CONFIG), ""),
    (GLM, "experts of a text", put("n_routed_experts", "4", CONFIG), ""),
    (GLM, "layers of another target", put("num_hidden_layers", 2, CONFIG), ""),
    (GLM, "layers without end", put("num_hidden_layers", 2**60, CONFIG), ""),
    (GLM, "positions without end", put("max_position_embeddings", 2**50, CONFIG), ""),
    (GLM, "a shard out of the folder", put("weight_map", {NORM: "../x.safetensors"}, INDEX), "missing"),
    (GLM, "a shard cut short", half(SHARD), "cannot be read"),
    (GLM, "a norm of another shape", entry(NORM, "shape", [4, 8], SHARD), "not the one of its configuration"),
    (GLM, "a quantised norm", entry(NORM, "dtype", "I32", SHARD), "is quantised"),
    (GLM, "a norm of NaN", values(b"\xff", SHARD, NORM), "not finite"),
    (DEEPSEEK, "RoPE of a kind of lists", put("rope_parameters.rope_type", ["yarn"], CONFIG), ""),
    (DEEPSEEK, "RoPE of an unknown kind", put("rope_parameters.rope_type", "x", CONFIG), ""),
    (DEEPSEEK, "RoPE of a list", put("rope_parameters", [1], CONFIG), ""),
    (DEEPSEEK, "a rank of a text", put("kv_lora_rank", "8", CONFIG), ""),
    (DEEPSEEK, "a rank below none", put("q_lora_rank", -1, CONFIG), ""),
    (NEXT, "experts one fewer", put("num_experts", 3, CONFIG), ""),
    (NEXT, "kinds of layers of a text", put("layer_types", "x", CONFIG), ""),
    (BACK, "a shard cut short", half(SHARD), "cannot be read"),
    (BACK, "a norm of another shape", entry(NORM, "shape", [4, 8], SHARD), ""),
    (BACK, "a module in another dtype", entry(NORM, "dtype", "I32", SHARD), ""),
    (NATIVE, "a family of a list", put("family", ["glm4_moe"], "drafter.json"), ""),
    (NATIVE, "a layer of a list", put("layer", [1], "drafter.json"), ""),
    (NATIVE, "a layer of another family", put("layer.model_type", "deepseek_v3", "drafter.json"), ""),
    (NATIVE, "experts without end", put("layer.n_routed_experts", 2**40, "drafter.json"), ""),
]  # fmt: skip

CASES = [*FILES, *BLOCKS, *MODULES]
