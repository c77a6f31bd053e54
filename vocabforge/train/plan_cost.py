"""What a run takes, by arithmetic: parameters, bytes a process, operations a token.

A multiply-add is two operations. Attention, activations and evaluations are not counted: they depend on rows and
device, and ``vocabforge bench training`` measures them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import DataError
from ..core.progress import say
from ..models.checkpoint import FLOATS, checkpoint_files, read_headers
from ..models.head_rows import EMBEDDINGS, HEADS
from .vocab_loss import naive_bytes

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
    """

    steps: int
    passes: int
    hidden: int
    teacher_rows: int
    draft_rows: int
    own_head: bool
    freeze: bool

    @property
    def columns(self) -> int:
        """Rows of both heads that a step computes."""
        return self.teacher_rows + self.draft_rows


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
    teacher, draft = work.teacher_rows, work.draft_rows
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
