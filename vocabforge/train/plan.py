"""Plan of a training run: files, memory and operations, without loading weights or data.

A multiply-add counts as two operations. Attention, activations and evaluations are not counted: they depend
on rows and device.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from ..core.artifact import open_artifact
from ..core.console import say
from ..core.distributed import Group, rank, world_size
from ..core.errors import DataError
from ..core.hub import hub_name
from ..corpus.prepared.artifact import check_belongs, load_prepared
from ..corpus.sources.inputs import expand_paths
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..models.checkpoint import FLOATS, checkpoint_files, read_headers
from ..models.device import choose_device
from ..models.drafters.io import check_target
from ..models.drafters.parallel import is_parallel
from ..models.drafters.registry import new_drafter
from ..models.target.fingerprint import target_fingerprint
from ..models.target.head import EMBEDDINGS, HEADS
from ..models.target.load import dtype_of
from .config import TrainConfig
from .data import Division, divide
from .heads.draft_heads import head_name, make_heads
from .loss.kinds import KL, Mixture
from .loss.vocab import naive_bytes
from .optim import is_hidden_matrix
from .parallel.deepspeed import deepspeed_config
from .parallel.strategy import wanted_strategy
from .resume import HELDOUT_PROMPTS
from .setup import read_basis
from .step import loss_weights


def plan(config: TrainConfig) -> dict[str, Any]:
    """Return the resolved configuration and the planned work without loading weights or data.

    Raises:
        DataError: an input file cannot be read.
        VocabForgeError: see :func:`~vocabforge.train.setup.read_basis`.
    """
    group = Group(rank(), world_size())
    basis = read_basis(config, group)
    config, tokenizer, sizes = basis.config, basis.tokenizer, basis.sizes
    if config.drafter.init is not None:
        artifact = open_artifact(config.drafter.init, "drafter", verify=False)
        check_target(artifact, target_fingerprint(config.target), target=config.target)
    data = planned_data(config, tokenizer)
    if "rows" in data:
        config = config.model_copy(update={"optim": config.optim.over(data["rows"])})
    meta = torch.empty(sizes.vocab_size, sizes.hidden_size, device="meta")
    rows = sizes.draft_vocab_size if basis.subset is None else len(basis.subset.ids)
    with torch.device("meta"):
        ids = None if rows is None else torch.empty(rows, dtype=torch.int64)
        drafter: Any = new_drafter(config.drafter.kind, sizes, meta, meta, ids)
        made = make_heads(config.heads, meta, seed=0)
    division = divide(config.optim, group.rank, group.size)
    strategy = wanted_strategy(config.run.strategy, group)
    parameters = _parameters(drafter)
    heads = {name: _parameters(head) for name, head in made.items()}
    muon = 0
    if config.optim.name == "muon":
        trained = [*made.values(), *(() if config.drafter.freeze else (drafter,))]
        each = (pair for module in trained for pair in module.named_parameters())
        muon = sum(p.numel() for name, p in each if is_hidden_matrix(name, p))
    target = count_target(config.target)
    files = ["drafter", "best", "checkpoints", "metrics.jsonl", "report.png", HELDOUT_PROMPTS]
    files += [f"heads/{head_name(name)}" for name in heads]
    return {
        "config": config.model_dump(mode="json"),
        "target": {
            "path": hub_name(config.target),
            "architectures": basis.target.get("architectures"),
            "parameters": None if target is None else target[0],
        },
        "tokenizer": {"path": str(tokenizer.source), "vocab_size": tokenizer.vocab_size},
        "drafter": {
            "kind": config.drafter.kind,
            **sizes.to_dict(),
            "trained_parameters": 0 if config.drafter.freeze else parameters,
        },
        "heads": heads,
        "data": data,
        "loss": {
            "settings": config.ttt.model_dump(mode="json") | loss_weights(config.ttt, config.drafter.kind),
            "draft steps": config.ttt.steps,
        },
        "steps": config.optim.steps,
        "device": str(choose_device(config.run.device)),
        "processes": group.size,
        "strategy": strategy,
        "rows_per_process": {"a step": division.share, "a forward pass": division.micro},
        **_costs(config, strategy, division, target, drafter, heads, muon),
        "writes": [str(config.output / name) for name in files],
    }


def _costs(
    config: TrainConfig,
    strategy: str,
    division: Division,
    target: tuple[int, int] | None,
    drafter: Any,
    heads: dict[str, int],
    muon: int,
) -> dict[str, Any]:
    """Return tokens, bytes and operations."""
    parameters, freeze = _parameters(drafter), config.drafter.freeze
    steps, passes = _draft_rows(config, drafter)
    frozen = parameters if freeze else 0
    state = trained_state(parameters - frozen + sum(heads.values()), config.memory.weights, muon)
    divided = 3 if strategy == "fsdp" else 0  # ZeRO stage
    if strategy == "deepspeed":
        divided = int(deepspeed_config(config, division.size)["zero_optimization"]["stage"])
    columns = drafter.config.vocab_size + len(drafter.head_rows(0))
    row = config.data.sequence_length
    drafted = round(division.micro * row * steps)
    cached = config.capture.elsewhere  # only embedding and LM head are loaded; no layer runs
    held = None
    if target is not None:
        dtype = dtype_of(config.target, config.capture.dtype, choose_device(config.run.device))
        size = target[1] if cached and not config.run.live.load_target else target[0]
        held = size * dtype.itemsize // (division.size if config.capture.tp_plan else 1)
    memory = {
        "target": held,  # per process; with capture.device_map over all its devices
        "trained_state": share_of_state(state, division.size, divided),
        "frozen_drafter": 4 * frozen,
        "loss_workspace": loss_workspace(
            config.memory.loss, config.memory.chunk_mb, drafted, columns, config.ttt.mixture
        ),
    }
    run = 0 if cached else None if target is None else target[0] - target[1]
    flop = flop_a_token(run, drafter, heads, steps=steps, passes=passes, freeze=freeze)
    tokens = config.optim.batch_size * row
    most = config.optim.steps * tokens if config.optim.epochs is None else None  # unknown without the rows
    return {
        "tokens_a_step": tokens,
        "tokens_at_most": most,
        "trained_state_bytes": state,
        "memory_bytes_a_process": memory | {"total": sum(size or 0 for size in memory.values())},
        "flop_a_token": flop,
        "flop_at_most": None if most is None else most * flop["total"],
    }


def _draft_rows(config: TrainConfig, drafter: Any) -> tuple[float, float]:
    """Return drafted rows, and passes through the drafter's layers, per token of a packed row.

    Block drafters draft up to ``ttt.anchors`` blocks of a row; their few products over the context are not
    counted.
    """
    steps = config.ttt.steps
    if not is_parallel(drafter):
        return steps, 1 if config.drafter.kind == "medusa" else steps
    share = min(config.ttt.anchors / config.data.sequence_length, 1.0)
    drafts = drafter.max_steps or 1
    if drafter.first_everywhere:
        return 1 + share * (drafts - 1), 1 + share * drafter.block_rows
    return share * drafts, share * drafter.block_rows


def _parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


def count_target(folder: Path) -> tuple[int, int] | None:
    """Count all parameters, and those of embedding and LM head, from the file headers.

    Returns None if the files are unreadable or packed.
    """
    try:
        stored = read_headers(checkpoint_files(folder))
    except DataError as error:
        say(f"Warning: {error.message} ({folder}): a run would stop here; the target's size is unknown")
        return None
    if any(tensor.dtype not in FLOATS for tensor in stored.values()):
        return None
    sizes = {name: math.prod(tensor.shape) for name, tensor in stored.items()}
    ends = sum(size for name, size in sizes.items() if name in (*HEADS, *EMBEDDINGS))
    return sum(sizes.values()), ends


def flop_a_token(
    target_layers: int | None,
    drafter: Any,
    heads: dict[str, int],
    *,
    steps: float,
    passes: float,
    freeze: bool = False,
) -> dict[str, int]:
    """Estimate training operations per token: 2P (target), 6DK (drafter), d(4RK + 2V) (logits).

    A trained head takes 6RK; a frozen drafter has no backward pass.

    Args:
        target_layers: P; None if unknown, 0 if the states come from a cache.
        heads: parameters of each draft head.
        steps: K, drafted rows per token.
        passes: K, or 1 if every draft step has its own parameters.
    """
    own, (rows, hidden) = drafter.has_own_head, drafter.head_rows(0).shape
    lm_heads = (drafter.max_steps if drafter.heads_differ else 1) if own else 0
    body = _parameters(drafter) - lm_heads * rows * hidden
    head = 2 if freeze else 6 if own else 4
    flops = {} if target_layers is None else {"target": 2 * target_layers}
    flops["drafter"] = round((2 if freeze else 6) * body * passes)
    flops["vocabulary"] = round(hidden * (head * rows * steps + 2 * drafter.config.vocab_size))
    for name, size in heads.items():
        flops[name] = round(6 * size * steps)
    return flops | {"total": sum(flops.values())}


def trained_state(parameters: int, weights: str, muon: int = 0) -> dict[str, int]:
    """Return the bytes of weights (``fp32``, or ``bf16`` with fp32 masters), gradients, moments and total.

    AdamW has two moments per parameter; ``muon`` parameters have one.
    """
    low = weights == "bf16"
    sizes = {
        "weights": 2 if low else 4,
        "gradients": 2 if low else 4,
        "moments": 8,
        "masters": 4 if low else 0,
    }
    state = {name: size * parameters for name, size in sizes.items()}
    state["moments"] -= 4 * muon
    return state | {"total": sum(state.values())}


def share_of_state(state: dict[str, int], processes: int, divided: int) -> int:
    """Return the bytes of a trained state per process; ``divided`` is the ZeRO stage (DDP: 0, FSDP2: 3)."""
    stages = {"moments": 1, "masters": 1, "gradients": 2, "weights": 3}
    return sum(
        -(-state[name] // processes) if divided >= stage else state[name] for name, stage in stages.items()
    )


def loss_workspace(impl: str, chunk_mb: int, rows: int, columns: int, loss: Mixture = KL) -> int:
    """Return the workspace in bytes of the vocabulary loss, for drafted rows over the rows of both heads."""
    chunk, naive = chunk_mb << 20, naive_bytes(rows, columns, loss)
    return {"naive": naive, "fused": chunk}.get(impl, min(chunk, naive))


def planned_data(config: TrainConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """Return the numbers of inputs, or the prepared rows and epochs.

    Raises:
        DataError: an input is missing.
        ArtifactError: the prepared data cannot be opened.
        MismatchError: the data were prepared with another tokenizer.
    """
    data = config.data
    if data.prepared is None:
        heldout = len(expand_paths(data.heldout)) if data.heldout else 0
        return {"inputs": len(expand_paths(data.train)), "heldout_inputs": heldout}
    prepared = load_prepared(data.prepared, verify=False)
    check_belongs(prepared, tokenizer)
    figures, rows = prepared.figures["train"], len(prepared.train)
    return {
        "rows": rows,
        "heldout_rows": len(prepared.heldout),
        "tokens": figures["tokens"],
        "learnt_tokens": figures["counted"],
        "epochs": round(config.optim.over(rows).steps * config.optim.batch_size / rows, 3),
    }
