"""Where a model of Transformers keeps its decoder layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...core.errors import DataError


def find_layers(model: Any, source: object = None) -> nn.ModuleList:
    """The decoder layers: the list of that length in the innermost module that owns the input embedding.

    Raises:
        DataError: there is none.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    embedding = model.get_input_embeddings()
    found = None
    for module in model.modules():
        children = list(module.children())
        if any(child is embedding for child in children):
            for child in children:
                if isinstance(child, nn.ModuleList) and len(child) == count:
                    found = child
    if found is None:
        raise DataError(
            "the target has no stack of decoder layers",
            got=type(model).__name__,
            expected=f"a list of {count} layers beside the input embedding",
            source=source,
        )
    return found
