"""How SGLang reads folders of ``LlamaForCausalLMEagle3`` and ``LlamaForCausalLMEagle``.

Behaviour of SGLang 0.5: the list of layers is ``eagle_config.eagle_aux_hidden_state_layer_ids`` only, and
holds outputs, with exceptions by target. Unknown tensors are skipped and missing ones stay uninitialised, both
without an error. The embedding is always the target's; the LM head is the target's if ``draft_vocab_size`` is
null.
"""

from __future__ import annotations

import re
from typing import Any

from ...layouts.layer_ids import LAYER_IDS, as_inputs, default_layers, sglang_inputs
from .settings import check_ids, check_layers, configuration, count_states, eagle3_sizes, map_rows, sizes_of
from .types import LAYERS_FROM, Folder, Reader, Served, ServedTarget
from .weights import EMBEDDING, HEAD, KeyPlace, conclude, load, slots_of

EAGLE3, EAGLE1 = "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle"
_LEGACY = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
_NOT_MODELLED = re.compile(r"rotary_emb|projector|kv_scale|activation_scale")


def _read(served: Served, folder: Folder, target: ServedTarget) -> None:
    served.architecture = EAGLE3 if EAGLE3 in folder.architectures else EAGLE1
    config = configuration(served, folder.body)
    if config is not None:
        (_eagle3 if served.architecture == EAGLE3 else _eagle1)(served, folder, config, target)


def _eagle3(served: Served, folder: Folder, config: Any, target: ServedTarget) -> None:
    listed = (getattr(config, "eagle_config", None) or {}).get(LAYER_IDS)
    inputs = as_inputs(default_layers(target.layers))
    if listed:
        inputs = sglang_inputs(listed, target.config, target.layers)
    last = "GptOssForCausalLM" in (target.config.get("architectures") or ())
    served.layers = check_layers(served, inputs, target.layers, last=last)
    taken = "inputs, for this target" if inputs == listed else "outputs"
    served.facts[LAYERS_FROM] = f"eagle_config.{LAYER_IDS} ({taken})" if listed else "the server's default"
    n_aux = count_states(served, config, f"write eagle_config.{LAYER_IDS}, or correct num_aux_hidden_states")
    if n_aux == 1:
        served.fail(
            "layers",
            "one state is as wide as the output of fc: SGLang uses it directly and skips fc",
            "serve it with vLLM (export --format speculators-eagle3), or train with more drafter.aux_layers",
        )
    if "draft_vocab_size" not in folder.body:
        served.fail(
            "configuration",
            "draft_vocab_size is absent: SGLang fails at start",
            "write it; null shares the head",
        )
    sizes = eagle3_sizes(
        served,
        config,
        target,
        n_aux,
        fc_bias=bool(getattr(config, "bias", False)),
        fc_norm=bool(getattr(config, "fc_norm", None) or getattr(config, "use_aux_norm", False)),
    )
    if sizes is None:
        return
    _check_flags(served, config)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        served.facts["sliding window"] = (
            f"not read: start SGLang with --speculative-draft-window-size {config.sliding_window}"
        )
    slots = slots_of(sizes)
    loaded = load(served, folder, slots, lambda name: _place_eagle3(name, set(slots)))
    shared = {EMBEDDING: target.embedding}
    if getattr(config, "draft_vocab_size", None) is not None:
        map_rows(served, folder.d2t, sizes.head_rows, len(target.embedding))
    else:
        served.facts["LM head"] = "the target's (draft_vocab_size is null)"
        shared[HEAD] = target.head
        if folder.d2t is not None:
            told = f"d2t of {len(folder.d2t):,} rows with the target's whole head (draft_vocab_size is null)"
            served.fail("draft tokens", told, "write draft_vocab_size, or remove d2t")
        else:
            map_rows(served, None, sizes.head_rows, len(target.embedding))
    conclude(served, sizes, slots, loaded, shared)


def _place_eagle3(name: str, slots: set[str]) -> KeyPlace:
    if "d2t" in name:
        return KeyPlace(None, "not needed: becomes the ids of the head's rows")
    if "t2d" in name:
        return KeyPlace(None, "not needed: SGLang does not read it")
    for old, new in _LEGACY.items():
        name = name.replace(old, new)
    place = KeyPlace(name if name in slots else f"model.{name}")
    if place.slot == EMBEDDING:
        return KeyPlace(EMBEDDING, "then replaced by the target's")
    return place


def _check_flags(served: Served, config: Any) -> None:
    if getattr(config, "norm_before_residual", False):
        served.fail(
            "configuration",
            "norm_before_residual is true, which SGLang ignores: the residual is the state before its norm",
            "serve it with vLLM (export --format speculators-eagle3)",
        )
    if config.tie_word_embeddings:
        served.fail(
            "configuration",
            "tie_word_embeddings is true: the target's embedding becomes the draft head",
            "write tie_word_embeddings false",
        )
    _check_biases(served, config)


def _check_biases(served: Served, config: Any) -> None:
    named = [name for name in ("attention_bias", "bias") if getattr(config, name, False)]
    if named:
        served.fail(
            "configuration",
            f"{' and '.join(named)} is true: SGLang gives the attention biases that no tensor here fills",
            "write false: SGLang serves drafters without attention biases",
        )


def _eagle1(served: Served, folder: Folder, config: Any, target: ServedTarget) -> None:
    """Read an EAGLE-1/2 folder with the target's embedding and head, restricted by its token map."""
    _check_biases(served, config)
    width, rows = config.hidden_size, config.vocab_size
    sizes = sizes_of(served, config, "eagle1", target, target_hidden=width, head_rows=rows, fc_bias=True)
    if sizes is None:
        return
    slots = slots_of(sizes)
    loaded = load(served, folder, slots, _place_eagle1)
    ids, head = folder.token_map, target.head
    if ids is not None:
        served.facts["token map"] = f"{len(ids):,} ids, given to the server as --speculative-token-map"
        if check_ids(served, ids, len(ids), len(target.embedding)):
            head = head[ids]
    conclude(served, sizes, slots, loaded, {EMBEDDING: target.embedding, HEAD: head})


def _place_eagle1(name: str) -> KeyPlace:
    if "lm_head" in name:
        return KeyPlace(None, "not needed: the LM head is the target's")
    if _NOT_MODELLED.search(name):
        return KeyPlace(None, "not needed")
    slot = f"model.{name}"
    return KeyPlace(slot, "then replaced by the target's" if slot == EMBEDDING else "")


SGLANG = Reader(
    "sglang",
    "SGLang",
    "sglang-eagle3 (EAGLE-3) or eagle --server sglang (EAGLE-1/2)",
    lambda folder: any(name in (EAGLE3, EAGLE1) for name in folder.architectures),
    _read,
)
