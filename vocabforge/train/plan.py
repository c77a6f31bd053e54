"""What a configuration would do and take, without loading weights or data.

A multiply-add is two operations. Attention, activations and evaluations are not counted: they depend on rows and
device, and ``vocabforge bench training`` measures them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.artifact import open_artifact
from ..core.console import say
from ..core.distributed import Group, rank, world_size
from ..core.errors import DataError
from ..corpus.prepared.artifact import check_belongs, load_prepared
from ..corpus.sources.inputs import PACKED_SUFFIXES, expand_paths, kind_of
from ..corpus.tokenizer.tokenizer import TextTokenizer
from ..models.checkpoint import FLOATS, checkpoint_files, read_headers
from ..models.device import choose_device
from ..models.drafters.io import check_target
from ..models.drafters.registry import new_drafter
from ..models.target.fingerprint import target_fingerprint
from ..models.target.head_rows import EMBEDDINGS, HEADS
from ..models.target.load import dtype_of
from .config import TrainConfig
from .data import divide
from .heads.draft_heads import head_name, make_heads
from .loss.vocab import naive_bytes
from .parallel.deepspeed import deepspeed_config
from .parallel.strategy import wanted_strategy
from .resume import HELDOUT_PROMPTS
from .setup import read_basis, step_settings


def plan(config: TrainConfig) -> dict[str, Any]:
    """The resolved configuration and what would be done, without loading weights or data.

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
    meta = torch.empty(sizes.vocab_size, sizes.hidden_size, device="meta")
    rows = sizes.draft_vocab_size
    with torch.device("meta"):
        ids = None if rows is None else torch.empty(rows, dtype=torch.int64)
        drafter: Any = new_drafter(config.drafter.kind, sizes, meta, meta, ids)
        made = make_heads(config.heads, meta, seed=0)
    division = divide(config.optim, group.rank, group.size)
    parameters = _parameters(drafter)
    heads = {name: _parameters(head) for name, head in made.items()}
    target = count_target(config.target)
    files = ["drafter", "best", "checkpoints", "metrics.jsonl", "report.html", HELDOUT_PROMPTS]
    files += [f"heads/{head_name(name)}" for name in heads]
    return {
        "config": config.model_dump(mode="json"),
        "target": {
            "path": str(config.target),
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
        "loss": {"settings": dataclasses.asdict(step_settings(config)), "steps": config.ttt.steps},
        "device": str(choose_device(config.run.device)),
        "processes": group.size,
        "strategy": wanted_strategy(config.run.strategy, group),
        "rows_per_process": {"a step": division.share, "a forward pass": division.micro},
        **_costs(config, group, target, drafter, heads),
        "writes": [str(config.output / name) for name in files],
    }


def _costs(
    config: TrainConfig, group: Group, target: tuple[int, int] | None, drafter: Any, heads: dict[str, int]
) -> dict[str, Any]:
    # Tokens, bytes and operations. ``target`` is of count_target, ``heads`` holds their parameters.
    parameters, freeze, steps = _parameters(drafter), config.drafter.freeze, config.ttt.steps
    frozen = parameters if freeze else 0
    state = trained_state(parameters - frozen + sum(heads.values()), config.memory.weights)
    strategy = wanted_strategy(config.run.strategy, group)
    divided = 3 if strategy == "fsdp" else 0  # as ZeRO's stages count
    if strategy == "deepspeed":
        divided = int(deepspeed_config(config, group.size)["zero_optimization"]["stage"])
    (rows, hidden), own = drafter.head_weight.shape, drafter.config.draft_vocab_size is not None
    vocab = drafter.config.vocab_size
    row = config.data.sequence_length
    drafted = divide(config.optim, group.rank, group.size).micro * row * steps
    cached = config.capture.cache is not None  # then only embedding and LM head are loaded, and no layer runs
    held = None
    if target is not None:
        dtype = dtype_of(config.target, config.capture.dtype, choose_device(config.run.device))
        size = target[1] if cached and not config.run.live.load_target else target[0]
        held = size * dtype.itemsize // (group.size if config.capture.tp_plan else 1)
    memory = {
        "target": held,  # in one process, on all its devices under capture.device_map
        "trained_state": share_of_state(state, group.size, divided),
        "frozen_drafter": 4 * frozen,
        "loss_workspace": loss_workspace(config.memory.loss, config.memory.chunk_mb, drafted, vocab + rows),
    }
    flop = flop_a_token(
        0 if cached else None if target is None else target[0] - target[1],
        parameters - (rows * hidden if own else 0),
        heads,
        steps=steps,
        passes=1 if config.drafter.kind == "medusa" else steps,
        hidden=hidden,
        teacher_rows=vocab,
        draft_rows=rows,
        own_head=own,
        freeze=freeze,
    )
    tokens = config.optim.batch_size * row
    return {
        "tokens_a_step": tokens,
        "tokens_at_most": config.optim.steps * tokens,
        "trained_state_bytes": state,
        "memory_bytes_a_process": memory | {"total": sum(size or 0 for size in memory.values())},
        "flop_a_token": flop,
        "flop_at_most": config.optim.steps * tokens * flop["total"],
    }


def _parameters(module: Any) -> int:
    return sum(p.numel() for p in module.parameters())


_MIB = 1 << 20


def count_target(folder: Path) -> tuple[int, int] | None:
    """Parameters by the headers of the weight files, and those of embedding and LM head among them.

    None, with a warning, if they cannot be read or are packed.
    """
    try:
        stored = read_headers(checkpoint_files(folder))
    except DataError as error:
        say(f"Warning: {error.message} ({folder}): a run would stop here; the target's size is not known")
        return None
    if any(tensor.dtype not in FLOATS for tensor in stored.values()):
        return None
    sizes = {name: math.prod(tensor.shape) for name, tensor in stored.items()}
    ends = sum(size for name, size in sizes.items() if name in (*HEADS, *EMBEDDINGS))
    return sum(sizes.values()), ends


def flop_a_token(
    target_layers: int | None,
    drafter: int,
    heads: dict[str, int],
    *,
    steps: int,
    passes: int,
    hidden: int,
    teacher_rows: int,
    draft_rows: int,
    own_head: bool,
    freeze: bool,
) -> dict[str, int]:
    """Operations of training for one token, if every token counts.

    2P for the target's forward pass, 6DK for forward and backward pass of a drafter of D parameters over K steps, and
    d(4RK + 2V) for the logits of teacher and drafter (6RK if the head is trained). A frozen drafter has no
    backward pass.

    Args:
        target_layers: P; None leaves the target out (not known), 0 if its states come from a cache.
        drafter: D, parameters without its head. heads: parameters of each draft head.
        steps: K, draft steps of the unroll.
        passes: times that a drafter's parameters are used for a token: K, or 1 if every draft step has its own.
        hidden: d. teacher_rows: V, of the target's head. draft_rows: R, of the head that the drafter is read by.
        own_head: that head is the drafter's, and trained with it. freeze: the drafter is run, not trained.
    """
    each = 2 if freeze else 6
    head = 2 if freeze else 6 if own_head else 4
    found = {} if target_layers is None else {"target": 2 * target_layers}
    found["drafter"] = each * drafter * passes
    found["vocabulary"] = hidden * (head * draft_rows * steps + 2 * teacher_rows)
    for name, size in heads.items():
        found[name] = 6 * size * steps
    return found | {"total": sum(found.values())}


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


def share_of_state(state: dict[str, int], processes: int, divided: int) -> int:
    """Bytes of a trained state that one process holds.

    Args:
        divided: 0 for none of it (DDP), 1 for moments and masters, 2 for gradients too, 3 for weights too (ZeRO's
            stages).
    """
    order = ("moments", "masters"), ("gradients",), ("weights",)
    shared = [name for names in order[:divided] for name in names]
    return sum(
        -(-state[name] // processes) if name in shared else state[name]
        for name in ("weights", "gradients", "moments", "masters")
    )


def loss_workspace(impl: str, chunk_mb: int, rows: int, columns: int) -> int:
    """Bytes that the vocabulary loss works in.

    Args:
        impl, chunk_mb: of ``memory``.
        rows: M, drafted rows of a forward pass: those of all draft steps.
        columns: rows of both heads together, drafter's and target's.
    """
    chunk, naive = chunk_mb * _MIB, naive_bytes(rows, columns)
    return {"naive": naive, "fused": chunk}.get(impl, min(chunk, naive))


MANY_EPOCHS = 100
_BYTES_A_TOKEN = 4  # of English text in a vocabulary of today, roughly


def planned_data(config: TrainConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """The inputs that are there, or the prepared rows; it is said when they would be seen too often, or not all.

    Raises:
        DataError: an input is missing.
        ArtifactError: the prepared data cannot be opened.
        MismatchError: they are of another tokenizer.
    """
    if config.data.prepared is None:
        return _of_inputs(config)
    prepared = load_prepared(config.data.prepared, verify=False)
    check_belongs(prepared, tokenizer)
    figures, rows = prepared.figures["train"], len(prepared.train)
    epochs = config.optim.steps * config.optim.batch_size / rows
    _tell(epochs, f"the {rows:,} packed rows", config, about="")
    return {
        "rows": rows,
        "heldout_rows": len(prepared.heldout),
        "tokens": figures["tokens"],
        "counted_tokens": figures["counted"],
        "epochs": round(epochs, 3),
    }


def _of_inputs(config: TrainConfig) -> dict[str, Any]:
    heldout = expand_paths(config.data.heldout) if config.data.heldout else []
    train = expand_paths(config.data.train)
    size = _plain_bytes(train)
    found: dict[str, Any] = {"inputs": len(train), "heldout_inputs": len(heldout), "input_bytes": size}
    found["epochs_about"] = None
    if size:
        tokens = config.optim.steps * config.optim.batch_size * config.data.sequence_length
        epochs = float(f"{tokens * _BYTES_A_TOKEN / size:.2g}")  # no more is known
        _tell(epochs, f"the conversations or texts ({size / 1e6:,.1f} MB)", config, about="about ")
        found["epochs_about"] = epochs
    return found


def _plain_bytes(files: Sequence[Path]) -> int | None:
    """Bytes of files of text; None where one is compressed or elsewhere, so that its size says little."""
    if any(kind_of(file) in ("hub", "parquet") or file.suffix.lower() in PACKED_SUFFIXES for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def _tell(epochs: float, what: str, config: TrainConfig, *, about: str) -> None:
    steps, batch = config.optim.steps, config.optim.batch_size
    if epochs > MANY_EPOCHS:
        fewer = max(1, int(MANY_EPOCHS * steps / epochs))
        say(
            f"Warning: each of {what} would be seen {about}{epochs:,.0f} times ({steps:,} steps of {batch:,} "
            f"rows): prepare more data, or take fewer steps (optim.steps={fewer} is {about}{MANY_EPOCHS} times)"
        )
    elif epochs < 1:
        whole = math.ceil(steps / epochs)
        say(
            f"Warning: not all of {what} would be seen, only {about}{100 * epochs:.2g}% of them ({steps:,} steps of "
            f"{batch:,} rows): optim.steps={whole} sees each {about}once"
        )
