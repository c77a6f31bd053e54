"""The exact heads (full and static), and code shared by all heads: normalisation, order, checks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ...core.errors import MismatchError, UsageError
from ...ops.draft_topk import draft_topk
from ...ops.few_rows import linear
from ...ops.ordering import topk_by_id, topk_lowest_id
from ..target.logits import IDENTITY, LogitTransform
from . import on_ops as head_ops
from .interface import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes, full_ids


class HeadModule(nn.Module):
    """Defaults of draft heads; see :class:`.interface.DraftHead`."""

    context_size, by_step, static_shapes = 0, False, True

    @classmethod
    def new_module(cls, sizes: HeadSizes) -> nn.Module | None:
        """Return None: nothing is trained."""
        return None


class ShortlistHead(HeadModule):
    """A head that scores a shortlist of the tokens, on the ops if ``on_ops`` is set and they support the sizes."""

    on_ops: bool

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        if self.on_ops and head_ops.fits(hidden, k, requests_of(state)):

            def best(some: Tensor, state: DraftState | None) -> tuple[Tensor, Tensor]:
                logits, rows, target_ids = self.logits_on_ops(some, k, state)
                return draft_topk(logits, k, ids=rows, target_ids=target_ids)

            first, second = head_ops.in_parts(best, hidden, state)
            return first, second
        return answer(*self._scored(hidden, k, state), k)

    @abstractmethod
    def logits_on_ops(
        self, hidden: Tensor, k: int, state: DraftState | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute logits (N, C) fp32, the rows of the columns, (C,) or (N, C), -1 for none, and the rows' ids (R,)."""

    @abstractmethod
    def _scored(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        """Compute logits (N, C) fp32 and their ids, (C,) or (N, C), in any order."""


class FullHead(HeadModule):
    """The whole LM head (V, H), as a module so that compiled passes treat its weight as a constant."""

    KIND = "full"

    weight: Tensor
    target_ids: Tensor

    def __init__(self, weight: Tensor, ops: bool | None = None, transform: LogitTransform = IDENTITY) -> None:
        super().__init__()
        self.transform = transform
        self.on_ops = head_ops.chosen(weight, ops)
        self.register_buffer("weight", weight.detach(), persistent=False)
        self.register_buffer("target_ids", full_ids(weight), persistent=False)
        self.size = int(weight.shape[0])

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ())
        if len(base.weight) != len(base.embedding):
            raise MismatchError(
                "this drafter's head does not score the whole vocabulary",
                got=f"{len(base.weight):,} rows of {len(base.embedding):,}",
                expected="a static head over them",
            )
        return cls(base.weight, options.ops, base.transform)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        logits = self.logits(hidden)
        if self.on_ops and k <= head_ops.MOST_K:
            return draft_topk(logits, k)
        values, places = topk_lowest_id(logits := logits.float(), k)
        return normalised(values, logits), places

    def best(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden).argmax(-1, keepdim=True)

    def table(self) -> tuple[Tensor, Tensor | None] | None:
        """Return rows (R, H) whose products with a state have the order of its scores, and their ids (R,).

        The ids are None for 0 .. R-1. The result is None for heads with a transform, which have no such rows.
        """
        if self.transform != IDENTITY:
            return None
        return self.weight, None if self.KIND == "full" else self.target_ids

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self.logits(hidden).float(), self.target_ids  # (N, V), (V,)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self.logits(hidden).float().log_softmax(-1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits: (N, H) -> (N, R) in the head's dtype."""
        return self.transform(linear(hidden, self.weight))


class StaticHead(FullHead):
    """A fixed subset of head rows (FR-Spec, VocabTrim, EAGLE-3's reduced vocabulary).

    Args:
        weight: (R, H); row j scores ``target_ids[j]``.
        target_ids: (R,) int64, ascending so that ties go to the lower target id.
    """

    KIND = "static"

    def __init__(
        self,
        weight: Tensor,
        target_ids: Tensor,
        ops: bool | None = None,
        transform: LogitTransform = IDENTITY,
    ) -> None:
        super().__init__(weight, ops, transform)
        self.target_ids = target_ids

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ())
        return cls(base.weight, base.target_ids, options.ops, base.transform)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        if self.on_ops and k <= head_ops.MOST_K:
            return draft_topk(self.logits(hidden), k, target_ids=self.target_ids)
        logprobs, rows = super().topk(hidden, k)
        return logprobs, self.target_ids[rows]

    def best(self, hidden: Tensor) -> Tensor:
        return self.target_ids[super().best(hidden)]


class HeadsByStep(HeadModule):
    """An exact head per draft step, for Medusa heads with separate LM heads.

    Args:
        heads: heads of draft steps 0, 1, ..., over the same tokens.
    """

    by_step = True

    def __init__(self, heads: Sequence[FullHead]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.size = heads[0].size

    @property
    def target_ids(self) -> Tensor:
        return self._head(0).target_ids

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self._head(state).topk(hidden, k, state)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        return self._head(state).scores(hidden, k, state)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        return self._head(state).log_probs(hidden, state)

    def _head(self, state: DraftState | int | None) -> FullHead:
        assert state is not None
        head = self.heads[state.step if isinstance(state, DraftState) else state]
        assert isinstance(head, FullHead)
        return head


def answer(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Compute ``DraftHead.topk`` from scores (N, C) fp32 with ids (C,) or (N, C) in any order."""
    values, chosen = topk_by_id(logits, ids, k)
    return normalised(values, logits), chosen


def normalised(values: Tensor, logits: Tensor) -> Tensor:
    """Compute the log-probabilities of some of the logits (N, C).

    Values above 0 (by rounding) become 0 and NaN (from a damaged state) becomes -inf; otherwise the score of
    a child could exceed its parent's.
    """
    log_probs = (values - logits.logsumexp(-1, keepdim=True)).clamp(max=0.0)
    return log_probs.nan_to_num(nan=float("-inf"), neginf=float("-inf"))


def requests_of(state: DraftState | None) -> int:
    """Return the number of requests that the rows belong to."""
    return 1 if state is None else state.requests


def masked(logits: Tensor, shortlist: Tensor) -> Tensor:
    """Compute dense log-probabilities (N, R) over shortlists, bool (N, R)."""
    return logits.masked_fill(~shortlist, float("-inf")).log_softmax(-1)


def check_width(what: str, width: int, base: HeadBase) -> None:
    """Check that the hidden size of a trained part is H.

    Raises:
        MismatchError: it is not.
    """
    if width != base.weight.shape[1]:
        raise MismatchError(
            f"the {what} does not fit the drafter",
            got=f"hidden size {width}",
            expected=f"hidden size {base.weight.shape[1]}",
        )


def refuse_options(kind: str, options: HeadOptions, known: Sequence[str]) -> None:
    """Check that only options of this kind of head are set.

    Raises:
        UsageError: an option is set that is not among ``known``.
    """
    given: dict[str, Any] = {name: value for name, value in vars(options).items() if value is not None}
    unknown = [name for name in given if name not in (*known, "ops")]  # every kind accepts "ops"
    if unknown:
        raise UsageError(
            f"a {kind} head has no such setting",
            got=", ".join(f"{name} {_short(given[name])}" for name in unknown),
            expected=", ".join(known) or "none",
        )


def _short(value: object) -> str:
    return f"{len(value):,} values" if isinstance(value, tuple) and len(value) > 8 else str(value)
