"""A target without its layers, for training from a cache of captured states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..drafters.io import load_target_tensors
from .hf import default_aux_layers
from .load import read_target_config
from .logits import IDENTITY, LogitTransform
from .stack import Ends
from .text_config import text_config


@dataclass(frozen=True)
class TargetHead(Ends):
    """Embedding and LM head (V, H) of a target, for logits without hidden states.

    Attributes:
        aux_layers: decoder layers (0-based outputs) of the cached features.
        transform: transform applied to the output of the LM head.
    """

    embedding: Tensor
    head_weight: Tensor
    aux_layers: tuple[int, ...]
    transform: LogitTransform = IDENTITY

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        aux_layers: tuple[int, ...] | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> TargetHead:
        """Load only these two tensors of a Hugging Face folder, so the cost depends on the vocabulary alone.

        Raises:
            DataError: the weights cannot be read.
        """
        config = text_config(read_target_config(path), path)
        tensors = load_target_tensors(path, dtype)
        tied = tensors.head is tensors.embedding or torch.equal(tensors.head, tensors.embedding)
        head = tensors.head.to(device)
        embedding = head if tied else tensors.embedding.to(device)
        layers = aux_layers or default_aux_layers(int(config.num_hidden_layers))
        return cls(embedding, head, tuple(layers), LogitTransform.of(config))

    @property
    def device(self) -> torch.device:
        return self.head_weight.device
