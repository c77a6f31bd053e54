"""What the comparison of draft heads is made from: drafters, draft vocabularies, clusters, routers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.artifact import MANIFEST, open_artifact
from ..core.console import ProgressBar
from ..corpus.packing import PackedRows
from ..corpus.tokenizer import TextTokenizer
from ..decode.engine import Decoder
from ..export.formats import load_drafter
from ..models.head_io import drafter_digest
from ..models.head_rows import check_head_fits, digest_start, open_head
from ..models.lean import LeanModel
from ..train.config import OptimConfig, TrainConfig
from ..train.loop import train
from ..train.router_config import RouterConfig, RouterRunConfig, RouterTrainConfig
from ..train.router_setup import build_router_trainer
from ..train.router_train import BestTokens
from ..train.setup import build_trainer
from ..train.trainer import Trainer
from ..vocab.clusters import make_clusters, save_clusters
from ..vocab.forced import ForceOptions, forced_ids
from ..vocab.kmeans import KMeansOptions
from ..vocab.kmeans_backends import AUTO, choose_backend
from ..vocab.kmeans_rows import unit_rows
from ..vocab.select import Fill, SpecialTokens
from ..vocab.subset import make_subset, save_subset
from ..vocab.table import FrequencyTable
from .benchmarks import spread

Counts = npt.NDArray[np.int64]
ROUTER_LR = 1e-3
# What fills a draft vocabulary up where too few ids were counted: in a BPE the bytes, then the earliest merges.
FILL: Fill = "lowest-id"


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


def still_there(result: dict[str, Any]) -> bool:
    """Whether the artefacts of a stored result are there, with the content that they had."""
    paths = [Path(path) for path in (result.get("heads") or {}).values()]
    paths += [Path(result[key]) for key in ("path",) if key in result]
    if not all((path / MANIFEST).is_file() for path in paths):
        return False
    if content_hashes(paths) != result["contents"]:
        return False
    drafter = result.get("drafter")
    if drafter is None:
        return True
    return (Path(drafter) / MANIFEST).is_file() and drafter_digest(Path(drafter)) == result["digest"]


def content_hashes(paths: Sequence[Path]) -> list[str]:
    """Content hash of each artefact."""
    return [open_artifact(path, verify=False).content_hash for path in paths]


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


def training_prompts(rows: PackedRows, count: int, length: int) -> list[list[int]]:
    """Beginnings of training documents, evenly spread.

    Args:
        count: at most so many.
        length: tokens of a prompt; in a conversation it is what stands before the first answer.
    """
    found = []
    for row in range(len(rows)):
        document = np.asarray(rows.document[row])
        for number in range(1, int(document.max(initial=0)) + 1):
            places = np.flatnonzero(document == number)
            learnt = np.flatnonzero(np.asarray(rows.loss_mask[row])[places])
            before = int(learnt[0]) if len(learnt) else 0
            size = before if before > 1 else length
            if size < len(places):
                found.append(np.asarray(rows.input_ids[row])[places[:size]].tolist())
    return spread(found, count)


def continuation_counts(
    model: LeanModel, prompts: Sequence[Sequence[int]], stop_ids: Sequence[int], *, new: int, vocab_size: int
) -> dict[str, Any]:
    """Counts of the ids that the target itself writes, greedily (VocabTrim).

    Returns:
        ``counts`` (V,) as a list, and ``tokens`` and ``prompts`` behind them.
    """
    context = min(model.config.max_positions, max(map(len, prompts)) + new + 1)
    decoder = Decoder(model, context=context)
    counts = np.zeros(vocab_size, dtype=np.int64)
    with ProgressBar("the target's continuations", len(prompts), "prompts") as bar:
        for prompt in prompts:
            made = decoder.generate(prompt, max_new_tokens=new, stop_ids=stop_ids)
            counts += np.bincount([t for t in made.token_ids if t < vocab_size], minlength=vocab_size)
            bar.update(1)
    return {"counts": counts.tolist(), "tokens": int(counts.sum()), "prompts": len(prompts)}


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
