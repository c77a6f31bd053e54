"""Resumable steps of a comparison of draft vocabularies, and what the steps make.

A step stores its result in a JSON file with everything that decides it, the key. A later run takes the result over if
the key is the same and the artefacts that the result names are still there.
"""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.artifact import MANIFEST, open_artifact
from ..core.console import say
from ..core.errors import ArtifactError, VocabForgeError
from ..core.files import atomic_write_json, read_json
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..export.registry import load_drafter
from ..models.heads.io import drafter_digest
from ..models.target.fingerprint import target_fingerprint
from ..models.target.head_rows import check_head_fits, digest_start, open_head
from ..train.config import OptimConfig, TrainConfig
from ..train.heads.router import BestTokens
from ..train.heads.router_config import RouterConfig, RouterRunConfig, RouterTrainConfig
from ..train.heads.router_setup import build_router_trainer
from ..train.loop import train
from ..train.setup import build_trainer, identity_of
from ..train.trainer import Trainer
from ..vocab.clusters.clusters import make_clusters, save_clusters
from ..vocab.clusters.kmeans import KMeansOptions
from ..vocab.clusters.rows import unit_rows
from ..vocab.counts.table import FrequencyTable
from ..vocab.subset.forced import ForceOptions, forced_ids
from ..vocab.subset.select import SpecialTokens
from ..vocab.subset.subset import make_subset, save_subset

Counts = npt.NDArray[np.int64]


