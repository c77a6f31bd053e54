"""What a configuration would do, without loading weights or data."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..core.distributed import Group, rank, world_size
from ..core.files import check_run_folder
from ..corpus.tokenizer import load_tokenizer
from ..models.device import choose_device
from ..models.drafters import new_drafter
from ..models.target import read_target_config
from .batches import divide
from .config import TrainConfig
from .data import with_prepared
from .draft_heads import make_heads
from .setup import HELDOUT_PROMPTS, draft_vocabulary, sizes_of, step_settings
from .strategy import wanted_strategy
from .tracker_table import check_trackers


def plan(config: TrainConfig) -> dict[str, Any]:
    """The resolved configuration and what would be done, without loading weights or data.

    Raises:
        DataError: the target or its tokenizer cannot be read.
        UsageError: what was launched does not go with the configuration.
    """
    group = Group(rank(), world_size())
    config = config.model_copy(update={"data": with_prepared(config.data)})
    check_trackers(config.run.trackers)
    check_run_folder(config.output)
    target = read_target_config(config.target)
    tokenizer = load_tokenizer(config.tokenizer or config.target)
    sizes = sizes_of(config.drafter, target, draft_vocabulary(config.drafter, tokenizer))
    meta = torch.empty(sizes.vocab_size, sizes.hidden_size, device="meta")
    with torch.device("meta"):
        ids = (
            None if sizes.draft_vocab_size is None else torch.empty(sizes.draft_vocab_size, dtype=torch.int64)
        )
        drafter = new_drafter(config.drafter.kind, sizes, meta, meta, ids)
        heads = make_heads(config.heads, meta, seed=0)
    division = divide(config.optim, group.rank, group.size)
    trained = 0 if config.drafter.freeze else sum(p.numel() for p in drafter.parameters())
    files = ["drafter", "best", "checkpoints", "metrics.jsonl", "report.html", HELDOUT_PROMPTS]
    return {
        "config": config.model_dump(mode="json"),
        "target": {"path": str(config.target), "architectures": target.get("architectures")},
        "tokenizer": {"path": str(tokenizer.source), "vocab_size": tokenizer.vocab_size},
        "drafter": {"kind": config.drafter.kind, **sizes.to_dict(), "trained_parameters": trained},
        "heads": {name: sum(p.numel() for p in head.parameters()) for name, head in heads.items()},
        "loss": {"settings": dataclasses.asdict(step_settings(config)), "steps": config.ttt.steps},
        "device": str(choose_device(config.run.device)),
        "processes": group.size,
        "strategy": wanted_strategy(config.run.strategy, group),
        "rows_per_process": {"a step": division.share, "a forward pass": division.micro},
        "tokens_at_most": config.optim.steps * config.optim.batch_size * config.data.sequence_length,
        "writes": [str(config.output / name) for name in files],
    }
