"""Build a :class:`~vocabforge.train.heads.router.RouterTrainer` from its configuration."""

from __future__ import annotations

import json
from typing import Any

import torch

from ...core.artifact import Artifact, open_artifact
from ...core.distributed import Group, rank, world_size
from ...core.errors import UsageError
from ...core.files import atomic_write_json
from ...core.hub import hub_name
from ...corpus.sources.inputs import expand_paths
from ...layouts.registry import load_drafter
from ...models.device import choose_device
from ...models.drafters.interface import Drafter
from ...models.heads.io import HeadOwner, drafter_digest
from ...models.target.fingerprint import target_fingerprint
from ...models.target.head import TargetTensors
from ...models.target.hf import read_target_config
from ...models.target.text_config import text_config
from ...vocab.clusters.clusters import load_clusters
from ..capture.build import build_capture, load_capture_target
from ..config import RouterTrainConfig
from ..data import divide, prepare_together
from ..machine import device_of
from ..parallel.strategy import wanted_strategy
from ..setup import read_inputs
from .draft_heads import check_clusters, check_routable, new_router
from .router import REPORT, ROUTER, RouterTrainer


def plan(config: RouterTrainConfig) -> dict[str, Any]:
    """Return the resolved configuration and the planned work without loading weights or data.

    Raises:
        VocabForgeError: an input cannot be read.
    """
    group = Group(rank(), world_size())
    strategy, division = router_strategy(group), divide(config.optim, group.rank, group.size)
    config, target, tokenizer = read_inputs(config)
    if config.data.prepared is None:
        expand_paths([*config.data.train, *config.data.heldout])  # raises if one is missing
    clusters = load_clusters(config.clusters)
    router = new_router(config.router, clusters, int(text_config(target).hidden_size))
    return {
        "config": config.model_dump(mode="json"),
        "target": {"path": hub_name(config.target), "architectures": target.get("architectures")},
        "tokenizer": {"path": str(tokenizer.source), "vocab_size": tokenizer.vocab_size},
        "drafter": {"path": hub_name(config.drafter), "digest": drafter_digest(config.drafter)},
        "clusters": len(clusters),
        "trained_parameters": sum(p.numel() for p in router.parameters()),
        "device": str(choose_device(config.run.device)),
        "processes": group.size,
        "strategy": strategy,
        "rows_per_process": {"a step": division.share, "a forward pass": division.micro},
        "writes": [str(config.output / name) for name in (ROUTER, "checkpoints", "metrics.jsonl", REPORT)],
    }


def router_strategy(group: Group) -> str:
    """Return the strategy of the launched processes.

    Raises:
        UsageError: the launcher is configured for DeepSpeed.
    """
    strategy = wanted_strategy("auto", group)
    if strategy == "deepspeed":
        raise UsageError(
            "train-router does not run under DeepSpeed: a router is too small to shard",
            got="a launcher configured for DeepSpeed",
            expected="DDP or FSDP2",
            remedy="launch with recipes/accelerate/multi_gpu.yaml or fsdp2.yaml",
        )
    return strategy


def build_router_trainer(config: RouterTrainConfig, group: Group | None = None) -> RouterTrainer:
    """Load target, drafter, clusters and data, and assemble the router. Collective.

    Args:
        group: launched processes; None: only this process.

    Raises:
        VocabForgeError: an input is missing, damaged or does not match the others.
    """
    group = Group(0, 1) if group is None else group
    router_strategy(group)
    divide(config.optim, group.rank, group.size)
    config, _, tokenizer = read_inputs(config)
    device = device_of(config)
    clusters = load_clusters(config.clusters)
    check_clusters(clusters, config.clusters, tokenizer, config.target)
    target, drafter, artifact = _models(config, device)
    steps = min(config.router.steps, drafter.max_steps or config.router.steps)
    config = config.model_copy(update={"router": config.router.model_copy(update={"steps": steps})})
    data = prepare_together(config.data, config.output, tokenizer, group)
    config = config.model_copy(update={"optim": config.optim.over(len(data.train))})
    router = new_router(config.router, clusters, target.hidden_size)
    router.init(config.run.seed, config.router.top_n)
    owner = HeadOwner(
        drafter_digest(config.drafter), target_fingerprint(config.target), tokenizer.fingerprint
    )
    cluster_hash = open_artifact(config.clusters, verify=False).content_hash
    parents = {"clusters": cluster_hash}
    if artifact is not None:
        parents["drafter"] = artifact.content_hash
    if group.rank == 0:
        atomic_write_json(config.output / "config.json", config.model_dump(mode="json"))
    return RouterTrainer(
        config=config,
        target=target,
        drafter=drafter,
        router=router.to(device),
        data=data,
        captured=build_capture(
            config.capture,
            target,
            rows={"train": data.train, "heldout": data.heldout},
            path=config.target,
            fingerprint=owner.target,
            owner=f"{config.output.absolute()} {group.rank}",
        ),
        device=device,
        group=group,
        identity=_identity(config, owner, cluster_hash, data.digest()),
        owner=owner,
        parents=parents,
    )


def _models(config: RouterTrainConfig, device: torch.device) -> tuple[Any, Drafter, Artifact | None]:
    sizes = text_config(read_target_config(config.target))
    blank = torch.empty(int(sizes.vocab_size), int(sizes.hidden_size), device="meta")
    # Load the drafter twice: it defines the target's auxiliary layers, and shares the target's tensors.
    drafter, artifact = load_drafter(config.drafter, TargetTensors(blank, blank), config.target)
    check_routable(drafter, source=config.drafter)
    if config.data.sequence_length > drafter.config.max_position_embeddings:
        raise UsageError(
            "data.sequence_length is longer than the drafter's context",
            got=config.data.sequence_length,
            expected=f"at most {drafter.config.max_position_embeddings}",
            remedy="shorten data.sequence_length",
        )
    target = load_capture_target(
        config.target, config.capture, aux_layers=drafter.config.aux_layers or None, device=device
    )
    tensors = TargetTensors(target.embedding.detach(), target.head_weight.detach(), target.transform)
    return target, load_drafter(config.drafter, tensors, config.target)[0], artifact


def _identity(config: RouterTrainConfig, owner: HeadOwner, clusters: str, data_digest: str) -> dict[str, Any]:
    """Return the settings that must match on resume: exactly those that affect the weights."""
    body = config.model_dump(mode="json")
    flat = {
        f"{section}.{key}": value for section in ("router", "optim") for key, value in body[section].items()
    }
    flat["optim.micro_batch_size"] = None  # the division of a batch does not affect the weights
    flat |= {"run.seed": config.run.seed, "data": data_digest, "clusters": clusters, **owner.to_meta()}
    return json.loads(json.dumps(flat))
