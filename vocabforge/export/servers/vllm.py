"""How vLLM reads folders of EAGLE-3 (serving layout and speculators layout) and EAGLE-1/2.

Behaviour of vLLM 0.32 and 0.33: the list of layers is the top-level ``eagle_aux_hidden_state_layer_ids``, or
that of ``eagle_config`` if the former is missing (V1 model runner; V2 takes the default). Both hold layer
inputs, and the layers are sorted. Unknown tensors are an error; missing ones stay uninitialised. A missing
embedding or LM head is the target's; a stored one is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ...layouts.eagle3 import WITH_HEAD
from ...layouts.layer_ids import LAYER_IDS, as_inputs, default_layers
from ...models.heads.served import KEY, PREFIX
from .settings import check_layers, configuration, count_states, eagle3_sizes, map_rows, sizes_of
from .types import LAYERS_FROM, Folder, Reader, Served, ServedTarget
from .weights import EMBEDDING, HEAD, KeyPlace, conclude, is_targets, load, slots_of

EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", *WITH_HEAD.values())
EAGLE1 = ("EagleLlamaForCausalLM",)
PUBLISHED = "LlamaForCausalLM"
ALGORITHM = "eagle3"  # name in speculators
# Substrings of the target's model_type that vLLM accepts for EAGLE-3.
_TARGETS = (
    *("llama", "qwen", "minicpm", "gpt_oss", "hunyuan_vl", "hunyuan_v1_dense", "afmoe", "nemotron_h"),
    *("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "minimax_m2", "gemma4"),
)
_IMPORTED = {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"}


def knows_target(model_type: str) -> bool:
    """Return whether vLLM runs an EAGLE-3 drafter with targets of this type."""
    return any(part in model_type for part in _TARGETS)


def _read(served: Served, folder: Folder, target: ServedTarget) -> None:
    body: Any = folder.body
    if body.get("speculators_model_type") == ALGORITHM:
        body = import_speculators(served, body)
        if body is None:
            return
        served.architecture = body["architectures"][0]
    else:
        served.architecture = _architecture(folder) or ""
    config = configuration(served, body)
    if config is not None:
        (_eagle1 if served.architecture in EAGLE1 else _eagle3)(served, folder, config, target)


def _architecture(folder: Folder) -> str | None:
    """Return the class with which vLLM loads the folder; EAGLE's published folders name a Llama."""
    named = folder.architectures
    if PUBLISHED in named and "fc.weight" in folder.tensors:
        # vLLM prepends Eagle or Eagle3, depending on the configured method.
        return EAGLE3[1] if any("hidden_norm" in name for name in folder.tensors) else EAGLE1[0]
    return next((name for name in named if name in (*EAGLE3, *EAGLE1)), None)


def import_speculators(served: Served, body: Any) -> dict[str, Any] | None:
    """Return the flat configuration that vLLM derives from a speculators one; None if it is rejected.

    Its defaults differ from the layout's own: norm_before_residual is true if missing.
    """
    try:
        own = body["speculators_config"]
        tokens = own["proposal_methods"][0]["speculative_tokens"]
        verifier = own["verifier"]["name_or_path"]
    except (KeyError, IndexError, TypeError) as error:
        served.fail(
            "configuration",
            f"speculators_config has no {error}: vLLM refuses the folder",
            "run export --format speculators-eagle3, which writes it completely",
        )
        return None
    layer = body.get("transformer_layer_config")
    kind = layer.get("model_type", "llama") if isinstance(layer, dict) else None
    if kind not in _IMPORTED:
        served.fail(
            "configuration",
            f"transformer_layer_config of model_type {kind!r}",
            "vLLM reads llama and qwen3 layers",
        )
        return None
    served.facts |= {"speculative tokens": tokens, "verifier": verifier}
    flat = copy.deepcopy(layer) | {
        "model_type": kind,
        "draft_vocab_size": body.get("draft_vocab_size"),
        "norm_before_residual": body.get("norm_before_residual", True),
        "norm_before_fc": body.get("norm_before_fc", False),
        "fc_norm": body.get("fc_norm", False),
        "norm_output": body.get("norm_output", False),
        "architectures": [_IMPORTED[kind]],
    }
    for name in ("target_hidden_size", LAYER_IDS):
        if body.get(name):
            flat[name] = body[name]
    if "norm_before_residual" not in body:
        served.fail(
            "configuration",
            "norm_before_residual is absent: vLLM takes true, speculators itself false",
            "write norm_before_residual as it was trained",
        )
    return flat


