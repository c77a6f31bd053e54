"""A target without its layers: the tensors that drafters share, and training from captured states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...core.errors import DataError
from ..checkpoint import EMBEDDING, LM_HEAD, checkpoint_files, fill, read_headers
from .head_rows import EMBEDDINGS, HEADS, check_plain
from .hf import default_aux_layers
from .load import read_target_config
from .logits import IDENTITY, LogitTransform
from .stack import Ends
from .text_config import text_config


@dataclass(frozen=True)
class TargetTensors:
    """The target's embedding and LM head (V, H), which drafters share, and the transform of its logits."""

    embedding: Tensor
    head: Tensor
    transform: LogitTransform = IDENTITY


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


def load_target_tensors(path: Path, dtype: torch.dtype = torch.float32) -> TargetTensors:
    """Load the tensors that a drafter shares, on the CPU; a tied head and embedding are one tensor.

    Raises:
        DataError: the weights cannot be read, or there are none under the usual names.
    """
    config = read_target_config(path)  # raises a clear error if the folder has no model
    stored = read_headers(checkpoint_files(path))
    embedding = next((stored[name] for name in EMBEDDINGS if name in stored), None)
    head = next((stored[name] for name in HEADS if name in stored), embedding)
    embedding = embedding or head
    if embedding is None or head is None:
        raise DataError(
            "the target has no input embedding",
            got=f"no {EMBEDDING}",
            expected="a checkpoint of a supported causal language model",
            source=path,
        )
    check_plain(embedding, "embedding")
    check_plain(head)
    wanted = {EMBEDDING: embedding} if head is embedding else {EMBEDDING: embedding, LM_HEAD: head}
    shared = {name: torch.empty(item.shape, dtype=dtype) for name, item in wanted.items()}
    fill(wanted, {name: (tensor,) for name, tensor in shared.items()})
    head_rows = shared.get(LM_HEAD, shared[EMBEDDING])
    return TargetTensors(shared[EMBEDDING], head_rows, LogitTransform.of(text_config(config, path)))