def run_step(
    name: str,
    place: Path,
    key: Mapping[str, Any],
    make: Callable[[], dict[str, Any]],
    *,
    folder: Path | None = None,
) -> dict[str, Any]:
    """The result of a step: made, or taken over from an earlier run.

    Args:
        place: JSON file of the key and the result.
        key: everything that decides the result; another key makes it again.
        folder: what an unfinished step leaves; removed if another key began it.
    """
    wanted = json.loads(json.dumps(key, default=str))
    stored = read_json(place, "result of a step") if place.is_file() else None
    stored = stored if isinstance(stored, dict) else {}
    same = stored.get("key") == wanted
    if same and "result" in stored and still_there(stored["result"]):
        say(f"{name}: up to date")
        return dict(stored["result"])
    say(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    if folder is not None:
        if stored and not same:
            shutil.rmtree(folder, ignore_errors=True)
        atomic_write_json(place, {"key": wanted})
    result = json.loads(json.dumps(make()))
    atomic_write_json(place, {"key": wanted, "result": result})
    return dict(result)


def still_there(result: dict[str, Any]) -> bool:
    """Whether the artefacts that a stored result names (if any) are there, with the content that they had."""
    paths = [Path(path) for path in (result.get("heads") or {}).values()]
    paths += [Path(result["path"])] if "path" in result else []
    try:
        if content_hashes(paths) != result.get("contents", []):
            return False
        drafter = result.get("drafter")
        return drafter is None or drafter_digest(Path(drafter)) == result["digest"]
    except VocabForgeError:
        return False


def is_finished(path: Path, kind: str, key: Mapping[Any, Any]) -> bool:
    """Whether a whole artefact is there whose ``meta.key`` is this one."""
    try:
        return bool(open_artifact(path, kind).meta.get("key") == json.loads(json.dumps(key)))
    except ArtifactError:
        return False


def content_hashes(paths: Sequence[Path]) -> list[str]:
    """Content hash of each artefact."""
    return [open_artifact(path, verify=False).content_hash for path in paths]


def _run(
    output: Path, seed: int, key: Mapping[str, Any], train: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """A training in its own folder, removed if it was begun with another key; a finished one keeps no checkpoints."""
    made = run_step(f"seed {seed}: {output.name}", output.with_suffix(".json"), key, train, folder=output)
    for name in ("checkpoints", "best"):
        shutil.rmtree(output / name, ignore_errors=True)
    return made


def variant(config: TrainConfig, output: Path, seed: int, **sections: dict[str, Any]) -> TrainConfig:
    """The recipe with another run folder and seed, and keys of sections replaced."""
    sections["run"] = {"trackers": (), **sections.get("run", {}), "seed": seed}
    changed: dict[str, Any] = {
        name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()
    }
    return config.model_copy(update={"output": output, **changed})


def drafter_run(
    config: TrainConfig,
    data: str,
    target: str,
    options: Mapping[str, Any] | None = None,
    prepare: Callable[[Trainer], None] | None = None,
) -> dict[str, Any]:
    """Train as ``train-drafter`` does; a finished run is taken over, a killed one resumes, a changed one begins anew.

    Args:
        data, target: digest of the rows, fingerprint of the target.
        options: what else decides the run.
        prepare: changes the trainer before it starts.
    """
    key = {
        **identity_of(config, data, target),
        **(options or {}),
        "passes": config.run.mixed_precision,
        "states": config.capture.dtype,
    }

    def train_it() -> dict[str, Any]:
        trainer = build_trainer(config)
        if prepare is not None:
            prepare(trainer)
        path = train(trainer)
        del trainer
        gc.collect()  # the captured states are gigabytes, and the target's hooks hold them in a cycle
        heads = sorted(one for one in (config.output / "heads").glob("*") if (one / MANIFEST).is_file())
        return {
            "drafter": str(path),
            "digest": drafter_digest(path),
            "heads": {folder.name: str(folder) for folder in heads},
            "contents": content_hashes(heads),
        }

    return _run(config.output, config.run.seed, key, train_it)


def router_run(
    config: TrainConfig,
    full: Mapping[str, Any],
    clusters: Path,
    data: str,
    target: str,
    *,
    optim: OptimConfig,
    levels: int,
    best: BestTokens | None = None,
) -> dict[str, Any]:
    """Train a router on a drafter as ``train-router`` does; see :func:`drafter_run`.

    Args:
        full: result of the drafter's run.
        levels: draft steps whose states it learns from.
        best: what routers on one drafter share; see ``RouterTrainer``.
    """
    key = {
        "drafter": full["digest"],
        "clusters": content_hashes([clusters]),
        "data": data,
        "target": target,
        "seed": config.run.seed,
        "optim": optim.model_dump(mode="json"),
        "levels": levels,
        "states": config.capture.dtype,
    }
    settings = RouterTrainConfig(
        target=config.target,
        drafter=Path(full["drafter"]),
        clusters=clusters,
        tokenizer=config.tokenizer,
        output=config.output,
        data=config.data,
        capture=config.capture,
        router=RouterConfig(steps=levels),
        optim=optim,
        run=RouterRunConfig(
            seed=config.run.seed,
            device=config.run.device,
            eval_rows=config.run.eval_rows,
            eval_every=optim.steps,
            checkpoint_every=min(optim.steps, config.run.checkpoint_every),
        ),
    )

    def train_it() -> dict[str, Any]:
        path = build_router_trainer(settings, load_drafter, best=best).run()
        gc.collect()
        return {"path": str(path), "contents": content_hashes([path])}

    return _run(config.output, config.run.seed, key, train_it)


def subset_step(
    name: str,
    counts: Counts,
    size: int,
    tokenizer: TextTokenizer,
    target: Path,
    path: Path,
    *,
    tools: bool = False,
    parents: Mapping[str, str] | None = None,
) -> None:
    """Select a draft vocabulary as ``select-vocab --fill lowest-id`` does, with ``--force-tools`` if ``tools``."""
    key = {
        "target": target_fingerprint(target),
        "counts": hashlib.sha256(counts.tobytes()).hexdigest(),
        "size": size,
    }

    def make() -> dict[str, Any]:
        none = np.zeros(tokenizer.vocab_size, dtype=np.int64)
        special = SpecialTokens.of(tokenizer)
        table = FrequencyTable(none, 0, 0, "corpus", tokenizer.fingerprint, {}, special)
        forced = forced_ids(table, ForceOptions(target=target, tools=tools))
        subset = make_subset(counts, size, forced, fingerprint=tokenizer.fingerprint, fill="lowest-id")
        save_subset(subset, path, parents=parents, overwrite=True)
        return {"path": str(path), "contents": content_hashes([path])}

    run_step(name, path.with_suffix(".json"), key, make)


def clusters_step(target: Path, tokenizer: TextTokenizer, count: int, path: Path) -> None:
    """Cluster the target's LM head as ``cluster-vocab`` does."""

    def make() -> dict[str, Any]:
        head, size = open_head(target), tokenizer.vocab_size
        padded = check_head_fits(head, size, tokenizer=tokenizer.source)
        digest = digest_start(size, head.shape[1])
        rows = unit_rows(head, size, name=head.source, digest=digest)
        facts = {
            "digest": digest.hexdigest(),
            "rows": head.shape[0],
            "padded": padded,
            "width": head.shape[1],
            "dtype": head.dtype,
            "name": head.name,
            "tied": head.tied,
        }
        made = make_clusters(rows, KMeansOptions(count), fingerprint=tokenizer.fingerprint, head=facts)
        save_clusters(made, path, overwrite=True)
        return {"path": str(path), "contents": content_hashes([path])}

    key = {"target": target_fingerprint(target), "tokenizer": tokenizer.fingerprint, "clusters": count}
    run_step(f"{count:,} clusters", path.with_suffix(".json"), key, make)