def _eagle3(served: Served, folder: Folder, config: Any, target: ServedTarget) -> None:
    top = getattr(config, LAYER_IDS, None)
    listed = top or (getattr(config, "eagle_config", None) or {}).get(LAYER_IDS)
    default = as_inputs(default_layers(target.layers))
    inputs = list(listed) if listed else default
    if not top and inputs != default:
        served.warn(
            "layers",
            f"no top-level {LAYER_IDS}: vLLM's V2 model runner, the default on GPUs, captures inputs {default}",
            "export the drafter again: it writes both lists",
        )
    served.layers = check_layers(served, inputs, target.layers, first=True, last=True)
    origin = f"the top-level {LAYER_IDS} (inputs)" if top else f"eagle_config.{LAYER_IDS} (taken as inputs)"
    served.facts[LAYERS_FROM] = origin if listed else "the server's default"
    remedy = "write num_aux_hidden_states next to the decoder's sizes: vLLM counts 3 without it"
    n_aux = count_states(served, config, remedy)
    sizes = eagle3_sizes(
        served,
        config,
        target,
        n_aux,
        several=True,
        norm_before_residual=bool(getattr(config, "norm_before_residual", False)),
        fc_norm=bool(getattr(config, "fc_norm", False)),
        qk_norm=served.architecture in (_IMPORTED["qwen3"], WITH_HEAD[True]),
    )
    if isinstance(own := folder.body.get(KEY), Mapping):
        served.facts["draft head"] = (
            f"{own.get('kind')}, by VocabForge's class: install it in vLLM's environment"
        )
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        served.facts["sliding window"] = f"{config.sliding_window} positions"
    if sizes is None:
        return
    if config.attention_bias:
        served.fail("configuration", "attention_bias is true", "drafters with biases are not compared here")
    slots = slots_of(sizes)
    mapped = sizes.head_rows != len(target.embedding)
    loaded = load(served, folder, slots, lambda name: _place_eagle3(name, set(slots), mapped))
    filled = loaded[1]
    shared = {} if own_embedding(served, folder, filled, target) else {EMBEDDING: target.embedding}
    head = folder.tensors.get("lm_head.weight")
    if mapped:
        map_rows(served, folder.d2t, sizes.head_rows, len(target.embedding))
        if HEAD not in filled:
            served.fail(
                "tensors",
                "no lm_head: vLLM shares the target's, which has more rows than draft_vocab_size",
                "export the drafter with its own head",
            )
    elif HEAD not in filled or is_targets(head, target.head):
        shared[HEAD] = target.head
    conclude(served, sizes, slots, loaded, shared)
    if -1 in served.layers:
        served.drafter = None


def own_embedding(served: Served, folder: Folder, filled: Mapping[str, str], target: ServedTarget) -> bool:
    """Return whether the folder's embedding is kept; warn if it differs from the target's."""
    if EMBEDDING not in filled:
        return False
    stored = folder.tensors[filled[EMBEDDING]]
    if is_targets(stored, target.embedding):
        return False
    theirs = target.embedding.float().cpu()
    apart = f"of shape {list(stored.shape)}, not {list(theirs.shape)}"
    if stored.shape == theirs.shape:
        apart = f"up to {float((stored.float() - theirs).abs().max()):.2g} apart"
    served.warn(
        "tensors",
        f"{filled[EMBEDDING]} is not the target's ({apart}): {served.title} keeps it",
        "SGLang and vocabforge take the target's: only right if the drafter was trained with its own",
    )
    return True


def _place_eagle3(name: str, slots: set[str], mapped: bool) -> KeyPlace:
    if name.startswith(PREFIX):
        return KeyPlace(None, "not needed: the draft head, which the class of VocabForge reads")
    if "t2d" in name:
        return KeyPlace(None, "not needed: vLLM does not read it")
    if "d2t" in name:
        if mapped:
            return KeyPlace(None, "not needed: becomes the ids of the head's rows")
        return KeyPlace(None, "d2t with a head of every token", refused=True)
    if "mask_hidden" in name:
        return KeyPlace(None, "not needed: for parallel drafting only")
    slot = name.replace("midlayer.", "layers.0.")
    if "lm_head" not in slot:
        slot = f"model.{slot}"
    if slot.startswith("model.input_norm.") and slot not in slots:
        return KeyPlace(None, "norm_before_fc is not set")
    return KeyPlace(slot, "", refused=slot not in slots)


def _eagle1(served: Served, folder: Folder, config: Any, target: ServedTarget) -> None:
    width, rows = config.hidden_size, config.vocab_size
    sizes = sizes_of(served, config, "eagle1", target, target_hidden=width, head_rows=rows)
    if sizes is None:
        return
    slots = slots_of(sizes)

    def place(name: str) -> KeyPlace:
        slot = name if "lm_head" in name else f"model.{name}"
        return KeyPlace(slot, "", refused=slot not in slots or slot == HEAD)

    loaded = load(served, folder, {name: slot for name, slot in slots.items() if name != HEAD}, place)
    own = own_embedding(served, folder, loaded[1], target)
    if folder.token_map is not None:
        served.facts["token map"] = (
            "not read: vLLM has no draft vocabulary for EAGLE-1/2; all tokens are scored"
        )
    shared = {HEAD: target.head} | ({} if own else {EMBEDDING: target.embedding})
    conclude(served, sizes, slots, loaded, shared)


VLLM = Reader(
    "vllm",
    "vLLM",
    "sglang-eagle3 or speculators-eagle3 (EAGLE-3), eagle --server vllm (EAGLE-1/2)",
    lambda folder: (
        folder.body.get("speculators_model_type") == ALGORITHM or _architecture(folder) is not None
    ),
    _read,
)
