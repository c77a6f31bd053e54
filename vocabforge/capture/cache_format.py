"""The disk cache of captured states: what decides its content, how rows are cut into shards, one shard's file.

A shard is one safetensors file of whole rows, their padding left out: ``hidden`` (n, H), ``features`` (n, n_aux * H),
``token_ids`` and ``document`` (n,), and ``offsets`` (rows + 1,) into them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.errors import DataError
from ..corpus.packing import PackedRows
from ..models.target_load import DTYPES
from .online import CapturedBatch, Key, RowBatch

KIND = "capture"
INDEX = "index.json"
FORMAT = 1
SPLITS = ("train", "heldout")
_CHUNK_ROWS = 1024


@dataclass(frozen=True)
class CaptureKey:
    """Everything that decides what a cache holds.

    Attributes:
        target: fingerprint of the target.
        aux_layers: decoder layers (0-based outputs) in ``features``, in this order.
        hidden_size: H.
        dtype: of the stored states.
        target_dtype: that the target computed in.
        rows: split -> digest of its token ids and documents (see :func:`rows_digest`).
    """

    target: str
    aux_layers: tuple[int, ...]
    hidden_size: int
    dtype: str
    target_dtype: str
    rows: Mapping[str, str]

    @property
    def feature_size(self) -> int:
        """n_aux * H."""
        return len(self.aux_layers) * self.hidden_size

    @property
    def token_bytes(self) -> int:
        """Bytes stored for one token."""
        size = torch.empty((), dtype=DTYPES[self.dtype]).element_size()
        return (self.feature_size + self.hidden_size) * size + 8

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return json.loads(json.dumps(asdict(self)))


@dataclass(frozen=True)
class Shard:
    """Rows ``first`` to ``first + rows`` of a split, in one file of ``tokens`` tokens."""

    file: str
    split: str
    first: int
    rows: int
    tokens: int


def rows_digest(rows: PackedRows) -> str:
    """SHA-256 over token ids and documents of all rows: what the target's states depend on, and nothing else."""
    digest = hashlib.sha256(repr(tuple(rows.input_ids.shape)).encode())
    for first in range(0, len(rows.input_ids), _CHUNK_ROWS):
        for array in (rows.input_ids, rows.document):
            part = np.ascontiguousarray(array[first : first + _CHUNK_ROWS], dtype=np.int32)
            digest.update(part.tobytes())
    return digest.hexdigest()


def row_lengths(rows: PackedRows) -> npt.NDArray[np.int64]:
    """Real tokens of each row (N,)."""
    chunks = [
        (np.asarray(rows.document[first : first + _CHUNK_ROWS]) != 0).sum(1)
        for first in range(0, len(rows.document), _CHUNK_ROWS)
    ]
    return np.concatenate(chunks).astype(np.int64)


def plan_shards(rows: Mapping[str, PackedRows], token_bytes: int, shard_bytes: int) -> list[Shard]:
    """Consecutive rows put into shards of at most ``shard_bytes`` (a longer row has one of its own)."""
    shards: list[Shard] = []
    for split, packed in rows.items():
        first, tokens = 0, 0
        lengths = row_lengths(packed).tolist()
        for row, length in enumerate(lengths):
            if row > first and (tokens + length) * token_bytes > shard_bytes:
                shards.append(_shard(len(shards), split, first, row, tokens))
                first, tokens = row, 0
            tokens += length
        if lengths:
            shards.append(_shard(len(shards), split, first, len(lengths), tokens))
    return shards


def _shard(number: int, split: str, first: int, stop: int, tokens: int) -> Shard:
    return Shard(f"shard-{number:05d}.safetensors", split, first, stop - first, tokens)


def to_batch(rows: PackedRows, indices: Sequence[int], device: torch.device) -> RowBatch:
    """The named rows as tensors (B, T)."""
    index = np.asarray(indices)

    def ids(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.asarray(array[index]).astype(np.int64)).to(device)

    mask = torch.from_numpy(np.asarray(rows.loss_mask[index]).astype(np.bool_)).to(device)
    return RowBatch(ids(rows.input_ids), mask, ids(rows.document), ids(rows.position))


def shard_tensors(batches: Iterator[CapturedBatch], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of a shard from its rows, padding left out."""
    parts: dict[str, list[Tensor]] = {"hidden": [], "features": [], "token_ids": [], "document": []}
    offsets = [0]
    for batch in batches:
        real = batch.document != 0  # (B, T)
        offsets += [offsets[-1] + count for count in real.sum(1).cumsum(0).tolist()]
        parts["hidden"].append(batch.hidden[real].to("cpu", dtype))
        parts["features"].append(batch.features[real].to("cpu", dtype))
        parts["token_ids"].append(batch.input_ids[real].to("cpu", torch.int32))
        parts["document"].append(batch.document[real].to("cpu", torch.int32))
    tensors = {name: torch.cat(values) for name, values in parts.items()}
    return {**tensors, "offsets": torch.tensor(offsets)}


def check_finite(values: Sequence[tuple[str, Tensor]], key: Key, *, source: object, remedy: str) -> None:
    """Refuse NaN and infinity in the states of one row.

    Raises:
        DataError: naming the row.
    """
    for name, tensor in values:
        if not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).any(-1).nonzero()[0])
            raise DataError(
                "captured states are not finite",
                got=f"NaN or Inf in {name} of {key[0]} row {key[1]}, token {bad}",
                source=source,
                remedy=remedy,
            )
