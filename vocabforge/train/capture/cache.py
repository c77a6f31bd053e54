"""Disk cache of captured states: reads packed rows from the shards written by ``vocabforge capture``."""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic.dataclasses import dataclass as record
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...core.artifact import MANIFEST, Artifact, open_artifact
from ...core.config import RECORD
from ...core.errors import ArtifactError, DataError, MismatchError
from ...core.files import form_errors, read_json, sha256_file
from ...core.records import Count, read_record
from ...corpus.prepared.packing import PackedRows
from ...models.target.load import DTYPES
from ...models.target.logits import LogitFacts
from .online import CapturedBatch, Key, RowBatch

KIND = "capture"
INDEX = "index.json"
FORMAT = 1
SPLITS = ("train", "heldout")
_CHUNK_ROWS = 1024


@record(frozen=True, config=RECORD)
class CaptureKey:
    """Everything that determines the content of a cache.

    Attributes:
        target: fingerprint of the target.
        aux_layers: decoder layers (0-based outputs) in ``features``, in this order.
        dtype: dtype of the stored states.
        target_dtype: dtype that the target computed in.
        rows: split -> :func:`rows_digest`.
    """

    target: str
    aux_layers: tuple[Count, ...]
    hidden_size: Count
    dtype: str
    target_dtype: str
    rows: dict[str, str]

    @property
    def feature_size(self) -> int:
        """Size of the features of a token, n_aux * H."""
        return len(self.aux_layers) * self.hidden_size

    @property
    def token_bytes(self) -> int:
        """Bytes stored per token."""
        size = torch.empty((), dtype=DTYPES[self.dtype]).element_size()
        return (self.feature_size + self.hidden_size) * size + 16

    def facts(self) -> dict[str, Any]:
        """Return the key as JSON values."""
        return json.loads(json.dumps(asdict(self)))


@record(frozen=True, config=RECORD)
class CaptureShard:
    """File with rows ``first`` to ``first + rows`` of a split, ``tokens`` tokens in total."""

    file: str
    split: str
    first: Count
    rows: Count
    tokens: Count


def rows_digest(rows: PackedRows) -> str:
    """Hash the token ids and documents of all rows, the only inputs of the target's states."""
    digest = hashlib.sha256(repr(tuple(rows.input_ids.shape)).encode())
    for first in range(0, len(rows.input_ids), _CHUNK_ROWS):
        for array in (rows.input_ids, rows.document):
            part = np.ascontiguousarray(array[first : first + _CHUNK_ROWS], dtype=np.int32)
            digest.update(part.tobytes())
    return digest.hexdigest()


def row_lengths(rows: PackedRows) -> npt.NDArray[np.int64]:
    """Return the number of tokens in each row (N,), excluding padding."""
    chunks = [
        (np.asarray(rows.document[first : first + _CHUNK_ROWS]) != 0).sum(1)
        for first in range(0, len(rows.document), _CHUNK_ROWS)
    ]
    return np.concatenate(chunks).astype(np.int64)


def plan_shards(rows: Mapping[str, PackedRows], token_bytes: int, shard_bytes: int) -> list[CaptureShard]:
    """Split consecutive rows into shards of at most ``shard_bytes`` (a longer row gets its own shard)."""
    shards: list[CaptureShard] = []
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


def _shard(number: int, split: str, first: int, stop: int, tokens: int) -> CaptureShard:
    return CaptureShard(f"shard-{number:05d}.safetensors", split, first, stop - first, tokens)


