"""Resumable steps of a comparison of draft vocabularies, and what the steps make.

A step stores its result in a JSON file with a hash of everything that decides it. A later run takes the result over if
the hash is the same and the artefacts that the result names are still there.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.artifact import MANIFEST, open_artifact
from ..core.console import say
from ..core.files import atomic_write_json, read_json
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..export.registry import load_drafter
from ..models.heads.io import drafter_digest
from ..models.target.head_rows import check_head_fits, digest_start, open_head
from ..train.config import OptimConfig, TrainConfig
from ..train.heads.router import BestTokens
from ..train.heads.router_config import RouterConfig, RouterRunConfig, RouterTrainConfig
from ..train.heads.router_setup import build_router_trainer
from ..train.loop import train
from ..train.setup import build_trainer
from ..train.trainer import Trainer
from ..vocab.clusters.backends import AUTO, choose_backend
from ..vocab.clusters.clusters import make_clusters, save_clusters
from ..vocab.clusters.kmeans import KMeansOptions
from ..vocab.clusters.rows import unit_rows
from ..vocab.counts.table import FrequencyTable
from ..vocab.subset.forced import ForceOptions, forced_ids
from ..vocab.subset.select import Fill, SpecialTokens
from ..vocab.subset.subset import make_subset, save_subset

Counts = npt.NDArray[np.int64]
# What fills a draft vocabulary up if too few ids were counted: in a BPE the bytes, then the earliest merges.
FILL: Fill = "lowest-id"


def run_step(
    name: str,
    place: Path,
    key: Mapping[str, Any],
    make: Callable[[], dict[str, Any]],
    fits: Callable[[dict[str, Any]], bool] | None = None,
) -> dict[str, Any]:
    """The result of a step: made, or taken over from an earlier run.

    Args:
        name: for the line of progress.
        place: JSON file of the result.
        key: everything that decides the result; another key makes it again.
        make: makes it.
        fits: whether what a stored result names is still there; by default :func:`still_there`.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
    stored = read_json(place, "result of a step") if place.is_file() else None
    if isinstance(stored, dict) and stored.get("key") == digest and (fits or still_there)(stored["result"]):
        say(f"{name}: done before")
        return dict(stored["result"])
    say(name)
    begun = time.monotonic()
    result = json.loads(json.dumps(make()))
    place.parent.mkdir(parents=True, exist_ok=True)
    seconds = time.monotonic() - begun
    atomic_write_json(place, {"key": digest, "of": key, "seconds": seconds, "result": result})
    return dict(result)


def still_there(result: dict[str, Any]) -> bool:
    """Whether the artefacts that a stored result names (if any) are there, with the content that they had."""
    paths = [Path(path) for path in (result.get("heads") or {}).values()]
    paths += [Path(result[key]) for key in ("path",) if key in result]
    if not all((path / MANIFEST).is_file() for path in paths) or content_hashes(paths) != result.get(
        "contents", []
    ):
        return False
    drafter = result.get("drafter")
    if drafter is None:
        return True
    return (Path(drafter) / MANIFEST).is_file() and drafter_digest(Path(drafter)) == result["digest"]


def content_hashes(paths: Sequence[Path]) -> list[str]:
    """Content hash of each artefact."""
    return [open_artifact(path, verify=False).content_hash for path in paths]


def variant(config: TrainConfig, output: Path, seed: int, **sections: dict[str, Any]) -> TrainConfig:
    """The recipe with another run folder and seed, and keys of sections replaced."""
    sections["run"] = {"trackers": (), **sections.get("run", {}), "seed": seed}
    changed: dict[str, Any] = {
        name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()
    }
    return config.model_copy(update={"output": output, **changed})


