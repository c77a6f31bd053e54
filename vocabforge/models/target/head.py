"""A target without its layers: its stored LM head, the tensors that drafters share, and training without it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.errors import DataError
from ..checkpoint import EMBEDDING, FLOATS, LM_HEAD, StoredTensor, checkpoint_files, load_stored, read_headers
from .hf import default_aux_layers
from .load import read_target_config
from .logits import IDENTITY, LogitTransform
from .stack import Ends
from .text_config import text_config

# Tensor names used by decoders of the transformers library, the usual ones first.
HEADS = (
    LM_HEAD,
    "language_model.lm_head.weight",
    "model.language_model.lm_head.weight",
    "output.weight",
    "embed_out.weight",
)
EMBEDDINGS = (
    EMBEDDING,
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.text_model.embed_tokens.weight",
    "transformer.wte.weight",
    "wte.weight",
    "transformer.word_embeddings.weight",
    "word_embeddings.weight",
    "gpt_neox.embed_in.weight",
    "model.decoder.embed_tokens.weight",
    "backbone.embeddings.weight",
)


class StoredHead(NamedTuple):
    """LM head (V_head, d) in a checkpoint, padded rows included, and whether it is the input embedding."""

    item: StoredTensor
    tied: bool

    def rows(self) -> npt.NDArray[np.float32]:
        """Load all rows as float32."""
        return load_stored({LM_HEAD: self.item}, torch.float32)[LM_HEAD].numpy()

    def digest(self, count: int) -> str:
        """Hash the shape and float32 values of the first ``count`` rows, for any dtype, files and padding."""
        state = hashlib.sha256(f"head rows {count} x {self.item.shape[1]}\n".encode())
        state.update(self.rows()[:count].data)
        return state.hexdigest()


def open_head(path: Path) -> StoredHead:
    """Find the LM head of a Hugging Face folder; a stored head is used even if the configuration ties it.

    Raises:
        DataError: there is no model, no safetensors file or no head; a file is damaged; or the head is split,
            packed or quantised.
    """
    return _find_head(read_target_config(path), read_headers(checkpoint_files(path)), path)


def _find_head(config: Mapping[str, Any], stored: Mapping[str, StoredTensor], path: Path) -> StoredHead:
    names = [name for name in HEADS if name in stored]
    tied = not names
    if not names:
        _refuse_foreign_head(stored, path)
        if not _says_tied(config, path):
            raise DataError(
                "the checkpoint has no LM head",
                got=f"none of {', '.join(HEADS)}, and the configuration does not tie it to the embedding",
                source=path,
                remedy="use the checkpoint of the causal language model, or correct tie_word_embeddings",
            )
        names = [name for name in EMBEDDINGS if name in stored]
    if len(names) != 1:
        what = "embedding, which is its LM head," if tied else "LM head"
        raise DataError(
            f"the checkpoint's {what} cannot be determined",
            got=", ".join(names) or "no tensor of a known name",
            expected=f"one of {', '.join(EMBEDDINGS if tied else HEADS)}",
            source=path,
        )
    return StoredHead(_plain(stored[names[0]]), tied)


def _says_tied(config: Mapping[str, Any], path: Path) -> bool:
    """Return whether the configuration ties head and embedding, by default as its architecture does."""
    for values in (config, config.get("text_config")):
        if isinstance(values, Mapping) and isinstance(values.get("tie_word_embeddings"), bool):
            return bool(values["tie_word_embeddings"])
    try:
        return bool(getattr(text_config(config, path), "tie_word_embeddings", False))
    except DataError:  # an architecture unknown to transformers has no default
        return False


def _refuse_foreign_head(stored: Mapping[str, StoredTensor], path: Path) -> None:
    """Raise an error that names the tensors found if the head is split into parts or packed."""
    prefixes = tuple(name.removesuffix("weight") for name in HEADS)
    parts = sorted(name for name in stored if name.startswith(prefixes) and not name.endswith(".bias"))
    if parts:
        raise DataError(
            "the LM head is not stored as one plain matrix",
            got=", ".join(f"{name} {stored[name].dtype} {stored[name].shape}" for name in parts[:5]),
            expected=f"one of {', '.join(HEADS)}",
            source=path,
            remedy="dequantise or join the head and save it as one floating-point matrix",
        )


def _plain(item: StoredTensor, what: str = "LM head") -> StoredTensor:
    """Check that a matrix is stored as (V, d) floating-point numbers of two bytes or more."""
    if item.dtype not in FLOATS or len(item.shape) != 2 or 0 in item.shape:
        raise DataError(
            f"the {what} is packed, quantised or no matrix",
            got=f"{item.name} {item.dtype} {item.shape}",
            expected=f"(V, d) in one of {', '.join(FLOATS)}",
            source=item.file,
            remedy="dequantise the checkpoint to floating point and save it again",
        )
    return item


@dataclass(frozen=True)
class TargetTensors:
    """The target's embedding and LM head (V, H), which drafters share, and the transform of its logits."""

    embedding: Tensor
    head: Tensor
    transform: LogitTransform = IDENTITY


def load_target_tensors(path: Path, dtype: torch.dtype = torch.float32) -> TargetTensors:
    """Load the tensors that a drafter shares, on the CPU; a tied head and embedding are one tensor.

    Raises:
        DataError: the weights cannot be read, or there are none under the usual names; see :func:`open_head`.
    """
    config = read_target_config(path)  # raises a clear error if the folder has no model
    stored = read_headers(checkpoint_files(path))
    head = _find_head(config, stored, path)
    wanted = {LM_HEAD: head.item}
    embedding = next((stored[name] for name in EMBEDDINGS if name in stored), head.item)
    if embedding is not head.item:
        wanted[EMBEDDING] = _plain(embedding, "embedding")
    tensors = load_stored(wanted, dtype)
    rows = tensors[LM_HEAD]
    transform = LogitTransform.of(text_config(config, path))
    return TargetTensors(tensors.get(EMBEDDING, rows), rows, transform)


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
            DataError: see :func:`load_target_tensors`.
        """
        config = text_config(read_target_config(path), path)
        tensors = load_target_tensors(path, dtype)
        tied = tensors.head is tensors.embedding or torch.equal(tensors.head, tensors.embedding)
        head = tensors.head.to(device)
        embedding = head if tied else tensors.embedding.to(device)
        layers = aux_layers or default_aux_layers(int(config.num_hidden_layers))
        return cls(embedding, head, tuple(layers), tensors.transform)

    @property
    def device(self) -> torch.device:
        return self.head_weight.device
