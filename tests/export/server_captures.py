"""Which layers servers capture, by the rules that ``export/layer_ids.py`` states, beside its own code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vocabforge.export.layer_ids import LAYER_IDS


def _inner(body: Mapping[str, Any]) -> Any:
    return (body.get("eagle_config") or {}).get(LAYER_IDS)


def _default(num_layers: int) -> tuple[int, ...]:
    return (1, num_layers // 2 - 1, num_layers - 4)


def sglang_captures(body: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The outputs that SGLang hands to the drafter, ascending, each once.

    The last layer's output is no layer's input: it is not captured, whatever the list says.
    """
    layers = _inner(body) or _default(num_layers)
    return tuple(sorted({layer for layer in layers if layer < num_layers - 1}))


def vllm_captures(body: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The outputs that vLLM hands to the drafter, ascending, each once; -1 is the input embedding.

    Args:
        body: of the serving or of the speculators layout.
    """
    listed = body.get(LAYER_IDS) or _inner(body)
    layers = [layer - 1 for layer in listed] if listed else _default(num_layers)
    return tuple(sorted({layer for layer in layers if -1 <= layer < num_layers}))
