"""Numberings of auxiliary layers: ours and those of server configurations. Only this module converts them.

Ours are 0-based layer **outputs**. Servers capture layer inputs, so our output i is their input i + 1.
A ``config.json`` may list layers in two places under the same key:

- Inside ``eagle_config``: SGLang reads this list only, as outputs, and adds 1 to each, except for some targets
  (:func:`sglang_inputs`).
- At the top level: vLLM, speculators and llama.cpp's converter read this list, as inputs, and add nothing. If
  it is missing, vLLM's V1 model runner reads the list inside ``eagle_config``, also as inputs. Its V2 runner,
  the default on GPUs, and the converter take the default.

Read in the sources of SGLang 0.5.23 (``set_eagle3_layers_to_capture`` in ``srt/models/*.py``), vLLM 0.32 and
0.33 (``v1/worker/gpu_model_runner.py``, ``v1/worker/gpu/spec_decode/eagle/eagle3_utils.py``) and llama.cpp
0.5.0-dev (``conversion/llama.py``).

A folder with both lists, each in its reader's numbering, means the same layers in every server.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import DataError, MismatchError

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_EAGLE = "eagle_config"
# Targets whose class in SGLang adds 1 only to a list that starts with 1: deepseek_v2.py and what derives from
# it, glm4_moe_lite.py.
_FROM_ONE = ("DeepseekV2", "DeepseekV3", "GlmMoeDsa", "MistralLarge3", "KimiK25", "Glm4MoeLite")


@dataclass(frozen=True)
class LayerReading:
    """Auxiliary layers read from a folder (0-based outputs), and the rule that determined them.

    ``other`` holds the layers in the other numbering if nothing in the folder decides between the two.
    """

    layers: tuple[int, ...]
    rule: str
    other: tuple[int, ...] | None = None


def as_outputs(layers: Iterable[int]) -> list[int]:
    """Convert our layers to SGLang's list inside ``eagle_config``."""
    return list(layers)


def as_inputs(layers: Iterable[int]) -> list[int]:
    """Convert our layers to the top-level list of vLLM and speculators."""
    return [layer + 1 for layer in layers]


def sglang_inputs(listed: Sequence[int], target: Mapping[str, Any], num_layers: int) -> list[int]:
    """Return the layer inputs that SGLang captures for a list inside ``eagle_config``.

    Args:
        target: the target's ``config.json``.
    """
    named = str((target.get("architectures") or [""])[0])
    kept = named.startswith(_FROM_ONE) and listed[0] != 1
    kept |= named.startswith("GptOss") and max(listed) == num_layers  # gpt_oss.py
    return list(listed) if kept else as_inputs(listed)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return what servers capture without a list: inputs 2, n//2 and n - 3 of a target with n layers."""
    return (1, num_layers // 2 - 1, num_layers - 4)


def speculators_layers(body: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Return the layer outputs that a speculators configuration names."""
    listed = _listed(body.get(LAYER_IDS))
    return tuple(layer - 1 for layer in listed) if listed else default_layers(num_layers)


def read_layers(body: Mapping[str, Any], num_layers: int) -> LayerReading:
    """Determine the auxiliary layers of a folder in the serving layout, whichever tool wrote it.

    1. Two lists that agree, each in its reader's numbering, are unambiguous.
    2. A list with layer n of an n-layer target must be inputs; a list of SGLang with layer 0 must be outputs.
    3. A list that is EAGLE-3's default in one numbering is read in that numbering.
    4. Any other list is read in the numbering of its place, and ``other`` holds the alternative.
    5. Without a list, the servers' default applies.

    Raises:
        DataError: the value is not a list of layer numbers.
    """
    inner, top = _listed(_eagle(body).get(LAYER_IDS)), _listed(body.get(LAYER_IDS))
    if inner and top and as_inputs(inner) == top:
        return LayerReading(tuple(inner), "listed in both numberings")
    listed = inner or top
    if not listed:
        return LayerReading(default_layers(num_layers), "not listed: the servers' default")
    place = f"{_EAGLE}.{LAYER_IDS}" if inner else LAYER_IDS
    outputs, inputs = tuple(listed), tuple(layer - 1 for layer in listed)
    contradicted = bool(inner and top)
    if max(listed) >= num_layers and not contradicted:
        return LayerReading(inputs, f"{place} reaches layer {num_layers}, so it holds inputs")
    if inner and min(listed) == 0 and not contradicted:
        return LayerReading(outputs, f"{place} names layer 0, so it holds outputs")
    default = default_layers(num_layers)
    if default in (outputs, inputs):
        layers, other = (outputs, inputs) if default == outputs else (inputs, outputs)
        rule = f"{place} is the servers' default as {'outputs' if layers == outputs else 'inputs'}"
        return LayerReading(layers, rule, other if contradicted else None)
    if inner:
        rule = f"{place} read as outputs, as SGLang does"
        if not top:
            return LayerReading(outputs, rule, inputs)
        return LayerReading(outputs, f"{rule}; vLLM reads another list", tuple(layer - 1 for layer in top))
    return LayerReading(inputs, f"{place} read as inputs, as vLLM does", outputs)


def check_expressible(layers: Sequence[int], last: int, *, layout: str, remedy: str) -> None:
    """Raise MismatchError for layers that a server would not capture in the order that ``fc`` expects.

    ``last`` is the highest output that the layout's servers capture.
    """
    ascending = all(low < high for low, high in itertools.pairwise(layers))
    if not ascending or layers[-1] > last:
        raise MismatchError(
            f"{layout} cannot express these auxiliary layers",
            got=f"outputs of layers {list(layers)} (0-based)",
            expected=f"ascending, none above {last}: servers capture layers in this order",
            remedy=remedy,
        )


def _eagle(body: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = body.get(_EAGLE)
    return nested if isinstance(nested, Mapping) else {}


def _listed(value: Any) -> list[int] | None:
    """Return a list of layer numbers; None if it is missing or empty."""
    if value is None or value == []:
        return None
    if not isinstance(value, (list, tuple)) or not all(type(layer) is int for layer in value):
        raise DataError(
            "the drafter's auxiliary layers are not a list of layer numbers",
            got=repr(value)[:80],
            expected=f"{LAYER_IDS}: [2, 16, 29] or the like",
            remedy="correct config.json",
        )
    return list(value)
