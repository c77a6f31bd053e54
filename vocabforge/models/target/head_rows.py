"""Rows of a target's LM head, read in blocks from its safetensors files without loading the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from ...core.errors import DataError, MismatchError
from ..checkpoint import EMBEDDING, FLOATS, LM_HEAD, StoredTensor, checkpoint_files, read_headers
from .load import read_target_config

Rows = npt.NDArray[np.float32]

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
_DIGEST_ROWS = 4096


@dataclass(frozen=True, eq=False)
class HeadRows:
    """Rows of a memory-mapped LM head.

    Attributes:
        shape: (V_head, d); V_head includes padded rows.
        dtype: stored dtype: ``F32``, ``BF16``, ``F16`` or ``F64``.
        source: file of the tensor.
        name: name of the tensor in the file.
        tied: the head is the input embedding.
    """

    shape: tuple[int, int]
    dtype: str
    source: Path
    name: str
    tied: bool
    _slice: Any = field(repr=False)

    def rows(self, start: int, stop: int) -> Rows:
        """Return a copy of rows [start, stop) as (stop - start, d) float32."""
        part: torch.Tensor = self._slice[start:stop]
        return part.to(torch.float32, copy=True).contiguous().numpy()

    def digest(self, count: int) -> str:
        """Hash the shape and float32 values of the first ``count`` rows, for any dtype, files and padding."""
        state = hashlib.sha256(f"head rows {count} x {self.shape[1]}\n".encode())
        for start in range(0, count, _DIGEST_ROWS):
            block = self.rows(start, min(start + _DIGEST_ROWS, count))
            state.update(block.tobytes())
        return state.hexdigest()


def open_head(path: Path) -> HeadRows:
    """Open the LM head of a Hugging Face folder; a stored head is used even if the configuration ties it.

    Raises:
        DataError: there is no model, no safetensors file or no head; a file is damaged; or the head is split,
            packed or quantised.
    """
    config = read_target_config(path)
    stored = read_headers(checkpoint_files(path))
    found = [name for name in HEADS if name in stored]
    tied = not found
    if not found:
        _refuse_foreign_head(stored, path)
        if not _says_tied(config, path):
            raise DataError(
                "the checkpoint has no LM head",
                got=f"none of {', '.join(HEADS)}, and the configuration does not tie it to the embedding",
                source=path,
                remedy="use the checkpoint of the causal language model, or correct tie_word_embeddings",
            )
        found = [name for name in EMBEDDINGS if name in stored]
    if len(found) != 1:
        what = "embedding, which is its LM head," if tied else "LM head"
        raise DataError(
            f"the checkpoint's {what} cannot be determined",
            got=", ".join(found) or "no tensor of a known name",
            expected=f"one of {', '.join(EMBEDDINGS if tied else HEADS)}",
            source=path,
        )
    item = stored[found[0]]
    check_plain(item)
    handle = safe_open(str(item.file), framework="pt", device="cpu")
    rows, width = item.shape
    return HeadRows((rows, width), item.dtype, item.file, item.name, tied, handle.get_slice(item.name))


def check_head_fits(head: HeadRows, vocab_size: int, *, tokenizer: object) -> int:
    """Return the number of padded rows, those beyond the tokenizer's highest id.

    Raises:
        MismatchError: the tokenizer has ids without a row.
    """
    if head.shape[0] < vocab_size:
        raise MismatchError(
            "the LM head has fewer rows than the tokenizer has ids",
            got=f"{head.shape[0]:,} rows in {head.name} of {head.source}",
            expected=f"at least {vocab_size:,}, the ids of {tokenizer}",
            remedy="give the target's own tokenizer with --tokenizer",
        )
    return head.shape[0] - vocab_size


def _says_tied(config: Mapping[str, Any], path: Path) -> bool:
    """Return whether the configuration ties head and embedding, by default as its architecture does."""
    for values in (config, config.get("text_config")):
        if isinstance(values, Mapping) and isinstance(values.get("tie_word_embeddings"), bool):
            return bool(values["tie_word_embeddings"])
    from transformers import AutoConfig

    try:
        known = AutoConfig.from_pretrained(path, trust_remote_code=False)
    except Exception:  # noqa: BLE001 (an architecture unknown to transformers has no default)
        return False
    return bool(getattr(known, "tie_word_embeddings", False))


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


def check_plain(item: StoredTensor, what: str = "LM head") -> None:
    """Check that a matrix is stored as (V, d) floating-point numbers of two bytes or more.

    Raises:
        DataError: it is packed, quantised or not a matrix.
    """
    if item.dtype not in FLOATS or len(item.shape) != 2 or 0 in item.shape:
        raise DataError(
            f"the {what} is packed, quantised or no matrix",
            got=f"{item.name} {item.dtype} {item.shape}",
            expected=f"(V, d) in one of {', '.join(FLOATS)}",
            source=item.file,
            remedy="dequantise the checkpoint to floating point and save it again",
        )
