"""Writer of the disk cache, shard by shard.

An interrupted run, or another process, continues with the missing shards.

Shards are written one at a time to ``OUTPUT.partial`` and renamed when complete. When all are finished, they
are hard-linked into the artefact.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from ...core.artifact import MANIFEST, check_output, write_artifact
from ...core.errors import UsageError
from ...core.files import atomic_write, atomic_write_json, disk_errors, read_json
from ...core.journal import check_identity
from ...core.lock import only_writer
from ...core.progress import ProgressBar
from ...corpus.prepared.packing import PackedRows
from ...models.target.documents import PASS_TOKENS
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget
from ...models.target.load import DTYPES
from ...models.target.logits import LogitFacts
from .cache import FORMAT, INDEX, KIND, CaptureKey, CaptureShard, check_finite, row_lengths, shard_tensors
from .online import CapturedBatch, CaptureSource, to_tensors

_SPARE = 1 << 28


def free_bytes(output: Path) -> int:
    """Return the free space on the disk of ``output``."""
    where = output.absolute()
    return shutil.disk_usage(next(folder for folder in (where, *where.parents) if folder.exists())).free


def check_disk(needed: int, output: Path) -> None:
    """Check that a cache fits on the disk with 256 MiB to spare.

    Raises:
        UsageError: states the needed and the free space.
    """
    if needed + _SPARE > free_bytes(output):
        raise UsageError(
            "the captured states do not fit on the disk",
            got=f"{gigabytes(free_bytes(output))} free",
            expected=f"{gigabytes(needed)} more for this cache",
            source=output,
            remedy="use --store-dtype bfloat16, less data, or an --output on another disk; "
            "or train online (without capture.cache)",
        )


def gigabytes(size: float) -> str:
    """Format a size as ``1.5 GB``, or in MB if smaller."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


PLAN = "plan.json"


@dataclass(frozen=True)
class CaptureJob:
    """Cache to be written.

    Attributes:
        rows: split -> packed rows.
    """

    output: Path
    key: CaptureKey
    rows: Mapping[str, PackedRows]
    shards: Sequence[CaptureShard]

    @property
    def partial(self) -> Path:
        """Folder of the shards until all are finished."""
        return self.output.with_name(f"{self.output.name}.partial")

    def bytes(self, shards: Sequence[CaptureShard] | None = None) -> int:
        """Return the size on disk without file headers."""
        return sum(s.tokens * self.key.token_bytes for s in (self.shards if shards is None else shards))


def prepare_folder(job: CaptureJob, *, overwrite: bool) -> None:
    """Create ``OUTPUT.partial``, or check that an existing one has the same plan.

    Raises:
        UsageError: the output exists, or the folder belongs to another plan.
    """
    check_output(job.output, overwrite=overwrite)
    plan = {"format": FORMAT, "key": job.key.facts(), "shards": [asdict(shard) for shard in job.shards]}
    with disk_errors(job.partial):
        job.partial.mkdir(parents=True, exist_ok=True)
        if not (job.partial / PLAN).is_file():
            atomic_write_json(job.partial / PLAN, plan)
    former = read_json(job.partial / PLAN, "plan of the unfinished capture")
    check_identity(former, plan, source=job.partial, remedy="remove that folder, or choose another --output")


def finished_shards(job: CaptureJob) -> list[CaptureShard]:
    """Return the shards that any process has finished in ``OUTPUT.partial``."""
    return [shard for shard in job.shards if (job.partial / shard.file).is_file()]


def write_shards(
    job: CaptureJob,
    todo: Sequence[CaptureShard],
    source: CaptureSource,
    target: HFTarget | TargetHead,
    *,
    writes: bool = True,
) -> None:
    """Capture shards one after the other.

    Args:
        target: provides the LM head, with which logit facts are computed from the stored states.
        writes: False in processes that only take part in tensor parallelism.

    Raises:
        DataError: states are not finite; names the row.
    """
    total = sum(shard.tokens for shard in todo)
    with ProgressBar("capture", total, "tokens") as bar:
        written = 0
        for shard in todo:
            bar.update(0, note=f"{gigabytes(written)} of {gigabytes(job.bytes(todo))} written")
            write_shard(job, shard, shard_rows(job, shard), source, target, bar.update, writes=writes)
            written += job.bytes([shard])
        bar.update(0, note=f"{gigabytes(written)} written")


