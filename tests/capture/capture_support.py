"""Packed rows by hand, and a cache of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.packing import pack
from vocabforge.corpus.prepared.dataset import TrainingSequence
from vocabforge.corpus.prepared.packing import PackedRows
from vocabforge.models.target.fingerprint import target_fingerprint
from vocabforge.models.target.hf import HFTarget
from vocabforge.models.target.load import dtype_name
from vocabforge.train.capture.cache import CaptureKey, plan_shards, rows_digest
from vocabforge.train.capture.online import CaptureSource, OnlineCapture
from vocabforge.train.capture.writer import CaptureJob, finish, finished_shards, prepare_folder, write_shards


def packed(lengths: list[int], length: int, *, seed: int = 0, vocab: int = 61) -> PackedRows:
    """Random documents of these lengths."""
    draw = np.random.default_rng(seed)
    sequences = [TrainingSequence(draw.integers(3, vocab, n).tolist(), [1] * n) for n in lengths]
    return pack(sequences, length)


def splits() -> dict[str, PackedRows]:
    return {
        "train": packed([7, 20, 9, 31, 3, 14, 32, 40, 5, 11], 32),
        "heldout": packed([8, 13, 30], 32, seed=1),
    }


def key_of(target: HFTarget, rows: dict[str, PackedRows], dtype: torch.dtype | None = None) -> CaptureKey:
    return CaptureKey(
        target=target_fingerprint(Path(str(target.source))),
        aux_layers=target.aux_layers,
        hidden_size=target.hidden_size,
        dtype=dtype_name(dtype or target.dtype),
        target_dtype=dtype_name(target.dtype),
        rows={split: rows_digest(one) for split, one in rows.items()},
    )


def make_job(
    output: Path, target: HFTarget, rows: dict[str, PackedRows], shard_bytes: int = 40_000
) -> CaptureJob:
    key = key_of(target, rows)
    return CaptureJob(output, key, rows, plan_shards(rows, key.token_bytes, shard_bytes))


def make_cache(
    job: CaptureJob, target: HFTarget, source: CaptureSource | None = None, *, overwrite: bool = False
) -> list[str]:
    """Write what is missing; the names of the shards that were made."""
    prepare_folder(job, overwrite=overwrite)
    done = finished_shards(job)
    todo = [shard for shard in job.shards if shard not in done]
    write_shards(job, todo, source or OnlineCapture(target, 0), target)
    assert finish(job, {"tokenizer_fingerprint": "t"}, {}, overwrite=overwrite)
    return [shard.file for shard in todo]
