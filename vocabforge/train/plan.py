"""What a configuration would do, without loading weights or data."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..core.artifact import open_artifact
from ..core.distributed import Group, rank, world_size
from ..models.device import choose_device
from ..models.drafter_io import check_target
from ..models.drafters import new_drafter
from ..models.fingerprint import target_fingerprint
from ..models.target_load import dtype_of
from .basis import read_basis, step_settings
from .batches import divide
from .config import TrainConfig
from .draft_heads import head_name, make_heads
from .keeping import HELDOUT_PROMPTS
from .plan_cost import (
    TargetCount,
    Work,
    count_target,
    flop_a_token,
    loss_workspace,
    share_of_state,
    trained_state,
)
from .plan_data import planned_data
from .strategy import wanted_strategy
from .strategy_deepspeed import deepspeed_config


def plan(config: TrainConfig) -> dict[str, Any]:
    """The resolved configuration and what would be done, without loading weights or data.

    Raises:
        DataError: an input file cannot be read.
        VocabForgeError: see :func:`~vocabforge.train.basis.read_basis`.
    """
    group = Group(rank(), world_size())
    basis = read_basis(config, group)
    config, tokenizer, sizes = basis.config, basis.tokenizer, basis.sizes
    if config.drafter.init is not None:
        artifact = open_artifact(config.drafter.init, "drafter", verify=False)
        check_target(artifact, target_fingerprint(config.target), target=config.target)
    data = planned_data(config, tokenizer)
    drafter, heads = _blank(config, sizes)
    division = divide(config.optim, group.rank, group.size)
    trained = 0 if config.drafter.freeze else _parameters(drafter)
    of_heads = {name: _parameters(head) for name, head in heads.items()}
    target = count_target(config.target)
    files = ["drafter", "best", "checkpoints", "metrics.jsonl", "report.html", HELDOUT_PROMPTS]
    files += [f"heads/{head_name(name)}" for name in heads]
    return {
        "config": config.model_dump(mode="json"),
        "target": {
            "path": str(config.target),
            "architectures": basis.target.get("architectures"),
            "parameters": None if target is None else target.total,
        },
        "tokenizer": {"path": str(tokenizer.source), "vocab_size": tokenizer.vocab_size},
        "drafter": {"kind": config.drafter.kind, **sizes.to_dict(), "trained_parameters": trained},
        "heads": of_heads,
        "data": data,
        "loss": {"settings": dataclasses.asdict(step_settings(config)), "steps": config.ttt.steps},
        "device": str(choose_device(config.run.device)),
        "processes": group.size,
        "strategy": wanted_strategy(config.run.strategy, group),
        "rows_per_process": {"a step": division.share, "a forward pass": division.micro},
        **_costs(config, sizes, group, target, drafter, of_heads),
        "writes": [str(config.output / name) for name in files],
    }


def _costs(
    config: TrainConfig,
    sizes: Any,
    group: Group,
    target: TargetCount | None,
    drafter: Any,
    heads: dict[str, int],
) -> dict[str, Any]:
    """Tokens, bytes and operations.

    Args:
        heads: parameters of each draft head.
    """
    frozen = _parameters(drafter) if config.drafter.freeze else 0
    state = trained_state(_parameters(drafter) - frozen + sum(heads.values()), config.memory.weights)
    divided = _divided(wanted_strategy(config.run.strategy, group), config, group)
    below, work = _work(config, drafter, sizes)
    row = config.data.sequence_length
    drafted = divide(config.optim, group.rank, group.size).micro * row * work.steps
    memory = {
        "target": _target_bytes(config, target, group),
        "trained_state": share_of_state(state, group.size, divided),
        "frozen_drafter": 4 * frozen,
        "loss_workspace": loss_workspace(config.memory.loss, config.memory.chunk_mb, drafted, work.columns),
    }
    flop = flop_a_token(_run_layers(config, target), below, heads, work)
    tokens = config.optim.batch_size * row
    return {
        "tokens_a_step": tokens,
        "tokens_at_most": config.optim.steps * tokens,
        "trained_state_bytes": state,
        "memory_bytes_a_process": memory | {"total": sum(size or 0 for size in memory.values())},
        "flop_a_token": flop,
        "flop_at_most": config.optim.steps * tokens * flop["total"],
    }


def _blank(config: TrainConfig, sizes: Any) -> tuple[Any, Any]:
    """Drafter and draft heads without storage."""
    meta = torch.empty(sizes.vocab_size, sizes.hidden_size, device="meta")
    rows = sizes.draft_vocab_size
    with torch.device("meta"):
        ids = None if rows is None else torch.empty(rows, dtype=torch.int64)
        drafter = new_drafter(config.drafter.kind, sizes, meta, meta, ids)
        return drafter, make_heads(config.heads, meta, seed=0)


def _work(config: TrainConfig, drafter: Any, sizes: Any) -> tuple[int, Work]:
    """D, the drafter's parameters without its head, and what ``flop_a_token`` asks of the configuration."""
    rows, hidden = drafter.head_weight.shape
    own = sizes.draft_vocab_size is not None
    work = Work(
        steps=config.ttt.steps,
        passes=1 if config.drafter.kind == "medusa" else config.ttt.steps,
        hidden=hidden,
        teacher_rows=sizes.vocab_size,
        draft_rows=rows,
        own_head=own,
        freeze=config.drafter.freeze,
    )
    return _parameters(drafter) - (rows * hidden if own else 0), work


def _whole_target(config: TrainConfig) -> bool:
    """Whether the target's layers are loaded, or with a cache of its states only embedding and LM head."""
    return config.capture.cache is None or config.run.live.load_target


def _run_layers(config: TrainConfig, target: TargetCount | None) -> int | None:
    """P of the forward pass: none where the states are read from a cache."""
    if config.capture.cache is not None:
        return 0
    return None if target is None else target.layers


def _target_bytes(config: TrainConfig, target: TargetCount | None, group: Group) -> int | None:
    """Of the target in one process (on all its devices, under ``capture.device_map``); None where it is not known."""
    if target is None:
        return None
    dtype = dtype_of(config.target, config.capture.dtype, choose_device(config.run.device))
    parameters = target.total if _whole_target(config) else target.ends
    return parameters * dtype.itemsize // (group.size if config.capture.tp_plan else 1)


def _divided(strategy: str, config: TrainConfig, group: Group) -> int:
    """How much of the trained state is divided over the processes, as ZeRO's stages count."""
    if strategy == "deepspeed":
        return int(deepspeed_config(config, group.size)["zero_optimization"]["stage"])
    return 3 if strategy == "fsdp" else 0


def _parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())
