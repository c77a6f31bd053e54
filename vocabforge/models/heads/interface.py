"""The interface of draft heads: the drafting state, the exact head, sizes and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..target.logits import IDENTITY, LogitTransform


@dataclass(frozen=True)
class DraftState:
    """The drafter's inputs in the step whose output the head scores, one row per hidden row.

    Attributes:
        step: draft step t, from 0.
        tokens: (N,) int64 input tokens (the last committed token at step 0).
        previous: (N, H) input states: ``fuse(features)`` at step 0, then the drafter's own g.
        requests: number B of requests, with N / B consecutive rows each; they share nothing.
        context: (B, C) int64 distinct tokens of each request's text, padded with -1; None if not needed.
        prepared: result that :class:`PreparesSteps` computed in advance for this step.
    """

    step: int
    tokens: Tensor
    previous: Tensor
    requests: int = 1
    context: Tensor | None = None
    prepared: Any = None

    def part(self, rows: slice) -> DraftState:
        """Return the state of some rows of a single request."""
        return DraftState(self.step, self.tokens[rows], self.previous[rows], 1, self.context)

    def of_requests(self, first: int, last: int) -> DraftState:
        """Return the state of the requests ``first`` .. ``last - 1``, without ``prepared``."""
        each = len(self.tokens) // self.requests
        rows = slice(first * each, last * each)
        context = None if self.context is None else self.context[first:last]
        return DraftState(self.step, self.tokens[rows], self.previous[rows], last - first, context)


@dataclass(frozen=True)
class HeadBase:
    """The exact head that a draft head approximates.

    Attributes:
        weight: (R, H) rows of the drafter's head, its own or the target's (R = V).
        target_ids: (R,) int64 ascending target ids of the rows.
        embedding: (V, H) the target's input embedding.
        transform: transform of the rows' logits.
        autoregressive: each draft step depends on the previous draft; false for Medusa and block drafters.
    """

    weight: Tensor
    target_ids: Tensor
    embedding: Tensor
    transform: LogitTransform = IDENTITY
    autoregressive: bool = True


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a trainable draft head; None for sizes that a kind does not have.

    Attributes:
        vocab_size: number of ids: rows of the target's LM head, or ids of the tokenizer for a router.
        rank: d' of a ranker or a low-rank head.
        clusters: M of a router.
        width, depth: sizes of a router's MLP.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    hidden_size: int
    vocab_size: int
    rank: int | None = None
    clusters: int | None = None
    width: int | None = None
    depth: int | None = None

    def to_dict(self) -> dict[str, int | None]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> HeadSizes:
        """Parse the output of :meth:`to_dict`.

        Raises:
            ValueError: a size is missing, unknown or not a positive integer.
        """
        from ...core.records import read_record  # imports pydantic, which GPU checks run without

        sizes = read_record(cls, values)
        if any(size is not None and size < 1 for size in astuple(sizes)):
            raise ValueError("a size is not positive")
        return sizes


@dataclass(frozen=True)
class HeadOptions:
    """Settings of a head; None for the kind's default.

    Attributes:
        shortlist: number of candidates that a ranker passes to the LM head (2048).
        budgets: clusters that a router selects at draft step 0, 1, ...; the last budget applies to deeper
            steps. The default is ``router.default_budgets``.
        rows: ``own`` for a separate shortlist per row (a ranker's default), ``shared`` for one union for the
            rows of a request (a router's default).
        ranked: target ids of a draft vocabulary in rank order: all tokens of a scheduled head, or the hot
            core of a context head.
        schedule: B(0), B(1), ...: draft step t of a scheduled head uses the first B(t) of ``ranked``.
        context: number of tokens of the request's text, for a context head.
        ops: run ``topk`` on the ops, which CUDA graphs can capture; None for true if the weights are on CUDA.
    """

    shortlist: int | None = None
    budgets: tuple[int, ...] | None = None
    rows: Literal["own", "shared"] | None = None
    ranked: tuple[int, ...] | None = None
    schedule: tuple[int, ...] | None = None
    context: int | None = None
    ops: bool | None = None


class DraftHead(Protocol):
    """A draft head: computes top-k log-probabilities and target ids for N hidden rows.

    Attributes:
        size: number of tokens that it can propose.
        target_ids: (size,) int64, ascending.
        context_size: maximum number C of tokens used from ``DraftState.context``; 0 for none.
        by_step: the result depends on ``DraftState.step``, so each step's rows need a separate call.

    If ``static_shapes`` is true, :meth:`topk` reads nothing on the host and its shapes depend only on the
    shapes of its arguments, so it can be compiled or captured. On the ops, this applies to up to 64 tokens
    and up to 64 rows per request. A head may have ``best``, (N, H) -> (N, 1): the ids of ``topk`` without
    probabilities, for chains.
    """

    @property
    def size(self) -> int: ...
    @property
    def context_size(self) -> int: ...
    @property
    def by_step(self) -> bool: ...
    @property
    def target_ids(self) -> Tensor: ...

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        """Return the k best tokens of each row, best first; ties go to the lower id.

        A shortlist of fewer than k tokens is extended, so that every returned token has a probability.

        Args:
            hidden: (N, H) normed hidden rows of one draft step.
            k: number of tokens, at most ``size``.
            state: inputs of this step; some kinds need it.

        Returns:
            log-probabilities (N, k) fp32, normalised over the row's shortlist, and target ids (N, k) int64.
        """
        ...

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        """Compute the scores from which :meth:`topk` chooses.

        Returns:
            logits (N, C) fp32, -inf outside the row's shortlist, at least k of them finite; and their target
            ids, ascending, (C,) if shared by all rows or (N, C), each once except padding.
        """
        ...

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        """Compute dense log-probabilities without the ops: (N, H) -> (N, size) fp32.

        They are -inf outside a row's shortlist, and rows share nothing.
        """
        ...


@runtime_checkable
class PreparesSteps(Protocol):
    """A head that can start from the drafter's inputs before the drafter's pass."""

    def prepare(self, state: DraftState) -> DraftState:
        """Return the state with ``prepared`` set; on a GPU, the work runs in parallel with later kernels.

        The state must be passed to :meth:`DraftHead.topk` once, in the same stream and capture.
        """
        ...


@runtime_checkable
class ScoresSome(Protocol):
    """A head that scores fewer tokens than it can propose."""

    def scored(self, step: int) -> int:
        """Return the number of tokens scored per row at draft step ``step``; for a router, the mean."""
        ...


class DraftHeadKind(Protocol):
    """The class of a head in the table ``HEADS``; ``KIND`` is its key."""

    KIND: str

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> nn.Module | None:
        """Create the untrained trainable part; None if a kind has none.

        Artefacts store its parameters and its ``head_sizes``, a ``HeadSizes`` from which it is created again.
        """
        ...

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        """Create a head over ``base``."""
        ...


def full_ids(weight: Tensor) -> Tensor:
    """Return the ids (V,) of a head with a row for every id."""
    return torch.arange(weight.shape[0], device=weight.device)