def shard_tensors(batches: Iterator[CapturedBatch], dtype: torch.dtype) -> dict[str, Tensor]:
    """Build the tensors of a shard from its rows, without padding."""
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
    """Reject NaN and infinity in the states of one row.

    Raises:
        DataError: names the row.
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


def check_same(
    message: str, pairs: Mapping[str, tuple[object, object]], *, source: object, remedy: str
) -> None:
    """Check that both values of every pair are equal.

    Raises:
        MismatchError: lists all differences.
    """
    wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if wrong:
        got, expected = (
            "; ".join(f"{name} {_short(wrong[name][side])}" for name in wrong) for side in (0, 1)
        )
        raise MismatchError(message, got=got, expected=expected, source=source, remedy=remedy)


_OPEN_SHARDS = 32


def open_cache(path: Path) -> Artifact:
    """Open a cache without reading its shards (only their sizes are compared).

    Raises:
        ArtifactError: the cache is missing or unfinished, or a shard is missing or truncated.
    """
    unfinished = path.with_name(f"{path.name}.partial")
    if not (path / MANIFEST).is_file() and unfinished.is_dir():
        raise ArtifactError(
            "the cache of captured states is not finished",
            got=f"{unfinished}, left by an interrupted run or another part",
            expected=path,
            remedy="run the same vocabforge capture command again: it resumes there",
        )
    try:
        artifact = open_artifact(path, KIND, verify=False)
    except ArtifactError as error:
        if not isinstance(error.source, Path) or error.source.suffix != ".safetensors":
            raise
        raise _damaged(path, error.source, error.got, error.expected) from error
    if artifact.meta.get("format") != FORMAT:
        raise ArtifactError(
            "the cache has an unsupported format",
            got=f"format {artifact.meta.get('format')}",
            expected=f"format {FORMAT}",
            source=path,
            remedy=_again(path),
        )
    return artifact


def cache_key(artifact: Artifact) -> CaptureKey:
    """Return the key of a cache."""
    with form_errors("the manifest of the captured states is incomplete", artifact.path):
        facts = dict(artifact.meta["key"])
        key = read_record(CaptureKey, facts)
        if key.dtype not in DTYPES:
            raise ValueError(f"{facts}")
        return key


def read_index(artifact: Artifact) -> list[CaptureShard]:
    """Return the shards of a cache, in order."""
    index = read_json(artifact.file(INDEX), "index of the cache")
    with form_errors("the index of the cache cannot be read", artifact.path / INDEX):
        shards = [read_record(CaptureShard, entry) for entry in index["shards"]]
        for shard in shards:
            artifact.file(shard.file)
        return shards


class CachedCapture:
    """Capture source that reads the states of packed rows from a cache; the target is not run.

    A shard's hash is verified on first use. States must belong to the requested rows and be finite.

    Raises:
        ArtifactError: the folder is not a cache, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.artifact = open_cache(path)
        self.key = cache_key(self.artifact)
        self._shards: dict[str, list[CaptureShard]] = {}
        for shard in read_index(self.artifact):
            self._shards.setdefault(shard.split, []).append(shard)
        self._opened = functools.lru_cache(_OPEN_SHARDS)(self._open)
        self._verified: set[str] = set()

    def check(self, expected: CaptureKey) -> None:
        """Check that the cache was made with the same target, layers and rows; dtypes may differ.

        Raises:
            MismatchError: lists all differences.
        """
        pairs = {
            "target fingerprint": (self.key.target, expected.target),
            "auxiliary layers": (list(self.key.aux_layers), list(expected.aux_layers)),
            "hidden size": (self.key.hidden_size, expected.hidden_size),
            **{
                f"digest of the {split} rows": (self.key.rows.get(split), digest)
                for split, digest in expected.rows.items()
            },
        }
        check_same(
            "the cache of captured states does not belong to this run",
            pairs,
            source=self.path,
            remedy="pass the recipe that the cache was made with, or make a cache for this recipe: "
            "vocabforge capture --config RECIPE --output DIR",
        )

    def __call__(self, rows: RowBatch, keys: Sequence[Key]) -> CapturedBatch:
        """Read the states of ``rows``.

        Args:
            keys: (split, row number) of each row.

        Raises:
            ArtifactError: a shard is damaged.
            MismatchError: a row is not in the cache, or differs from the cached row.
            DataError: states are not finite.
        """
        ids, document = rows.input_ids.cpu(), rows.document.cpu()
        count, length = ids.shape
        dtype, device = DTYPES[self.key.dtype], rows.input_ids.device
        pinned = device.type == "cuda"
        features = torch.zeros(count, length, self.key.feature_size, dtype=dtype, pin_memory=pinned)
        hidden = torch.zeros(count, length, self.key.hidden_size, dtype=dtype, pin_memory=pinned)
        facts = LogitFacts(
            torch.zeros(count, length, dtype=torch.int64, pin_memory=pinned),
            torch.zeros(count, length, pin_memory=pinned),
        )
        known = True
        for place, key in enumerate(keys):
            real = document[place] != 0  # (T,)
            states = self._read(key, ids[place][real], document[place][real])
            features[place, real], hidden[place, real], kept = states
            if kept is None:
                known = False
            else:
                facts.best[place, real], facts.log_sum[place, real] = kept.best.long(), kept.log_sum
        return CapturedBatch(
            **vars(rows),
            features=features.to(device, non_blocking=True),
            hidden=hidden.to(device, non_blocking=True),
            facts=facts.map(lambda each: each.to(device, non_blocking=True)) if known else None,
        )

    def _read(self, key: Key, ids: Tensor, document: Tensor) -> tuple[Tensor, Tensor, LogitFacts | None]:
        """Read a row's tokens.

        Returns:
            Features (n, n_aux * H), hidden states (n, H) and facts (n,), None for shards of older versions.
        """
        shard = self._find(key)
        offsets, handle = self._opened(shard)
        place = key[1] - shard.first
        part = slice(offsets[place], offsets[place + 1])

        def read(name: str) -> Tensor:
            tensor: Tensor = handle.get_slice(name)[part]
            return tensor

        for name, what, expected in (("token_ids", "token ids", ids), ("document", "documents", document)):
            if not torch.equal(read(name).long(), expected.long()):
                raise self._other_row(key, what)
        features, hidden = read("features"), read("hidden")
        check_finite(
            [("features", features), ("hidden states", hidden)],
            key,
            source=self.path / shard.file,
            remedy=_again(self.path),
        )
        facts = LogitFacts(read("best"), read("log_sum")) if "best" in set(handle.keys()) else None
        return features, hidden, facts

    def _find(self, key: Key) -> CaptureShard:
        shards = self._shards.get(key[0], [])
        at = bisect.bisect_right([shard.first for shard in shards], key[1]) - 1
        if at < 0 or key[1] >= shards[at].first + shards[at].rows:
            raise self._other_row(key, "no such row")
        return shards[at]

    def _open(self, shard: CaptureShard) -> tuple[list[int], Any]:
        """Return row offsets and a handle that reads from the mapped file, verified on first use."""
        file = self.artifact.file(shard.file)
        try:
            if shard.file not in self._verified:
                expected, actual = self.artifact.manifest["files"][shard.file]["sha256"], sha256_file(file)
                if actual != expected:
                    raise _damaged(self.path, file, f"sha256 {actual[:16]}…", f"sha256 {expected[:16]}…")
                self._verified.add(shard.file)
            handle = safe_open(str(file), framework="pt")
            return handle.get_tensor("offsets").tolist(), handle
        except (SafetensorError, OSError) as error:
            raise _damaged(self.path, file, error, "a complete safetensors file") from error

    def _other_row(self, key: Key, what: str) -> MismatchError:
        return MismatchError(
            "a row of the training data differs from the cache of captured states",
            got=f"{key[0]} row {key[1]}: {what}" + ("" if what.startswith("no") else " differ"),
            source=self.path,
            remedy="the data changed since the cache was made: " + _again(self.path),
        )


def _damaged(path: Path, file: Path, got: object, expected: object) -> ArtifactError:
    return ArtifactError(
        "a shard of the captured states is damaged",
        got=got,
        expected=expected,
        source=file,
        remedy=_again(path),
    )


def _again(path: Path) -> str:
    return f"run vocabforge capture --config RECIPE --output {path} --overwrite"


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
