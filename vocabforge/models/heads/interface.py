"""What draft heads are made of and asked: the drafting state, the rows below a head, sizes and options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ...core.errors import ArtifactError
from ..target.logits import IDENTITY, LogitTransform


@dataclass(frozen=True)
class DraftState:
    """What the drafter was fed in the step whose output the head scores; one row a hidden row.

    Attributes:
        step: draft step t, from 0.
        tokens: (N,) int64 tokens fed (the last committed token at step 0).
        previous: (N, H) hidden states fed: ``fuse(features)`` at step 0, the drafter's own g later.
        requests: B requests, N / B rows of each, one after the other; they share nothing.
        context: (B, C) int64 distinct tokens of each request's text, padded with -1; None if no head asks for it.
        prepared: what :class:`PreparesSteps` computed of this step ahead.
    """

    step: int
    tokens: Tensor
    previous: Tensor
    requests: int = 1
    context: Tensor | None = None
    prepared: Any = None

    def part(self, rows: slice) -> DraftState:
        """Some of the rows of one request."""
        return DraftState(self.step, self.tokens[rows], self.previous[rows], 1, self.context)

    def of_requests(self, first: int, last: int) -> DraftState:
        """The rows of the requests from ``first`` to before ``last``; nothing of them is prepared."""
        each = len(self.tokens) // self.requests
        rows = slice(first * each, last * each)
        context = None if self.context is None else self.context[first:last]
        return DraftState(self.step, self.tokens[rows], self.previous[rows], last - first, context)


@dataclass(frozen=True)
class HeadBase:
    """The exact head that a draft head answers for.

    Attributes:
        weight: (R, H) rows of the drafter's head, its own or the target's (R = V).
        target_ids: (R,) int64 ascending target ids of the rows.
        embedding: (V, H) the target's input embedding.
        transform: what the model whose rows these are does to their logits.
        autoregressive: a draft step is fed what the step before drafted; false for Medusa and block drafters.
    """

    weight: Tensor
    target_ids: Tensor
    embedding: Tensor
    transform: LogitTransform = IDENTITY
    autoregressive: bool = True


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a trainable draft head; those that a kind does not have are None.

    Attributes:
        vocab_size: ids that the head knows: rows of the target's LM head; for a router ids of the tokenizer.
        rank: d' of a ranker or a low-rank head.
        clusters: M of a router; ``width`` and ``depth`` of its MLP.
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
    def from_dict(cls, values: Mapping[str, Any], *, source: object) -> HeadSizes:
        """Read back what :meth:`to_dict` wrote.

        Raises:
            ArtifactError: a size is missing, unknown or no positive number.
        """
        from pydantic import TypeAdapter  # GPU checks run without it

        try:
            sizes = TypeAdapter(cls).validate_json(json.dumps(values))
            if any(size is not None and size < 1 for size in astuple(sizes)):
                raise ValueError("a size is not positive")
            return sizes
        except ValueError as error:
            raise ArtifactError(
                "the draft head's sizes cannot be read",
                got=values,
                expected=f"{', '.join(one.name for one in fields(cls))}: null or a positive number, hidden_size and "
                "vocab_size never null",
                source=source,
            ) from error


@dataclass(frozen=True)
class HeadOptions:
    """How a head is used; None takes the kind's default.

    Attributes:
        shortlist: candidates a ranker hands to the LM head (2048), or the tail of a hybrid head (512).
        budgets: clusters that a router may open at draft step 0, 1, ...; the last holds for deeper steps. The default
            is ``router.default_budgets``.
        rows: ``own``: each row keeps its own shortlist (a ranker's default); ``shared``: one union for the rows of a
            request (a router's default).
        ranked: target ids of a draft vocabulary in rank order: all that a scheduled head scores, the hot core of
            a context or hybrid head.
        schedule: B(0), B(1), ...: draft step t of a scheduled head may use the first B(t) of ``ranked``.
        context: tokens of the request's text that a context head reads, or a hybrid one without a ranker.
        fp8: a ranker's scorer is read in float8_e4m3fn, one scale a token; candidates change a little, logits do not.
        ops: ``topk`` on the ops, in the form that a CUDA graph can capture; None: if the weights are on CUDA.
        fused: a ranker with own rows answers in one op, on the ops (``ops/ranker_topk.py``): a few candidates more,
            never fewer. None: no, until a GPU has measured both forms.
    """

    shortlist: int | None = None
    budgets: tuple[int, ...] | None = None
    rows: Literal["own", "shared"] | None = None
    ranked: tuple[int, ...] | None = None
    schedule: tuple[int, ...] | None = None
    context: int | None = None
    fp8: bool | None = None
    ops: bool | None = None
    fused: bool | None = None


class DraftHead(Protocol):
    """For N hidden rows, the top-k log-probabilities and target ids.

    Attributes:
        size: tokens it can propose; ``target_ids`` (size,) int64 ascending.
        context_size: most tokens C of the request's text that it reads from ``DraftState.context``; 0: none.
        by_step: its answer depends on ``DraftState.step``, so rows of several steps need a call each.

    With ``static_shapes`` true :meth:`topk` reads nothing on the host and its shapes depend on its arguments' shapes
    alone: it can be compiled or captured. On the ops that holds for up to 64 tokens, and up to 64 rows of a request.
    A head may have ``best``, (N, H) -> (N, 1): the ids of ``topk`` without probabilities, for chains.
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
        """The k best tokens of each row, best first, ties to the lower id.

        A shortlist of fewer than k tokens is widened, so that every answer is a token with a probability.

        Args:
            hidden: (N, H) normed hidden rows of one draft step.
            k: at most ``size``.
            state: what was fed in this step; some kinds need it.

        Returns:
            log-probabilities (N, k) fp32, normalised over the row's shortlist, and target ids (N, k) int64.
        """
        ...

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        """What :meth:`topk` chooses from.

        Returns:
            logits (N, C) fp32, -inf outside the row's shortlist, at least k of them finite; and their target ids,
            ascending, (C,) if rows share them or (N, C), each once but for padding.
        """
        ...

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        """The same, plain and dense: (N, H) -> (N, size) fp32, -inf outside a row's shortlist; rows share nothing."""
        ...


@runtime_checkable
class PreparesSteps(Protocol):
    """A head that can begin with what the drafter is fed, before the drafter's own pass."""

    def prepare(self, state: DraftState) -> DraftState:
        """The same state with ``prepared`` filled; on a GPU its work runs beside what is launched next.

        The state goes to :meth:`DraftHead.topk` once, in the same stream and capture.
        """
        ...


@runtime_checkable
class ScoresSome(Protocol):
    """A head that scores fewer tokens than it can propose."""

    def scored(self, step: int) -> int:
        """Tokens that get a logit at draft step ``step``, for one row; a router's mean over its clusters."""
        ...


class DraftHeadKind(Protocol):
    """What a row of the table ``HEADS`` names: a head's class; ``KIND`` is its name there."""

    KIND: str

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> nn.Module | None:
        """The trainable part with fresh weights; None if a kind has none.

        Its parameters are what an artefact holds; ``head_sizes``, a ``HeadSizes``, is what it is made from again.
        """
        ...

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        """A head over ``base``."""
        ...


def full_ids(weight: Tensor) -> Tensor:
    """(V,) ids of a head that has a row for every id."""
    return torch.arange(weight.shape[0], device=weight.device)
