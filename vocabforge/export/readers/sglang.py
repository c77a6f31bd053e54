"""Folders as SGLang reads them: ``LlamaForCausalLMEagle3`` and ``LlamaForCausalLMEagle``.

Facts of SGLang 0.5: the list of layers is ``eagle_config.eagle_aux_hidden_state_layer_ids`` only and holds outputs;
unknown tensors are skipped and missing ones keep what memory held, both without an error; the embedding is always the
target's, the LM head where ``draft_vocab_size`` is null.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from ..layer_ids import LAYER_IDS, as_inputs, default_layers
from .forward import ServedSizes
from .settings import (
    check_ids,
    check_layers,
    check_sizes,
    check_stored,
    configuration,
    offsets_to_ids,
    sizes_of,
)
from .types import LAYERS_FROM, Folder, Served, TargetSide
from .weights import EMBEDDING, HEAD, Place, conclude, load, share, slots_of

EAGLE3, EAGLE1 = "LlamaForCausalLMEagle3", "LlamaForCausalLMEagle"
_LEGACY = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
_NOT_MODELLED = re.compile(r"rotary_emb|projector|kv_scale|activation_scale")


class Sglang:
    """See the module."""

    NAME = "sglang"
    TITLE = "SGLang"
    LAYOUT = "sglang-eagle3 (EAGLE-3) or eagle --server sglang (EAGLE-1/2)"

    @staticmethod
    def matches(folder: Folder) -> bool:
        """By the architecture."""
        return any(name in (EAGLE3, EAGLE1) for name in folder.architectures)

    @staticmethod
    def read(folder: Folder, target: TargetSide) -> Served:
        """See :class:`~vocabforge.export.readers.types.Reader`."""
        family: Literal["eagle3", "eagle1"] = "eagle3" if EAGLE3 in folder.architectures else "eagle1"
        served = Served(Sglang.NAME, Sglang.TITLE, EAGLE3 if family == "eagle3" else EAGLE1)
        config = configuration(served, folder.body)
        if config is None:
            return served
        return (
            _eagle3(served, folder, config, target)
            if family == "eagle3"
            else _eagle1(served, folder, config, target)
        )


def _eagle3(served: Served, folder: Folder, config: Any, target: TargetSide) -> Served:
    eagle = getattr(config, "eagle_config", None) or {}
    listed = eagle.get(LAYER_IDS)
    n_aux = getattr(config, "num_aux_hidden_states", None) or (len(listed) if listed else 3)
    inputs = as_inputs(listed or default_layers(target.layers))
    served.layers = check_layers(served, inputs, target.layers, last=False)
    served.facts[LAYERS_FROM] = f"eagle_config.{LAYER_IDS} (outputs)" if listed else "the server's default"
    _check_aux(served, eagle, n_aux)
    if "draft_vocab_size" not in folder.body:
        served.problem(
            "configuration",
            "failed",
            "draft_vocab_size is absent: SGLang fails at start",
            "write it; null shares the head",
        )
    rows = getattr(config, "draft_vocab_size", None)
    shares_head = rows is None
    sizes = sizes_of(
        served,
        config,
        "eagle3",
        target_hidden=getattr(config, "target_hidden_size", None) or config.hidden_size,
        head_rows=config.vocab_size if rows is None else rows,
        n_aux=n_aux,
        fc_bias=bool(getattr(config, "bias", False)),
        norm_before_fc=bool(eagle.get("norm_before_fc", getattr(config, "norm_before_fc", False))),
        fc_norm=bool(getattr(config, "fc_norm", None) or getattr(config, "use_aux_norm", False)),
        norm_output=bool(getattr(config, "norm_output", False)),
    )
    if sizes is None:
        return served
    _check_flags(served, config, shares_head)
    check_sizes(served, sizes, target)
    slots = slots_of(sizes)
    loaded = load(served, folder, slots, lambda name: _place_eagle3(name, set(slots)))
    shared = {EMBEDDING: target.embedding} | ({HEAD: target.head} if shares_head else {})
    parameters = share(served, loaded, slots, shared)
    served.own_head = not shares_head
    d2t = next((tensor for name, tensor in folder.tensors.items() if "d2t" in name), None)
    _map_rows(served, sizes, d2t, shares_head, target)
    conclude(served, sizes, parameters)
    return served


def _place_eagle3(name: str, slots: set[str]) -> Place:
    if "d2t" in name:
        return Place(None, "not needed: becomes the ids of the head's rows")
    if "t2d" in name:
        return Place(None, "not needed: SGLang does not read it")
    for old, new in _LEGACY.items():
        name = name.replace(old, new)
    place = Place(name if name in slots else f"model.{name}")
    if place.slot == EMBEDDING:
        return Place(EMBEDDING, "then replaced by the target's")
    return place


def _check_aux(served: Served, eagle: dict[str, Any], n_aux: int) -> None:
    if not eagle.get("use_aux_hidden_state", True):
        served.problem(
            "configuration",
            "failed",
            "eagle_config.use_aux_hidden_state is false: no layers are captured",
            "write true",
        )
    if served.layers and n_aux != len(served.layers):
        served.problem(
            "layers",
            "failed",
            f"{len(served.layers)} layers are captured, but fc is made for {n_aux} states",
            "write eagle_config.eagle_aux_hidden_state_layer_ids, or correct num_aux_hidden_states",
        )
    if n_aux == 1:
        served.problem(
            "layers",
            "failed",
            "one state is as wide as what fc gives: SGLang takes it for that, and skips fc",
            "serve it with vLLM (export --format speculators-eagle3), or train with more drafter.aux_layers",
        )


def _check_flags(served: Served, config: Any, shares_head: bool) -> None:
    if getattr(config, "norm_before_residual", False):
        served.problem(
            "configuration",
            "failed",
            "norm_before_residual is true, which SGLang ignores: the residual is the state before its norm",
            "serve it with vLLM (export --format speculators-eagle3)",
        )
    if config.tie_word_embeddings:
        served.problem(
            "configuration",
            "failed",
            "tie_word_embeddings is true: the target's embedding becomes the draft head",
            "write tie_word_embeddings false",
        )
    _check_biases(served, config)
    if shares_head:
        served.facts["LM head"] = "the target's (draft_vocab_size is null)"


def _check_biases(served: Served, config: Any) -> None:
    named = [name for name in ("attention_bias", "bias") if getattr(config, name, False)]
    if named:
        served.problem(
            "configuration",
            "failed",
            f"{' and '.join(named)} is true: SGLang gives the attention biases that no tensor here fills",
            "write false: SGLang serves drafters without attention biases",
        )


def _map_rows(
    served: Served, sizes: ServedSizes, d2t: Tensor | None, shares_head: bool, target: TargetSide
) -> None:
    total = len(target.embedding)
    if d2t is None:
        if sizes.head_rows != total:
            served.problem(
                "draft tokens",
                "failed",
                f"no d2t: the {sizes.head_rows:,} rows would be proposed as ids 0 to {sizes.head_rows - 1}",
                "export the drafter again with its draft vocabulary",
            )
        return
    if shares_head:
        served.problem(
            "draft tokens",
            "failed",
            f"d2t of {len(d2t):,} rows beside the target's whole head (draft_vocab_size is null)",
            "write draft_vocab_size, or remove d2t",
        )
        return
    if not check_stored(served, d2t):
        return
    ids = offsets_to_ids(d2t)
    if check_ids(served, ids, sizes.head_rows, total):
        served.target_ids = ids


def _eagle1(served: Served, folder: Folder, config: Any, target: TargetSide) -> Served:
    _check_biases(served, config)
    option = "--speculative-token-map"
    return read_eagle1(served, folder, config, target, _place_eagle1, fc_bias=True, map_option=option)


def _place_eagle1(name: str) -> Place:
    if "lm_head" in name:
        return Place(None, "not needed: the LM head is the target's")
    if _NOT_MODELLED.search(name):
        return Place(None, "not needed")
    slot = f"model.{name}"
    return Place(slot, "then replaced by the target's" if slot == EMBEDDING else "")


def read_eagle1(
    served: Served,
    folder: Folder,
    config: Any,
    target: TargetSide,
    place: Callable[[str], Place],
    *,
    fc_bias: bool,
    map_option: str,
) -> Served:
    """An EAGLE-1/2 folder over the target's embedding and head, cut to the ids of a token map beside it.

    Args:
        place: the server's rule for stored names.
        fc_bias: whether the server computes a bias of ``fc``.
        map_option: how the server is given the token map, in words.
    """
    served.own_head = False
    width, rows = config.hidden_size, config.vocab_size
    sizes = sizes_of(served, config, "eagle1", target_hidden=width, head_rows=rows, fc_bias=fc_bias)
    if sizes is None:
        return served
    check_sizes(served, sizes, target)
    slots = slots_of(sizes)
    loaded = load(served, folder, slots, place)
    parameters = share(served, loaded, slots, {EMBEDDING: target.embedding, HEAD: target.head})
    ids = folder.token_map
    if ids is not None:
        served.facts["token map"] = f"{len(ids):,} ids, given to the server as {map_option}"
        if check_ids(served, ids, len(ids), len(target.embedding)):
            served.target_ids = ids
            parameters[HEAD] = parameters[HEAD][ids]
    conclude(served, sizes, parameters)
    return served
