"""Write the target's hidden states for a recipe's data to a cache."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...core.cluster import Cluster
from ...core.console import say
from ...core.distributed import rank, world_size
from ...core.errors import DataError, UsageError
from ...core.files import sha256_file
from ...core.hub import hub_name, model_name
from ...core.progress import ProgressBar
from ...corpus.prepared.packing import PackedRows
from ...corpus.tokenizer.tokenizer import TextTokenizer, load_tokenizer
from ...models.device import choose_device
from ...models.target.fingerprint import same_target, target_fingerprint
from ...models.target.head import TargetHead
from ...models.target.hf import HFTarget, check_row_length, check_tokenizer_fits, default_aux_layers
from ...models.target.load import dtype_name, dtype_of, read_target_config
from ...models.target.text_config import text_config
from ..config import TrainConfig
from ..data import prepare
from ..machine import device_of, keep_freed_memory, set_threads
from ..run import briefly_native
from ..setup import sizes_of
from .build import load_capture_target
from .cache import SPLITS, CaptureKey, CaptureShard, plan_shards, rows_digest
from .config import CaptureRequest
from .online import OnlineCapture
from .server import ServerCapture
from .writer import (
    PLAN,
    CaptureJob,
    check_disk,
    finish,
    finished_shards,
    free_bytes,
    gigabytes,
    prepare_folder,
    shard_rows,
    write_shard,
    write_shards,
)

_PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")


def plan_cache(settings: TrainConfig, output: Path, options: CaptureRequest) -> dict[str, Any]:
    """Return what would be captured and its size on disk; only the prepared data may be written."""
    job, _ = _job(settings, output, options, device_of(settings))
    total, done, free = job.bytes(), job.bytes(finished_shards(job)), free_bytes(output)
    return {
        "output": str(output),
        "target": hub_name(settings.target),
        "key": job.key.facts(),
        "rows": {split: len(packed.input_ids) for split, packed in job.rows.items()},
        "tokens": sum(shard.tokens for shard in job.shards),
        "shards": len(job.shards),
        "bytes": total,
        "bytes_done": done,
        "bytes_free": free,
        "fits": total - done <= free,
    }


def run_capture(
    settings: TrainConfig,
    output: Path,
    options: CaptureRequest,
    confirm: Callable[[str], None],
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Capture this process's shards; finish the cache if all shards exist.

    Args:
        confirm: called with the size to write, unless ``options.yes``; raises if it may not be written.
    """
    together = settings.capture.tp_plan is not None and _source_name(settings) == "online"
    part = _part(options.part, together)
    if options.ray is not None:
        _check_ray(settings, options)
    with ExitStack() as stack:
        cluster = None if options.ray is None else stack.enter_context(Cluster(options.ray))
        if cluster is None:
            device = device_of(settings)
        else:
            device = choose_device(settings.run.device, elsewhere=cluster.has_gpus)
        if device.type == "cpu":
            set_threads(settings)  # as in training: the thread count affects the last bits
        leads = not together or rank() == 0
        job, tokenizer = _job(settings, output, options, device)
        if leads:
            prepare_folder(job, overwrite=overwrite)
            done = finished_shards(job)
            todo = [shard for shard in job.shards[part[0] - 1 :: part[1]] if shard not in done]
            _announce(job, todo, None if options.yes else confirm)
        else:
            todo = []
        if cluster is not None:
            _on_cluster(cluster, settings, job, todo, tokenizer, device)
        elif todo or together:
            target = _load(settings, job, tokenizer, served=_source_name(settings) == "server")
            if together:
                todo = _agreed(todo)
            if isinstance(target, TargetHead):
                _from_server(settings, job, todo, target, f"{output.absolute()} {part}")
            else:
                write_shards(job, todo, OnlineCapture(target, 0), target, writes=leads)
    meta = {
        "target_name": model_name(settings.target),
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "source": _source_name(settings),
    }
    config = settings.model_dump(mode="json")
    whole = leads and finish(job, meta, config, overwrite=overwrite)
    if whole:
        say(f"The captured states are in {output}: train with capture.cache={output}")
    elif leads:
        say(
            f"Part {part[0]} of {part[1]} is done; {len(finished_shards(job)):,} of {len(job.shards):,} shards "
            "exist. The last part to finish merges them."
        )
    return {"output": str(output), "finished": whole, "shards": len(todo), "bytes": job.bytes(todo)}


def _part(text: str | None, together: bool) -> tuple[int, int]:
    """Return (i, n) from --part, or this process's rank among the launched processes."""
    if together:
        if text is not None:
            raise UsageError(
                "--part and capture.tp_plan exclude each other: all processes share every shard",
                got=f"--part {text}",
                source="capture.tp_plan",
                remedy="leave --part out",
            )
        return 1, 1
    if text is None:
        return rank() + 1, world_size()
    match = _PART.fullmatch(text)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError("cannot read --part", got=text, expected="I/N with I from 1 to N, such as 2/4")
    return int(match[1]), int(match[2])


