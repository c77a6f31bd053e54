"""Sequence parallelism: N processes share the tokens of each packed row.

A process holds T / N consecutive tokens: their captured states, the drafter's activations of all K steps, and
the vocabulary loss of their rows. Only attention needs the whole row. For it, heads are exchanged for tokens
(Jacobs et al. 2023, "DeepSpeed Ulysses"): one all-to-all gives a process all T tokens of h / N heads, the
ordinary attention of the training-time test runs on them, and a second all-to-all returns the result. A row's
keys of steps 1..K stay with its token.

Row t of step k needs tokens up to t + 2 + k as inputs and labels, which may belong to another process. Every
process has the packed rows, so nothing is sent: a process reads K + 1 tokens after its own, the halo.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...core.distributed import Group
from ...core.errors import ConfigError, UsageError
from ...models.drafters.registry import drafter_class
from ...models.ttt.attention import HeadExchange
from ..config import TrainConfig

# (N, ...) -> (N, ...): sends part i to process i of the group; part i of the result is received from process
# i.
Swap = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TokenShard:
    """A process's tokens of packed rows (B, T).

    Attributes:
        tokens: slice of each row: the process's tokens and the halo after them, truncated at the end of the
            row.
        own: number of the process's tokens, T / N.
        document: (B, T) document numbers of the whole rows.
        exchange: head exchange with the other processes of these rows.
    """

    tokens: slice
    own: int
    document: Tensor
    exchange: HeadExchange


class UlyssesExchange:
    """Implements :class:`~vocabforge.models.ttt.attention.HeadExchange` by all-to-all, with gradients.

    Args:
        swap: all-to-all of the group.
        size: N, a divisor of the number of query heads.
    """

    def __init__(self, swap: Swap, size: int) -> None:
        self._swap, self._size = swap, size

    def to_heads(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Repeat key heads if there are fewer than processes, or if N does not divide their number.
        copies = math.lcm(k.shape[1], self._size) // k.shape[1]
        if copies > 1:
            k, v = k.repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
        return self._exchange(q, True), self._exchange(k, True), self._exchange(v, True)

    def to_tokens(self, attended: Tensor) -> Tensor:
        return self._exchange(attended, False)

    def _exchange(self, x: Tensor, to_heads: bool) -> Tensor:
        made: Tensor = _AllToAll.apply(x, self._swap, self._size, to_heads)
        return made


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, swap: Swap, size: int, to_heads: bool) -> Tensor:
        ctx.way = swap, size, to_heads
        return _all_to_all(x, swap, size, to_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        swap, size, to_heads = ctx.way
        return _all_to_all(grad, swap, size, not to_heads), None, None, None


def _all_to_all(x: Tensor, swap: Swap, size: int, to_heads: bool) -> Tensor:
    """Exchange (B, h, T / N, D) -> (B, h / N, T, D), or the reverse."""
    divided, joined = (1, 2) if to_heads else (2, 1)
    parts = x.unflatten(divided, (size, -1)).movedim(divided, 0)  # (N, B, h / N, T / N, D)
    return swap(parts.contiguous()).movedim(0, joined).flatten(joined, joined + 1)


@dataclass(frozen=True)
class SequenceShare:
    """This process's share of each row, out of N shares."""

    rank: int
    size: int
    exchange: HeadExchange

    @classmethod
    def among(cls, group: Group, size: int) -> SequenceShare:
        """Join ``size`` consecutive ranks. Collective."""
        import torch.distributed as dist

        members = group.neighbours(size)

        def swap(parts: Tensor) -> Tensor:
            received = torch.empty_like(parts)
            dist.all_to_all_single(received, parts, group=members)
            return received

        return cls(group.rank % size, size, UlyssesExchange(swap, size))

    def shard(self, document: Tensor, steps: int) -> TokenShard:
        """Return this process's tokens of rows with document numbers (B, T), for K draft steps."""
        length = document.shape[1]
        own = length // self.size
        first = self.rank * own
        return TokenShard(slice(first, min(first + own + steps + 1, length)), own, document, self.exchange)


def check_sequence_parallel(config: TrainConfig, sizes: Any, strategy: str) -> None:
    """Check that a configuration supports ``run.sequence_parallel``.

    Args:
        sizes: sizes of the drafter.

    Raises:
        ConfigError: N does not divide the rows or heads.
        UsageError: the kind or strategy does not support sequence parallelism.
    """
    size = config.run.sequence_parallel
    if size == 1:
        return
    kind, length = config.drafter.kind, config.data.sequence_length
    if getattr(drafter_class(kind), "parallel", False):
        raise UsageError(
            f"a drafter of kind {kind} is not trained with sequence parallelism",
            got=f"run.sequence_parallel {size}",
            expected="1: its blocks attend to all of a row",
            remedy="leave run.sequence_parallel out, and lower data.sequence_length or ttt.anchors",
        )
    if strategy == "deepspeed":
        raise UsageError(
            "DeepSpeed does not go with run.sequence_parallel",
            got=f"run.sequence_parallel {size}",
            expected="DDP or FSDP2",
            remedy="launch with recipes/accelerate/multi_gpu.yaml or fsdp2.yaml",
        )
    heads = getattr(sizes, "num_heads", size)
    for what, number in (
        (f"data.sequence_length {length}", length),
        (f"{heads} heads of the drafter", heads),
    ):
        if number % size:
            raise ConfigError(
                "the processes of a row cannot share it evenly",
                got=f"{what}, run.sequence_parallel {size}",
                expected=f"a multiple of {size}",
                source="run.sequence_parallel",
                remedy=f"data.sequence_length={-(-length // size) * size}, or another run.sequence_parallel"
                if number is length
                else "a run.sequence_parallel that divides the heads",
            )