def train_drafter(config: TrainConfig, prepare: Callable[[Trainer], None] | None = None) -> dict[str, Any]:
    """Train (or finish) a run as ``train-drafter`` does, without decoding along the way.

    Args:
        prepare: changes the trainer before it starts.

    Returns:
        ``drafter`` and ``heads`` by kind: folders; ``digest`` of the drafter's weights.
    """
    trainer = build_trainer(config)
    if prepare is not None:
        prepare(trainer)
    path = train(trainer)
    del trainer
    gc.collect()  # the captured states are gigabytes, and the target's hooks hold them in a cycle
    heads = sorted(folder for folder in (config.output / "heads").glob("*") if (folder / MANIFEST).is_file())
    return {
        "drafter": str(path),
        "digest": drafter_digest(path),
        "heads": {folder.name: str(folder) for folder in heads},
        "contents": content_hashes(heads),
    }


def train_router(
    config: TrainConfig,
    drafter: Path,
    clusters: Path,
    output: Path,
    *,
    optim: OptimConfig,
    levels: int,
    budgets: tuple[int, ...] | None = None,
    best: BestTokens | None = None,
) -> dict[str, Any]:
    """Train a router on a drafter as ``train-router`` does.

    Args:
        config: the recipe with the seed.
        optim: how it learns.
        levels: draft steps whose states it learns from.
        budgets: clusters that its report compares; see ``RouterRunConfig``.
        best: what routers on one drafter share; see ``RouterTrainer``.

    Returns:
        ``path`` of the router artefact.
    """
    settings = RouterTrainConfig(
        target=config.target,
        drafter=drafter,
        clusters=clusters,
        tokenizer=config.tokenizer,
        output=output,
        data=config.data,
        capture=config.capture,
        router=RouterConfig(steps=levels),
        optim=optim,
        run=RouterRunConfig(
            seed=config.run.seed,
            device=config.run.device,
            eval_rows=config.run.eval_rows,
            eval_every=optim.steps,
            budgets=budgets,
            checkpoint_every=min(optim.steps, config.run.checkpoint_every),
        ),
    )
    path = build_router_trainer(settings, load_drafter, best).run()
    gc.collect()
    return {"path": str(path), "contents": content_hashes([path])}


def forced_tokens(tokenizer: TextTokenizer, target: Path, *, tools: bool = False) -> tuple[int, ...]:
    """Ids that every draft vocabulary holds, as ``select-vocab`` forces them.

    Args:
        tools: the template's tokens for tool calls and thinking, too.
    """
    special, counts = SpecialTokens.of(tokenizer), np.zeros(tokenizer.vocab_size, dtype=np.int64)
    table = FrequencyTable(counts, 0, 0, "corpus", tokenizer.fingerprint, {}, special)
    return forced_ids(table, ForceOptions(target=target, tools=tools))


def write_subset(
    counts: Counts,
    size: int,
    fingerprint: str,
    forced: Sequence[int],
    path: Path,
    *,
    parents: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Select a draft vocabulary as ``select-vocab --fill lowest-id`` does.

    Args:
        fingerprint: the tokenizer's.
        forced: see :func:`forced_tokens`.
        parents: content hashes of what the counts come from.

    Returns:
        ``path``, and its coverage of the counts and how many ids were filled in.
    """
    subset = make_subset(counts, size, forced, fingerprint=fingerprint, fill=FILL)
    save_subset(subset, path, parents=parents, overwrite=True)
    return {
        "path": str(path),
        "contents": content_hashes([path]),
        "size": size,
        "coverage": subset.coverage,
        "filled": subset.filled,
        "forced": len(forced),
    }


def write_clusters(target: Path, tokenizer: TextTokenizer, count: int, path: Path) -> dict[str, Any]:
    """Cluster the target's LM head as ``cluster-vocab`` does.

    Returns:
        ``path`` of the artefact.
    """
    head = open_head(target)
    size = tokenizer.vocab_size
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
    options = KMeansOptions(count, 25, 1, 0, "kmeans++")
    backend = choose_backend(AUTO)[0]
    made = make_clusters(rows, options, backend, fingerprint=tokenizer.fingerprint, head=facts)
    save_clusters(made, path, overwrite=True)
    return {"path": str(path), "contents": content_hashes([path]), "clusters": len(made)}
