"""Single faults of drafters' folders, and the row of the doctor that names each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.export.readers_support import LAYERS, V
from vocabforge.layouts.layer_ids import LAYER_IDS

Change = Callable[[dict[str, Any]], object]


def shift(by: int) -> Change:
    def edit(body: dict[str, Any]) -> None:
        body["eagle_config"][LAYER_IDS] = [layer + by for layer in LAYERS]

    return edit


def put(**fields: Any) -> Change:
    return lambda body: body.update(fields)


def drop(*names: str) -> Change:
    return lambda body: [body.pop(name) for name in names]


def inner(**fields: Any) -> Change:
    return lambda body: body["eagle_config"].update(fields)


def layer(**fields: Any) -> Change:
    return lambda body: body["transformer_layer_config"].update(fields)


def rename(old: str, new: str) -> Change:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def edit(name: str, function: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({name: function(tensors[name])})


def uncounted(body: dict[str, Any]) -> None:
    del body["transformer_layer_config"]["num_aux_hidden_states"]


def shuffled(rows: Tensor) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]


def as_ids(d2t: Tensor) -> Tensor:
    return d2t + torch.arange(len(d2t))


def of_other_tokens(d2t: Tensor) -> Tensor:
    return (torch.arange(len(d2t)) > 20) * 9 + 7


GATE, DOWN = "midlayer.mlp.gate_proj.weight", "midlayer.mlp.down_proj.weight"
HIDDEN_NORM = "midlayer.hidden_norm.weight"
ROPE = {"rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
LINEAR = {"rope_type": "linear", "factor": 4.0}


Fault = tuple[str, str, Change, str, str]
Faults = dict[str, tuple[Change, str, str]]


def of(folder: str, where: str, faults: Faults) -> dict[str, Fault]:
    return {name: (folder, where, *fault) for name, fault in faults.items()}


# fault: how the file is changed, the row that names it, and words in it
SGLANG_CONFIG: Faults = {
    "inputs where SGLang wants outputs": (shift(1), "SGLang: layers by acceptance: failed", "[1, 3, 4]"),
    "one layer too low": (shift(-1), "SGLang: layers by acceptance: failed", "[1, 3, 4]"),
    "outputs alone, which vLLM takes as inputs": (
        drop(LAYER_IDS),
        "vLLM: layers by acceptance: failed",
        "[1, 3, 4]",
    ),
    "outputs at the top": (put(**{LAYER_IDS: list(LAYERS)}), "vLLM: target layers: failed", "[0, 2, 3]"),
    "the embedding as input 0": (
        put(**{LAYER_IDS: [0, 4, 5]}),
        "vLLM: target layers: warning",
        "captures the embedding",
    ),
    "the last layer for SGLang": (inner(**{LAYER_IDS: [1, 3, 7]}), "SGLang: target layers: failed", "[7]"),
    "layers out of order": (inner(**{LAYER_IDS: [3, 1, 4]}), "SGLang: target layers: failed", "ascending"),
    "a layer twice": (inner(**{LAYER_IDS: [1, 3, 3]}), "SGLang: target layers: failed", "twice"),
    "a layer too many": (
        inner(**{LAYER_IDS: [1, 3, 4, 5]}),
        "SGLang: target layers: failed",
        "fc is made for 3",
    ),
    "no layers captured": (
        inner(use_aux_hidden_state=False),
        "SGLang: configuration: failed",
        "use_aux_hidden_state",
    ),
    "another base of RoPE": (put(**ROPE), "SGLang: configuration: warning", "base 500,000, the target's"),
    "RoPE stretched": (put(rope_scaling=LINEAR), "vLLM: configuration: warning", "RoPE linear"),
    "norm_before_residual for SGLang": (
        put(norm_before_residual=True),
        "SGLang: configuration: failed",
        "SGLang ignores",
    ),
    "tied embeddings": (
        put(tie_word_embeddings=True),
        "SGLang: configuration: failed",
        "becomes the draft head",
    ),
    "no size of the draft vocabulary": (
        drop("draft_vocab_size"),
        "SGLang: configuration: failed",
        "fails at start",
    ),
    "a shared head beside d2t": (put(draft_vocab_size=None), "SGLang: draft tokens: failed", "whole head"),
    "another dtype in config.json": (
        put(dtype="bfloat16"),
        "SGLang: dtype: warning",
        "config.json says bfloat16",
    ),
    "other heads": (put(num_attention_heads=8), "SGLang: tensors: failed", "expected [64, 64]"),
    "heads that do not divide": (put(num_key_value_heads=3), "SGLang: configuration: failed", "evenly"),
    "vocab_size without padding": (
        put(vocab_size=60),
        "vLLM: configuration: failed",
        "the target has 61 rows",
    ),
    "fewer positions": (
        put(max_position_embeddings=64),
        "SGLang: configuration: warning",
        "below the target's 256",
    ),
    "no epsilon": (drop("rms_norm_eps"), "SGLang: configuration: failed", "rms_norm_eps 1e-06"),
    "another epsilon as words": (
        put(rms_norm_eps="small"),
        "vLLM: configuration: failed",
        "transformers refuses",
    ),
    "two layers": (put(num_hidden_layers=2), "SGLang: configuration: failed", "2 decoder layers"),
    "another activation": (put(hidden_act="gelu"), "vLLM: configuration: failed", "hidden_act gelu"),
    "biases in the attention": (put(attention_bias=True), "SGLang: configuration: failed", "attention_bias"),
    "norms that are not there": (put(fc_norm=True), "SGLang: tensors: failed", "fc_norm.0"),
    "another model_type": (put(model_type="mixtral"), "SGLang: configuration: failed", "mixtral"),
    "an unknown architecture": (put(architectures=["Other"]), "servers: layout: warning", "Other"),
}
SPECULATORS_CONFIG: Faults = {
    "outputs in speculators": (
        put(**{LAYER_IDS: list(LAYERS)}),
        "vLLM: layers by acceptance: failed",
        "[1, 3, 4]",
    ),
    "norm_before_residual unsaid": (
        drop("norm_before_residual"),
        "vLLM: configuration: failed",
        "vLLM takes true",
    ),
    "no word of the verifier": (drop("speculators_config"), "vLLM: configuration: failed", "vLLM refuses"),
    "a layer of another type": (layer(model_type="gemma"), "vLLM: configuration: failed", "gemma"),
}
VARIANT_CONFIG: Faults = {
    "four layers without their count": (uncounted, "vLLM: target layers: failed", "fc is made for 3")
}
SGLANG_TENSORS: Faults = {
    "d2t as ids": (edit("d2t", as_ids), "SGLang: draft tokens: failed", "ids, not offsets"),
    "d2t as ids, for vLLM": (edit("d2t", as_ids), "vLLM: draft tokens: failed", "ids, not offsets"),
    "d2t shifted": (edit("d2t", lambda d: d + 1), "servers: head rows: failed", "one lower"),
    "d2t of another map": (edit("d2t", of_other_tokens), "servers: head rows: failed", ""),
    "d2t constant": (
        edit("d2t", lambda d: -torch.arange(40)),
        "SGLang: draft tokens: failed",
        "other rows also have",
    ),
    "d2t in floats": (edit("d2t", lambda d: d.float()), "vLLM: draft tokens: failed", "float32"),
    "no d2t": (drop("d2t"), "SGLang: draft tokens: failed", "ids 0 to 39"),
    "rows of the head in another order": (
        edit("lm_head.weight", shuffled),
        "servers: head rows: failed",
        "other tokens",
    ),
    "rows of the head moved by one": (
        edit("lm_head.weight", lambda w: w.roll(1, 0)),
        "servers: head rows: failed",
        "one lower",
    ),
    "transposed": (edit(GATE, lambda w: w.T), "SGLang: tensors: failed", "expected [40, 32]"),
    "missing, for SGLang": (
        drop(HIDDEN_NORM),
        "SGLang: tensors: failed",
        "hidden_norm.weight: left as memory held",
    ),
    "missing, for vLLM": (
        drop(HIDDEN_NORM),
        "vLLM: tensors: failed",
        "hidden_norm.weight: left as memory held",
    ),
    "one part of a fused one missing": (
        drop("midlayer.self_attn.k_proj.weight"),
        "SGLang: tensors: failed",
        "k_proj.weight: left",
    ),
    "too many, for SGLang": (
        put(extra=torch.ones(2)),
        "SGLang: tensors: warning",
        "skipped without an error: extra",
    ),
    "too many, for vLLM": (put(extra=torch.ones(2)), "vLLM: tensors: failed", "does not start: extra"),
    "a misspelt name": (
        rename("norm.weight", "final_norm.weight"),
        "SGLang: tensors: failed",
        "final_norm.weight",
    ),
    "the prefix model. for vLLM": (
        rename("fc.weight", "model.fc.weight"),
        "vLLM: tensors: failed",
        "model.fc.weight",
    ),
    "no head for vLLM": (drop("lm_head.weight"), "vLLM: tensors: failed", "more rows than draft_vocab_size"),
    "several dtypes": (edit(DOWN, lambda w: w.half()), "SGLang: dtype: warning", "float16, float32"),
}
SPECULATORS_TENSORS: Faults = {
    "another embedding": (
        edit("embed_tokens.weight", lambda w: w * 1.01),
        "vLLM: tensors: warning",
        "not the target's",
    )
}
EAGLE_TENSORS: Faults = {
    "no bias of fc": (drop("fc.bias"), "SGLang: tensors: failed", "fc.bias: left as memory held")
}
EAGLE_VLLM_TENSORS: Faults = {
    "a bias of fc for vLLM": (
        put(**{"fc.bias": torch.zeros(32)}),
        "vLLM: tensors: failed",
        "does not start: fc.bias",
    ),
    "a head in EAGLE-1 for vLLM": (
        put(**{"lm_head.weight": torch.zeros(V, 32)}),
        "vLLM: tensors: failed",
        "lm_head.weight",
    ),
}
NORM_BEFORE_FC_CONFIG: Faults = {
    "norms that are not said": (inner(norm_before_fc=False), "SGLang: tensors: warning", "input_norm")
}

# fault: folder, what is changed, how, the row that names it, and words in it
FAULTS: dict[str, Fault] = {
    **of("sglang", "config", SGLANG_CONFIG),
    **of("speculators", "config", SPECULATORS_CONFIG),
    **of("variant", "config", VARIANT_CONFIG),
    **of("sglang", "tensors", SGLANG_TENSORS),
    **of("speculators", "tensors", SPECULATORS_TENSORS),
    **of("eagle", "tensors", EAGLE_TENSORS),
    **of("eagle vllm", "tensors", EAGLE_VLLM_TENSORS),
    **of("norm_before_fc", "config", NORM_BEFORE_FC_CONFIG),
}
