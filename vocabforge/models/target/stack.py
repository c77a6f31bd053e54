"""Parts of a Transformers model, multimodal or not: embedding, LM head and the stack of decoder layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import DataError
from .load import Placement, whole_weight
from .logits import LogitTransform


class Ends:
    """Embedding and LM head (V, H) of a target, and the transform of the head's logits."""

    embedding: Tensor
    head_weight: Tensor
    transform: LogitTransform

    @property
    def hidden_size(self) -> int:
        return int(self.head_weight.shape[1])

    @property
    def vocab_size(self) -> int:
        """Number of rows of the LM head, including padding."""
        return int(self.head_weight.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights and hidden states."""
        return self.head_weight.dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits with the model's scale and softcap: (..., H) -> (..., V)."""
        return self.transform(F.linear(hidden.to(self.head_weight.dtype), self.head_weight))


class FoundEnds(NamedTuple):
    """The LM head module, and the weights (V, H) as plain tensors on ``device``."""

    head: Any
    head_weight: Tensor
    embedding: Tensor
    device: torch.device


def find_ends(model: Any, placement: Placement | None, source: object = None) -> FoundEnds:
    """Find the embedding and LM head of a model under any placement.

    Raises:
        DataError: the model has no LM head.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None:
        raise DataError(
            "the target has no LM head",
            got=type(model).__name__,
            expected="a causal language model",
            source=source,
        )
    if placement is None or not placement.spread:
        device = head.weight.device if placement is None else placement.device
        return FoundEnds(head, head.weight, embedding.weight, device)
    weight = whole_weight(head, placement.device)
    tied = head.weight is embedding.weight
    return FoundEnds(
        head, weight, weight if tied else whole_weight(embedding, placement.device), placement.device
    )


class Stack(NamedTuple):
    """A module that maps ``input_ids`` to the LM head's input (``decoder``), and its ``layers``."""

    decoder: nn.Module
    layers: nn.ModuleList


def find_stack(model: Any, source: object = None) -> Stack:
    """Find the innermost module with the input embedding and a list of the configured number of layers.

    Raises:
        DataError: there is no such module.
    """
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    embedding = model.get_input_embeddings()
    stack = None
    for module in model.modules():
        children = list(module.children())
        if any(child is embedding for child in children):
            for child in children:
                if isinstance(child, nn.ModuleList) and len(child) == count:
                    stack = Stack(module, child)
    if stack is None:
        raise DataError(
            "the target has no stack of decoder layers",
            got=type(model).__name__,
            expected=f"{count} layers in the same module as the input embedding",
            source=source,
        )
    return stack
