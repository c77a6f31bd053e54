"""Partial results of a counting run: one small file a unit, written atomically, reused only when proved equal."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ...core.console import say
from ...core.files import atomic_write, disk_errors
from ...corpus.sources.shards import Shard
from .table import Tally

_FORMAT = 1

Unit = tuple[Shard, ...]
"""Consecutive shards of one domain that are counted together: what is lost at most when a run is killed."""


@dataclass(frozen=True)
class UnitResult:
    """What counting one unit gave.

    Attributes:
        tally: its counts, documents and bytes.
        digests: of the stored bytes that were read, one a shard.
        problems: how many lines or rows were skipped, by reason.
    """

    tally: Tally
    digests: tuple[str, ...]
    problems: Mapping[str, int]


class PartialResults:
    """The folder of a run's partial results.

    A result is found again by a key over everything that decides it (shards, options, tokenizer) and believed only
    if its own checksum holds and its sources still have the digests that were counted.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], vocab_size: int) -> None:
        self.folder, self.vocab_size = folder, vocab_size
        self._settings = json.dumps({"format": _FORMAT, **settings}, sort_keys=True)

    def path(self, unit: Unit) -> Path:
        """File of a unit's result."""
        # The domain is a label: the same bytes give the same counts under every name.
        places = json.dumps([{**asdict(shard), "domain": ""} for shard in unit], sort_keys=True)
        key = hashlib.sha256((self._settings + places).encode()).hexdigest()
        return self.folder / f"shard-{key[:24]}.safetensors"

    def load(self, unit: Unit, digests: Sequence[str]) -> UnitResult | None:
        """The result of an earlier run, None when there is none for exactly these bytes."""
        path = self.path(unit)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                meta = json.loads(file.metadata()["result"])
                ids, counts = file.get_tensor("ids"), file.get_tensor("counts")
            if meta.pop("checksum") != _checksum(meta, ids, counts) or (
                len(ids) and ids[-1] >= self.vocab_size
            ):
                raise ValueError("its checksum does not hold")
            for shard, then, now in zip(unit, meta["digests"], digests, strict=True):
                if then != now:
                    say(f"{shard.source} changed since it was counted: counting it again")
                    return None
            dense = np.zeros(self.vocab_size, dtype=np.int64)
            dense[ids] = counts
            tally = Tally(dense, meta["documents"], meta["bytes"])
            return UnitResult(tally, tuple(digests), meta["problems"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            say(f"The partial result {path.name} is damaged ({error}): counting {unit[0].source} again")
            return None

    def save(self, unit: Unit, result: UnitResult) -> None:
        """Keep the result of a unit."""
        ids = np.flatnonzero(result.tally.counts).astype(np.int64)
        counts = result.tally.counts[ids]
        meta = {
            "sources": [[shard.source, shard.start, shard.stop] for shard in unit],
            "documents": result.tally.documents,
            "bytes": result.tally.bytes,
            "digests": result.digests,
            "problems": dict(result.problems),
        }
        result_json = json.dumps({**meta, "checksum": _checksum(meta, ids, counts)})
        data = save({"ids": ids, "counts": counts}, metadata={"result": result_json})
        atomic_write(self.path(unit), data)

    def remove(self) -> None:
        """Forget all results (the artefact that they went into is written); what else lies there stays."""
        for pattern in ("shard-*.safetensors", ".shard-*.safetensors.tmp-*"):
            for file in self.folder.glob(pattern):
                with contextlib.suppress(OSError):
                    file.unlink()
        self.kept()

    def kept(self) -> bool:
        """Whether there is a result to go on from; an empty folder is removed."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()
        return self.folder.is_dir()

    def prepare(self) -> None:
        """Make the folder."""
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)


def _checksum(meta: Mapping[str, Any], ids: np.ndarray, counts: np.ndarray) -> str:
    """Over all that the file says, so that no flipped bit of it is believed."""
    facts = json.dumps(meta, sort_keys=True).encode()
    return hashlib.sha256(facts + ids.tobytes() + counts.tobytes()).hexdigest()