def shard_rows(job: CaptureJob, shard: CaptureShard) -> PackedRows:
    """Return the rows of a shard."""
    rows, place = job.rows[shard.split], slice(shard.first, shard.first + shard.rows)
    arrays = (rows.input_ids, rows.loss_mask, rows.document, rows.position)
    ids, mask, document, position = (np.array(array[place]) for array in arrays)
    return PackedRows(ids, mask, document, position, shard.tokens)


def write_shard(
    job: CaptureJob,
    shard: CaptureShard,
    rows: PackedRows,
    source: CaptureSource,
    target: HFTarget | TargetHead,
    progress: Callable[[int], None],
    *,
    writes: bool = True,
) -> None:
    """Capture the ``rows`` of one shard; see :func:`write_shards`."""
    batches = _batches(shard, rows, source, target.device, progress)
    tensors = shard_tensors(batches, DTYPES[job.key.dtype])
    _check_shard(job, shard, tensors)
    if writes:
        facts = LogitFacts.of(tensors["hidden"], target.head_weight, target.transform)
        tensors |= {"best": facts.best.to("cpu", torch.int32), "log_sum": facts.log_sum.cpu()}
        # Without metadata, whose order safetensors randomises: equal tensors give equal files.
        atomic_write(job.partial / shard.file, save({k: t.contiguous() for k, t in tensors.items()}))


def _batches(
    shard: CaptureShard,
    rows: PackedRows,
    source: CaptureSource,
    device: torch.device,
    progress: Callable[[int], None],
) -> Iterator[CapturedBatch]:
    together = max(1, PASS_TOKENS // rows.input_ids.shape[1])
    for first in range(0, len(rows), together):
        numbers = list(range(first, min(first + together, len(rows))))
        keys = [(shard.split, shard.first + number) for number in numbers]
        yield source(to_tensors(rows, numbers, device), keys)
        progress(int((rows.document[numbers] != 0).sum()))


def _check_shard(job: CaptureJob, shard: CaptureShard, tensors: Mapping[str, torch.Tensor]) -> None:
    offsets = tensors["offsets"].tolist()
    for row, (first, stop) in enumerate(itertools.pairwise(offsets), shard.first):
        check_finite(
            [("features", tensors["features"][first:stop]), ("hidden states", tensors["hidden"][first:stop])],
            (shard.split, row),
            source=job.output,
            remedy="try capture.dtype=float32 or --store-dtype bfloat16 (float16 overflows at 65,504), or "
            "remove this row from the data",
        )


def finish(job: CaptureJob, meta: Mapping[str, Any], config: Mapping[str, Any], *, overwrite: bool) -> bool:
    """Create the artefact if all shards exist, in one of several processes; return whether it is complete."""
    with only_writer(job.partial, wait=True):
        if not job.partial.is_dir():  # another process was faster
            return (job.output / MANIFEST).is_file()
        if len(finished_shards(job)) < len(job.shards):
            return False
        totals = {
            split: {"rows": len(packed), "tokens": int(row_lengths(packed).sum())}
            for split, packed in job.rows.items()
        }
        length = next(iter(job.rows.values())).input_ids.shape[1]
        facts = {
            "format": FORMAT,
            "key": job.key.facts(),
            "target_fingerprint": job.key.target,
            "sequence_length": int(length),
            "rows": totals,
            "tokens": sum(entry["tokens"] for entry in totals.values()),
            "shards": len(job.shards),
            **meta,
        }
        with write_artifact(job.output, KIND, facts, config=config, overwrite=overwrite) as folder:
            atomic_write_json(folder / INDEX, {"shards": [asdict(shard) for shard in job.shards]})
            for shard in job.shards:
                try:
                    os.link(job.partial / shard.file, folder / shard.file)
                except OSError:  # a file system without hard links
                    shutil.move(job.partial / shard.file, folder / shard.file)
        shutil.rmtree(job.partial, ignore_errors=True)
    return True
