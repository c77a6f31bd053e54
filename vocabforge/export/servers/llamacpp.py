"""EAGLE-3 drafters in llama.cpp: GGUF files, and folders converted by its ``convert_hf_to_gguf.py``.

Behaviour of llama.cpp 0.5.0-dev (August 2026): the converter recognises EAGLE-3 by ``draft_vocab_size`` and
one layer. It reads top-level keys only: ``eagle_aux_hidden_state_layer_ids`` (inputs),
``norm_before_residual``, ``norm_before_fc``. ``norm_output`` is not read; norms of q and k and of each
layer's features are not supported. Any number of auxiliary layers is converted, but only three can be loaded.
A missing embedding or LM head is the target's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...layouts.gguf.layout import AUX_LAYERS, TARGETS
from ...layouts.layer_ids import LAYER_IDS, as_inputs, default_layers
from .settings import check_layers, configuration, eagle3_sizes, map_rows
from .types import LAYERS_FROM, Folder, Reader, Served, ServedTarget
from .vllm import own_embedding
from .weights import EMBEDDING, HEAD, KeyPlace, conclude, is_targets, load, slots_of

_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")  # accepted by the converter
_GGUF = "GGUF eagle3"


def _fill(served: Served, folder: Folder, target: ServedTarget) -> None:
    served.architecture = "eagle3"
    config = configuration(served, folder.body)
    if config is not None:
        _read(served, folder, config, target)
    if _GGUF not in folder.architectures:
        # The folder is meant for other servers, so a failed conversion is only a warning.
        served.facts["converted by"] = "convert_hf_to_gguf.py"
        served.problems = [replace(problem, state="warning") for problem in served.problems]


def _read(served: Served, folder: Folder, config: Any, target: ServedTarget) -> None:
    body, total = folder.body, len(target.embedding)
    listed = body.get(LAYER_IDS)
    inputs = list(listed) if listed else as_inputs(default_layers(target.layers))
    served.layers = check_layers(served, inputs, target.layers, last=False)
    served.facts[LAYERS_FROM] = f"the top-level {LAYER_IDS} (inputs)" if listed else "the converter's default"
    if len(inputs) != AUX_LAYERS:
        told = f"{len(inputs)} layers: converted without an error, but llama.cpp loads exactly {AUX_LAYERS}"
        served.fail("layers", told, f"train with {AUX_LAYERS} drafter.aux_layers")
    if target.config.get("model_type") not in TARGETS:
        told = f"llama.cpp captures no layers of {target.config.get('model_type')} targets"
        served.fail("configuration", told, "serve it with SGLang or vLLM")
    if "draft_vocab_size" not in body:
        served.fail("configuration", "draft_vocab_size is absent: treated as a Llama", "write it, or null")
    if body.get("norm_output"):
        told = (
            "norm_output is true, which llama.cpp does not compute: the state that is fed back is not normed"
        )
        served.fail("configuration", told, "serve it with SGLang or vLLM, or train with norm_output false")
    top = {name: bool(body.get(name, False)) for name in ("norm_before_residual", "norm_before_fc")}
    sizes = eagle3_sizes(served, config, target, len(inputs), norm_output=False, **top)
    if sizes is None:
        return
    slots = slots_of(sizes)
    loaded = load(served, folder, slots, lambda name: _place(name, set(slots)))
    map_rows(served, folder.d2t, sizes.head_rows, total)
    shared = {} if own_embedding(served, folder, loaded[1], target) else {EMBEDDING: target.embedding}
    head = folder.tensors.get(HEAD)
    if sizes.head_rows == total and (HEAD not in loaded[1] or is_targets(head, target.head)):
        shared[HEAD] = target.head
    conclude(served, sizes, slots, loaded, shared)


def _place(name: str, slots: set[str]) -> KeyPlace:
    if name == "d2t":
        return KeyPlace(None, "not needed: becomes the ids of the head's rows")
    if name == "t2d":
        return KeyPlace(None, "not needed: the converter leaves it out")
    slot = name.replace("midlayer.", "layers.0.")
    slot = slot if slot == HEAD else f"model.{slot.removeprefix('model.')}"
    if slot == "model.input_norm.weight" and slot not in slots:
        return KeyPlace(None, "the top-level norm_before_fc is not set", refused=True)
    return KeyPlace(
        slot, "" if slot in slots else "the converter has no place for it", refused=slot not in slots
    )


LLAMACPP = Reader(
    "llamacpp",
    "llama.cpp",
    "gguf",
    lambda folder: any(name in folder.architectures for name in (*_ARCHITECTURES, _GGUF)),
    _fill,
)
