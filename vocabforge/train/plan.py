"""What a configuration would do and take, without loading weights or data.

A multiply-add is two operations. Attention, activations and evaluations are not counted: they depend on rows and
device, and ``vocabforge bench training`` measures them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.artifact import open_artifact
from ..core.distributed import Group, rank, world_size
from ..core.errors import DataError
from ..core.progress import say
from ..corpus.inputs import PACKED_SUFFIXES, expand_paths, kind_of
from ..corpus.prepared import check_belongs, load_prepared
from ..corpus.tokenizer import TextTokenizer
from ..models.checkpoint import FLOATS, checkpoint_files, read_headers
from ..models.device import choose_device
from ..models.drafter_io import check_target
from ..models.drafters import new_drafter
from ..models.fingerprint import target_fingerprint
from ..models.head_rows import EMBEDDINGS, HEADS
from ..models.target_load import dtype_of
from .config import TrainConfig
from .data import divide
from .draft_heads import head_name, make_heads
from .keeping import HELDOUT_PROMPTS
from .setup import read_basis, step_settings
from .strategy import wanted_strategy
from .strategy_deepspeed import deepspeed_config
from .vocab_loss import naive_bytes


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
        candidates=config.memory.candidates,
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


_MIB = 1 << 20


@dataclass(frozen=True)
class TargetCount:
    """Parameters of a target: all, those of embedding and LM head, and those of its layers."""

    total: int
    ends: int

    @property
    def layers(self) -> int:
        """P: what a token passes through below the LM head."""
        return self.total - self.ends


@dataclass(frozen=True)
class Work:
    """What a token is worked through.

    Attributes:
        steps: K, draft steps of the unroll.
        passes: times that a drafter's parameters are used for a token: K, or 1 where every draft step has its own.
        hidden: d.
        teacher_rows: V, rows of the target's head.
        draft_rows: R, rows of the head that the drafter is read by.
        own_head: that head is the drafter's, and trained with it.
        freeze: the drafter is run, not trained.
        candidates: C, tokens that the vocabulary losses are estimated on; None for all.
    """

    steps: int
    passes: int
    hidden: int
    teacher_rows: int
    draft_rows: int
    own_head: bool
    freeze: bool
    candidates: int | None

    @property
    def columns(self) -> int:
        """Rows of both heads that a step computes."""
        return self.rows(self.teacher_rows) + self.rows(self.draft_rows)

    def rows(self, of: int) -> int:
        """Rows of a head that a step computes."""
        return of if self.candidates is None else min(of, self.candidates)


def count_target(folder: Path) -> TargetCount | None:
    """Parameters by the headers of the weight files; None, said, where they cannot be read or are packed."""
    try:
        stored = read_headers(checkpoint_files(folder))
    except DataError as error:
        say(f"Warning: {error.message} ({folder}): a run would stop here; the target's size is not known")
        return None
    if any(tensor.dtype not in FLOATS for tensor in stored.values()):
        return None
    sizes = {name: math.prod(tensor.shape) for name, tensor in stored.items()}
    ends = sum(size for name, size in sizes.items() if name in (*HEADS, *EMBEDDINGS))
    return TargetCount(sum(sizes.values()), ends)


def flop_a_token(
    target_layers: int | None, drafter: int, heads: dict[str, int], work: Work
) -> dict[str, int]:
    """Operations of training for one token, if every token counts.

    2P for the target's forward pass, 6DK for forward and backward pass of a drafter of D parameters over K steps, and
    d(4RK + 2V) for the logits of teacher and drafter (6RK where the head is trained). A frozen drafter has no
    backward pass.

    Args:
        target_layers: P; None leaves the target out (not known), 0 where its states come from a cache.
        drafter: D, parameters without its head.
        heads: parameters of each draft head.
    """
    each = 2 if work.freeze else 6
    head = 2 if work.freeze else 6 if work.own_head else 4
    teacher, draft = work.rows(work.teacher_rows), work.rows(work.draft_rows)
    found = {} if target_layers is None else {"target": 2 * target_layers}
    found["drafter"] = each * drafter * work.passes
    found["vocabulary"] = work.hidden * (head * draft * work.steps + 2 * teacher)
    for name, size in heads.items():  # d' (V + d) parameters, of which d' (C + d) are used
        used = size * (teacher + work.hidden) // (work.teacher_rows + work.hidden)
        found[name] = 6 * used * work.steps
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
    """Files that are not tokenised yet; of plain ones their size tells roughly how often they would be seen."""
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
    """Say that rows would be seen too often, or not all of them, and what to set."""
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
