"""Training from the disk cache: states of packed rows read from the shards that ``vocabforge capture`` wrote."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..core.artifact import MANIFEST, Artifact, open_artifact
from ..core.errors import ArtifactError, MismatchError
from ..core.files import form_errors, read_json, sha256_file
from ..core.records import read_record
from ..models.target_load import DTYPES
from .cache_format import FORMAT, INDEX, KIND, CaptureKey, Shard, check_finite
from .online import CapturedBatch, Key, RowBatch

_OPEN_SHARDS = 32


def open_cache(path: Path) -> Artifact:
    """Open a cache without reading its shards (only their sizes are compared).

    Raises:
        ArtifactError: no cache, an unfinished one, or a shard that is missing or truncated.
    """
    unfinished = path.with_name(f"{path.name}.partial")
    if not (path / MANIFEST).is_file() and unfinished.is_dir():
        raise ArtifactError(
            "the cache of captured states is not finished",
            got=f"{unfinished}, which an interrupted run or another part left",
            expected=path,
            remedy="run the same vocabforge capture command again: it goes on from there",
        )
    try:
        artifact = open_artifact(path, KIND, verify=False)
    except ArtifactError as error:
        if not isinstance(error.source, Path) or error.source.suffix != ".safetensors":
            raise
        raise _damaged(path, error.source, error.got, error.expected) from error
    if artifact.meta.get("format") != FORMAT:
        raise ArtifactError(
            "the cache was written in another form",
            got=f"form {artifact.meta.get('format')}",
            expected=f"form {FORMAT}",
            source=path,
            remedy=_again(path),
        )
    return artifact


def cache_key(artifact: Artifact) -> CaptureKey:
    """What decided the content of a cache."""
    with form_errors("the cache of captured states does not say what it holds", artifact.path):
        facts = dict(artifact.meta["key"])
        key = read_record(CaptureKey, facts)
        if key.dtype not in DTYPES or not isinstance(key.rows, dict):
            raise ValueError(f"{facts}")
        return key


def read_index(artifact: Artifact) -> list[Shard]:
    """The shards of a cache, in order."""
    index = read_json(artifact.file(INDEX), "index of the cache")
    with form_errors("the index of the cache cannot be read", artifact.path / INDEX):
        shards = [read_record(Shard, entry) for entry in index["shards"]]
        for shard in shards:
            artifact.file(shard.file)
        return shards


@dataclass(frozen=True)
class _Rows:
    """An open shard: its offsets and a handle that reads from the mapped file."""

    offsets: list[int]
    handle: Any


class CachedCapture:
    """States of packed rows from a cache; the target is not run.

    Each shard's hash is verified when it is first used; its rows are read from the mapped file. What is read is
    compared with the rows that are asked for (token ids and documents) and must be finite.

    Args:
        path: folder written by ``vocabforge capture``.

    Raises:
        ArtifactError: not a cache, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.artifact = open_cache(path)
        self.key = cache_key(self.artifact)
        self._shards: dict[str, list[Shard]] = {}
        for shard in read_index(self.artifact):
            self._shards.setdefault(shard.split, []).append(shard)
        self._open: OrderedDict[str, _Rows] = OrderedDict()
        self._verified: set[str] = set()

    def check(self, expected: CaptureKey) -> None:
        """Refuse a cache of another target, other layers or other rows; dtypes may differ.

        Raises:
            MismatchError: naming everything that differs.
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
        wrong = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if wrong:
            raise MismatchError(
                "the cache of captured states does not belong to this run",
                got="; ".join(f"{name} {_short(pair[0])}" for name, pair in wrong.items()),
                expected="; ".join(f"{name} {_short(pair[1])}" for name, pair in wrong.items()),
                source=self.path,
                remedy="give the recipe that the cache was made with, or make one for this recipe: "
                "vocabforge capture --config RECIPE --output DIR",
            )

    def __call__(self, rows: RowBatch, keys: Sequence[Key]) -> CapturedBatch:
        """The states of ``rows``, whose names ``keys`` are (split, row number).

        Raises:
            ArtifactError: a shard is damaged.
            MismatchError: a row is not in the cache, or is another one there.
            DataError: states that are not finite.
        """
        ids, document = rows.input_ids.cpu(), rows.document.cpu()
        count, length = ids.shape
        dtype, device = DTYPES[self.key.dtype], rows.input_ids.device
        pinned = device.type == "cuda"
        features = torch.zeros(count, length, self.key.feature_size, dtype=dtype, pin_memory=pinned)
        hidden = torch.zeros(count, length, self.key.hidden_size, dtype=dtype, pin_memory=pinned)
        for place, key in enumerate(keys):
            real = document[place] != 0  # (T,)
            found = self._read(key, ids[place][real], document[place][real])
            features[place, real], hidden[place, real] = found
        return CapturedBatch(
            **vars(rows),
            features=features.to(device, non_blocking=True),
            hidden=hidden.to(device, non_blocking=True),
        )

    def _read(self, key: Key, ids: Tensor, document: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, n_aux * H) and hidden states (n, H) of one row's real tokens."""
        shard = self._find(key)
        rows = self._opened(shard)
        place = key[1] - shard.first
        one = slice(rows.offsets[place], rows.offsets[place + 1])
        stored = {name: rows.handle.get_slice(name)[one] for name in ("token_ids", "document")}
        if not (torch.equal(stored["token_ids"].long(), ids.long())):
            raise self._other_row(key, "token ids")
        if not torch.equal(stored["document"].long(), document.long()):
            raise self._other_row(key, "documents")
        features, hidden = (rows.handle.get_slice(name)[one] for name in ("features", "hidden"))
        check_finite(
            [("features", features), ("hidden states", hidden)],
            key,
            source=self.path / shard.file,
            remedy=_again(self.path),
        )
        return features, hidden

    def _find(self, key: Key) -> Shard:
        shards = self._shards.get(key[0], [])
        at = bisect.bisect_right([shard.first for shard in shards], key[1]) - 1
        if at < 0 or key[1] >= shards[at].first + shards[at].rows:
            raise self._other_row(key, "no such row")
        return shards[at]

    def _opened(self, shard: Shard) -> _Rows:
        """The shard, verified at its first use."""
        if shard.file in self._open:
            self._open.move_to_end(shard.file)
            return self._open[shard.file]
        file = self.artifact.file(shard.file)
        try:
            if shard.file not in self._verified:
                expected = self.artifact.manifest["files"][shard.file]["sha256"]
                found = sha256_file(file)
                if found != expected:
                    raise _damaged(self.path, file, f"sha256 {found[:16]}…", f"sha256 {expected[:16]}…")
                self._verified.add(shard.file)
            handle = safe_open(str(file), framework="pt")
            rows = _Rows(handle.get_tensor("offsets").tolist(), handle)
        except (SafetensorError, OSError) as error:
            raise _damaged(self.path, file, error, "a whole safetensors file") from error
        self._open[shard.file] = rows
        if len(self._open) > _OPEN_SHARDS:
            self._open.popitem(last=False)
        return rows

    def _other_row(self, key: Key, what: str) -> MismatchError:
        return MismatchError(
            "a row of the training data is not the one in the cache of captured states",
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
    return f"run vocabforge capture --config RECIPE --output {path} --overwrite (sound shards are kept)"


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text
