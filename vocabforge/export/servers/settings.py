"""Parse a drafter's ``config.json`` as servers do, with transformers' configuration classes and defaults."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ...layouts.layer_ids import LAYER_IDS
from ...models.target.load import dtype_name
from .forward import ROPE_TYPES, ServedSizes
from .types import Served, ServedTarget

_REMEDY = "export the drafter again: d2t holds offsets, target id = row + d2t[row]"


def map_rows(served: Served, d2t: Tensor | None, rows: int, total: int) -> None:
    """Map the head's rows to target ids (below ``total``) by the stored offsets (R,); record problems."""
    if d2t is None:
        if rows != total:
            told = f"no d2t: the {rows:,} rows would be proposed as ids 0 to {rows - 1}"
            served.fail("draft tokens", told, "export the drafter again with its draft vocabulary")
    elif d2t.dim() != 1 or not len(d2t) or d2t.is_floating_point() or d2t.dtype == torch.bool:
        told = f"d2t is {dtype_name(d2t.dtype)} of shape {list(d2t.shape)}"
        served.fail("draft tokens", told, _REMEDY)
    else:
        check_ids(served, torch.arange(len(d2t)) + d2t.long(), rows, total)


def check_ids(served: Served, ids: Tensor, rows: int, total: int) -> bool:
    """Record the target ids and return True if every row has a distinct valid id, else record a problem."""
    if len(ids) != rows:
        served.fail("draft tokens", f"{len(ids):,} mapped rows, but {rows:,} of the head", _REMEDY)
        return False
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= total:
        stored = ids - torch.arange(len(ids))
        absolute = bool((stored.diff() > 0).all()) and int(stored.min()) >= 0 and int(stored.max()) < total
        told = ": d2t holds ids, not offsets" if absolute else ""
        served.fail(
            "draft tokens",
            f"rows map to ids {low} to {high}, beyond 0 to {total - 1}{told}",
            "subtract arange(R) from d2t" if absolute else _REMEDY,
        )
        return False
    if len(ids.unique()) != len(ids):
        twice = len(ids) - len(ids.unique())
        served.fail("draft tokens", f"{twice:,} rows map to ids that other rows also have", _REMEDY)
        return False
    served.target_ids = ids
    return True


_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "rms_norm_eps")
_COUNTS = [field.name for field in dataclasses.fields(ServedSizes) if field.type == "int"]
_MOST_LAYERS = 1024  # more than any target has
_CONFIG_REMEDY = "write the field into config.json, or export the drafter again"


def configuration(served: Served, body: Mapping[str, Any]) -> Any | None:
    """Parse a body as a Llama or Qwen3 configuration; record a problem and return None if that fails."""
    from transformers import LlamaConfig, Qwen3Config

    kinds: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    kind = body.get("model_type")
    if not isinstance(kind, str) or kind not in kinds:
        served.fail("configuration", f"model_type {kind!r} is not known", "write model_type llama")
        return None
    absent = [name for name in _SIZES if body.get(name) is None]
    if absent:
        defaults = kinds[kind]()
        told = ", ".join(f"{name} {getattr(defaults, name)}" for name in absent)
        served.fail("configuration", f"fields are absent, so that the defaults hold: {told}", _CONFIG_REMEDY)
    try:
        return kinds[kind](**copy.deepcopy(dict(body)))
    except Exception as error:  # noqa: BLE001 (transformers' validation raises many types)
        served.fail("configuration", f"transformers refuses it: {_first_line(error)}", _CONFIG_REMEDY)
        return None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:160] or type(error).__name__


def eagle3_sizes(
    served: Served, config: Any, target: ServedTarget, n_aux: int, **flags: Any
) -> ServedSizes | None:
    """Return :func:`sizes_of` an EAGLE-3 folder in the serving layout.

    ``flags`` override values that SGLang and vLLM read alike.
    """
    eagle, rows = getattr(config, "eagle_config", None) or {}, getattr(config, "draft_vocab_size", None)
    read = {
        "norm_before_fc": bool(eagle.get("norm_before_fc", getattr(config, "norm_before_fc", False))),
        "norm_output": bool(getattr(config, "norm_output", False)),
    }
    return sizes_of(
        served,
        config,
        "eagle3",
        target,
        target_hidden=getattr(config, "target_hidden_size", None) or config.hidden_size,
        head_rows=config.vocab_size if rows is None else rows,
        n_aux=n_aux,
        **(read | flags),
    )


def sizes_of(
    served: Served,
    config: Any,
    family: Literal["eagle3", "eagle1"],
    target: ServedTarget,
    *,
    several: bool = False,
    **flags: Any,
) -> ServedSizes | None:
    """Return sizes and flags for the forward pass, checked against the target.

    Record a problem and return None if servers compute another form.

    Args:
        several: the server computes any number of decoder layers.
        flags: fields of ``ServedSizes`` that servers read differently.
    """
    rope = dict(getattr(config, "rope_parameters", None) or {})
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.setdefault("rope_theta", 10_000.0)
    served.facts |= {"rope_theta": rope["rope_theta"], "rope_type": rope["rope_type"]}
    if rope["rope_type"] not in ROPE_TYPES:
        served.warn(
            "configuration",
            f"RoPE type {rope['rope_type']}: not computed here, so the logits are not compared",
            "compare the accepted length on the server with vocabforge eval",
        )
        return None
    if config.hidden_act != "silu":
        served.fail("configuration", f"hidden_act {config.hidden_act}", "only silu is computed by servers")
        return None
    sizes = ServedSizes(
        family=family,
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab=config.vocab_size,
        eps=config.rms_norm_eps,
        rope=rope,
        positions=config.max_position_embeddings,
        layers=config.num_hidden_layers,
        **flags,
    )
    if not _sound(served, sizes):
        return None
    _check_sizes(served, sizes, target, several)
    return sizes


