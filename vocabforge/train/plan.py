"""What a configuration would do, without loading weights or data."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..core.artifact import open_artifact
from ..core.distributed import Group, rank, world_size
from ..core.progress import say
from ..corpus.inputs import expand_paths
from ..corpus.prepared import check_belongs, load_prepared
from ..corpus.tokenizer import TextTokenizer
from ..models.device import choose_device
from ..models.drafter_io import check_target
from ..models.drafters import new_drafter
from ..models.fingerprint import target_fingerprint
from .basis import read_basis, step_settings
from .batches import divide
from .config import TrainConfig
from .draft_heads import make_heads
from .keeping import HELDOUT_PROMPTS
from .strategy import wanted_strategy

_MANY_EPOCHS = 100


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
    data = _data(config, tokenizer)
    meta = torch.empty(sizes.vocab_size, sizes.hidden_size, device="meta")
    with torch.device("meta"):
        ids = (
            None if sizes.draft_vocab_size is None else torch.empty(sizes.draft_vocab_size, dtype=torch.int64)
        )
        drafter = new_drafter(config.drafter.kind, sizes, meta, meta, ids)
        heads = make_heads(config.heads, meta, seed=0)
    division = divide(config.optim, group.rank, group.size)
    trained = 0 if config.drafter.freeze else _parameters(drafter)
    trained_in_all = trained + _parameters(heads)
    files = ["drafter", "best", "checkpoints", "metrics.jsonl", "report.html", HELDOUT_PROMPTS]
    return {
        "config": config.model_dump(mode="json"),
        "target": {"path": str(config.target), "architectures": basis.target.get("architectures")},
        "tokenizer": {"path": str(tokenizer.source), "vocab_size": tokenizer.vocab_size},
        "drafter": {"kind": config.drafter.kind, **sizes.to_dict(), "trained_parameters": trained},
        "heads": {name: _parameters(head) for name, head in heads.items()},
        "data": data,
        "loss": {"settings": dataclasses.asdict(step_settings(config)), "steps": config.ttt.steps},
        "device": str(choose_device(config.run.device)),
        "processes": group.size,
        "strategy": wanted_strategy(config.run.strategy, group),
        "rows_per_process": {"a step": division.share, "a forward pass": division.micro},
        "tokens_at_most": config.optim.steps * config.optim.batch_size * config.data.sequence_length,
        "trained_state_bytes": trained_state(trained_in_all, config.memory.weights),
        "writes": [str(config.output / name) for name in files],
    }


def trained_state(parameters: int, weights: str) -> dict[str, int]:
    """Bytes of what is trained, by arithmetic; FSDP2 and ZeRO divide them over the processes.

    Args:
        weights: ``fp32``, or ``bf16`` beside fp32 masters.

    Returns:
        ``weights``, ``gradients``, ``moments`` (two of AdamW, fp32), ``masters`` and their sum ``total``. The
        target, activations and workspaces come on top.
    """
    low = weights == "bf16"
    sizes = {
        "weights": 2 if low else 4,
        "gradients": 2 if low else 4,
        "moments": 8,
        "masters": 4 if low else 0,
    }
    return {name: size * parameters for name, size in sizes.items()} | {
        "total": sum(sizes.values()) * parameters
    }


def _parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def _data(config: TrainConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """The inputs that are there, or the prepared rows and how often each would be seen."""
    if config.data.prepared is None:
        heldout = expand_paths(config.data.heldout) if config.data.heldout else []
        return {"inputs": len(expand_paths(config.data.train)), "heldout_inputs": len(heldout)}
    prepared = load_prepared(config.data.prepared, verify=False)
    check_belongs(prepared, tokenizer)
    figures, rows = prepared.figures["train"], len(prepared.train)
    epochs = config.optim.steps * config.optim.batch_size / rows
    if epochs > _MANY_EPOCHS:
        say(
            f"Note: each of the {rows:,} packed rows would be seen {epochs:,.0f} times "
            f"({config.optim.steps:,} steps of {config.optim.batch_size:,} rows): prepare more data, or take fewer "
            f"steps (optim.steps={max(1, _MANY_EPOCHS * rows // config.optim.batch_size)} is {_MANY_EPOCHS} times)"
        )
    return {
        "rows": rows,
        "heldout_rows": len(prepared.heldout),
        "tokens": figures["tokens"],
        "counted_tokens": figures["counted"],
        "epochs": round(epochs, 3),
    }
