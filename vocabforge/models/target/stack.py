"""Where a model of Transformers keeps its decoder: the stack of layers, alone or inside a multimodal model."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from ...core.errors import DataError


class Stack(NamedTuple):
    """``decoder``: called with ``input_ids``, it gives what the LM head reads; ``layers`` are its own."""

    decoder: nn.Module
    layers: nn.ModuleList


def find_stack(model: Any, source: object = None) -> Stack:
    """The innermost module that owns the input embedding and a list of as many layers as the configuration says.

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
                    found = Stack(module, child)
    if found is None:
        raise DataError(
            "the target has no stack of decoder layers",
            got=type(model).__name__,
            expected=f"{count} layers beside the input embedding",
            source=source,
        )
    return found