def _job(
    settings: TrainConfig, output: Path, options: CaptureRequest, device: torch.device
) -> tuple[CaptureJob, TextTokenizer]:
    """Return the rows, cache key and shards, and the tokenizer, without loading the target's weights."""
    raw = read_target_config(settings.target)
    tokenizer = load_tokenizer(settings.tokenizer or settings.target)
    text = text_config(raw)
    target_dtype = dtype_name(dtype_of(settings.target, settings.capture.dtype, device))
    with briefly_native(settings) as native:
        layers = tuple(sizes_of(native.drafter, raw, None).aux_layers or ())
    data = prepare(settings.data, tokenizer, settings.output / "data")
    rows = {split: getattr(data, split) for split in SPLITS}
    check_row_length(raw, data.train.input_ids.shape[1], source=settings.target / "config.json")
    key = CaptureKey(
        target=target_fingerprint(settings.target),
        aux_layers=layers or default_aux_layers(int(text.num_hidden_layers)),
        hidden_size=int(text.hidden_size),
        dtype=target_dtype if options.store_dtype == "target" else options.store_dtype,
        target_dtype=target_dtype,
        rows={split: rows_digest(packed) for split, packed in rows.items()},
    )
    shards = plan_shards(rows, key.token_bytes, options.shard_mb * 10**6)
    return CaptureJob(output, key, rows, shards), tokenizer


def _announce(job: CaptureJob, todo: list[CaptureShard], confirm: Callable[[str], None] | None) -> None:
    """Show the disk use and ask for confirmation; raise if it does not fit or is declined."""
    if not todo:
        return
    done = job.bytes(finished_shards(job))
    needed = job.bytes() - done
    tokens = sum(shard.tokens for shard in job.shards)
    say(
        f"{tokens:,} tokens of {job.key.token_bytes:,} bytes ({job.key.dtype}): {gigabytes(job.bytes())} in "
        f"{len(job.shards):,} shards; {gigabytes(done)} are there, {gigabytes(free_bytes(job.output))} are free "
        f"at {job.output}"
    )
    check_disk(needed, job.output)
    if confirm is not None:
        confirm(gigabytes(needed))


def _source_name(settings: TrainConfig) -> str:
    return "online" if settings.capture.server is None else "server"


def _load(
    settings: TrainConfig, job: CaptureJob, tokenizer: TextTokenizer, *, served: bool
) -> HFTarget | TargetHead:
    capture = settings.capture.model_copy(update={"cache": None, "dtype": job.key.target_dtype})
    target = load_capture_target(
        settings.target, capture, aux_layers=job.key.aux_layers, device=device_of(settings), layers=not served
    )
    check_tokenizer_fits(
        tokenizer.vocab_size, target.vocab_size, tokenizer=tokenizer.source, target=settings.target
    )
    return target


def _from_server(
    settings: TrainConfig, job: CaptureJob, todo: list[CaptureShard], target: TargetHead, owner: str
) -> None:
    assert settings.capture.server is not None
    source = ServerCapture(settings.capture.server, target, settings.target, job.key.target, job.rows, owner)
    source.expect((shard.split, shard.first + row) for shard in todo for row in range(shard.rows))
    try:
        write_shards(job, todo, source, target)
    finally:
        source.close()


def _check_ray(settings: TrainConfig, options: CaptureRequest) -> None:
    others = {
        "--part": options.part,
        "capture.server": settings.capture.server,
        "capture.tp_plan": settings.capture.tp_plan,
        "capture.device_map": settings.capture.device_map,
        "a launcher of several processes": world_size() > 1 or None,
    }
    if given := [name for name, value in others.items() if value is not None]:
        raise UsageError(
            f"--ray and {given[0]} exclude each other",
            got=f"--ray {options.ray}",
            expected="each worker of the cluster loads the target on one GPU, or on its CPU threads",
            remedy="leave one of them out",
        )


def _on_cluster(
    cluster: Cluster,
    settings: TrainConfig,
    job: CaptureJob,
    todo: list[CaptureShard],
    tokenizer: TextTokenizer,
    device: torch.device,
) -> None:
    """Capture shards on the workers of a cluster, which write them to the shared folder of the output."""
    there = replace(job, output=job.output.absolute(), rows={})
    plan, threads = sha256_file(job.partial / PLAN), torch.get_num_threads()
    on_cpu = device.type == "cpu"
    cluster.use(
        partial(_load_in_worker, settings, there, tokenizer, plan, threads),
        cpus=threads if on_cpu else 1,
        gpus=0 if on_cpu else 1,
    )
    with ProgressBar("capture", sum(shard.tokens for shard in todo), "tokens") as bar:
        given = ((shard, shard_rows(job, shard)) for shard in todo)
        for shard, _ in zip(todo, cluster.in_order(_capture_shard, given)):
            bar.update(shard.tokens)


_Loaded = tuple[CaptureJob, HFTarget]


def _load_in_worker(
    settings: TrainConfig, job: CaptureJob, tokenizer: TextTokenizer, plan: str, threads: int
) -> _Loaded:
    try:
        seen = sha256_file(job.partial / PLAN)
    except OSError:
        seen = None
    if seen != plan:
        raise DataError(
            "a machine of the cluster cannot find the output folder",
            got="no folder, or no plan in it" if seen is None else "a folder with another plan",
            source=job.partial,
            remedy="choose an --output in a folder that all machines share under the same path",
        )
    same_target(settings.target, job.key.target)
    torch.set_num_threads(threads)
    keep_freed_memory()
    target = _load(settings, job, tokenizer, served=False)
    assert isinstance(target, HFTarget)
    return job, target


def _capture_shard(loaded: _Loaded, shard: CaptureShard, rows: PackedRows) -> None:
    job, target = loaded
    write_shard(job, shard, rows, OnlineCapture(target, 0), target, lambda tokens: None)


def _agreed(todo: list[CaptureShard]) -> list[CaptureShard]:
    """Broadcast rank 0's list: under tensor parallelism all processes compute the same shards."""
    import torch.distributed as dist

    box = [todo]
    dist.broadcast_object_list(box, src=0)
    return box[0]