def _sound(served: Served, sizes: ServedSizes) -> bool:
    """Return whether the sizes are valid for a layer, which bounds what is allocated by the file's size."""
    wrong = [
        f"{name} {value!r}" for name in _COUNTS if type(value := getattr(sizes, name)) is not int or value < 1
    ]
    if not wrong and sizes.kv_heads > sizes.heads:
        wrong = [f"{sizes.kv_heads} key/value heads for {sizes.heads} heads"]
    if not wrong and sizes.n_aux > _MOST_LAYERS:
        wrong = [f"{sizes.n_aux} target states"]
    if not wrong and sizes.layers > _MOST_LAYERS:
        wrong = [f"{sizes.layers} decoder layers"]
    theta = sizes.rope["rope_theta"]
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta < math.inf:
        wrong.append(f"rope_theta {theta!r}")
    if wrong:
        served.fail("configuration", f"no drafter has these sizes: {', '.join(wrong)}"[:300], _CONFIG_REMEDY)
    return not wrong


def _check_sizes(served: Served, sizes: ServedSizes, target: ServedTarget, several: bool) -> None:
    # Fail if servers require equality; warn if only acceptance suffers.
    rows, width = target.embedding.shape
    if sizes.vocab != rows:
        served.fail(
            "configuration",
            f"vocab_size {sizes.vocab:,}, but the target has {rows:,} rows (padding included)",
            "write the target's vocab_size into config.json",
        )
    if sizes.target_hidden != width or sizes.hidden != width:
        served.fail(
            "configuration",
            f"hidden sizes {sizes.hidden:,} (drafter) and {sizes.target_hidden:,} (target, as the folder has it), "
            f"but the target's is {width:,}",
            "use the target that the drafter was trained for",
        )
    if sizes.heads % sizes.kv_heads:
        served.fail(
            "configuration",
            f"{sizes.heads} heads do not share {sizes.kv_heads} key/value heads evenly",
            "correct num_attention_heads and num_key_value_heads",
        )
    if sizes.layers != 1 and not several:
        served.fail(
            "configuration",
            f"{sizes.layers} decoder layers, of which {served.title} computes one",
            "export --format speculators-eagle3, which vLLM reads",
        )
    longest = target.config.get("max_position_embeddings")
    if longest and sizes.positions < int(longest):
        served.warn(
            "configuration",
            f"max_position_embeddings {sizes.positions:,} is below the target's {int(longest):,}",
            "serve no longer context than the drafter's, or raise it in config.json if its positions are relative",
        )
    theirs = _target_rope(target.config)
    kind, theta = sizes.rope["rope_type"], float(sizes.rope["rope_theta"])
    differing = [
        f"{name} {sizes.rope.get(name)} (target {value})"
        for name, value in theirs.items()
        if name in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        and sizes.rope.get(name) != value
    ]
    if kind != theirs["rope_type"] or theta != float(theirs["rope_theta"]) or differing:
        told = f"RoPE {kind} with base {theta:,.0f}, the target's is {theirs['rope_type']} with base "
        told += f"{float(theirs['rope_theta']):,.0f}"
        served.warn(
            "configuration",
            "; ".join([told, *differing]),
            "only right if it was trained so: compare rope_theta and rope_scaling with the training's",
        )


def _target_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    nested = config.get("rope_scaling") or config.get("rope_parameters") or {}
    nested = nested.get("sliding_attention") or nested.get("full_attention") or nested
    rope = {name: value for name, value in nested.items() if not isinstance(value, Mapping)}
    rope.setdefault("rope_type", rope.pop("type", "default"))
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = config.get("rope_theta") or 10_000.0
    return rope


def count_states(served: Served, config: Any, remedy: str) -> int:
    """Return the number of target states that ``fc`` reads; record a problem if others are captured."""
    eagle = getattr(config, "eagle_config", None) or {}
    listed = eagle.get(LAYER_IDS)
    n_aux: int = getattr(config, "num_aux_hidden_states", None) or (len(listed) if listed else 3)
    if not eagle.get("use_aux_hidden_state", True):
        served.fail("configuration", "eagle_config.use_aux_hidden_state is false", "write true")
    if n_aux != len(served.layers):
        served.fail(
            "layers", f"{len(served.layers)} layers are captured, but fc is made for {n_aux} states", remedy
        )
    return n_aux


def check_layers(
    served: Served, inputs: list[int], count: int, *, first: bool = False, last: bool
) -> tuple[int, ...]:
    """Return the layer outputs for a list of layer *inputs*; record a problem if they cannot be captured.

    Args:
        count: number of target layers.
        last: the server can capture the last layer's output.
        first: the server can capture the embedding (-1).
    """
    outputs = tuple(sorted({layer - 1 for layer in inputs}))
    most = count - 1 if last else count - 2
    wrong = [layer for layer in outputs if not -first <= layer <= most]
    remedy = "write the layers that the drafter was trained with into config.json (vocabforge export does)"
    if wrong:
        served.fail("layers", f"outputs {wrong} of {count} layers cannot be captured (0 to {most})", remedy)
    elif -1 in outputs:
        served.warn("layers", f"{served.title} captures the embedding (input 0): not compared here", remedy)
    if len(outputs) != len(inputs):
        served.fail("layers", f"layers are listed twice: inputs {inputs}", remedy)
    elif list(outputs) != [layer - 1 for layer in inputs]:
        served.fail(
            "layers",
            f"inputs {inputs} are not ascending: the states come as {[layer + 1 for layer in outputs]}",
            "train with ascending drafter.aux_layers, or permute the columns of fc",
        )
    return outputs
