"""The context head (after NanoSpec): a hot core of rows, and the tokens of the request's text.

The core is one dense product over a slab of rows; the text's rows are gathered per request with static
shapes. They are outside the core, so no token is scored twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import MismatchError, UsageError
from ...ops.few_rows import linear
from ...ops.indexed_logits import indexed_logits
from . import on_ops as head_ops
from .exact import ShortlistHead, masked, refuse_options
from .interface import DraftHead, DraftState, HeadBase, HeadOptions
from .on_ops import of_rows

MOST_TOKENS = 2999  # NanoSpec scores fewer than 3,000 in total
LEAST_CONTEXT = 256


class ContextHead(ShortlistHead):
    """A hot core and the text's tokens: a text is likely to reuse its own (NanoSpec; docs/methods.md, Draft heads).

    Args:
        ranked: target ids of the hot core, in rank order; ids without a head row are dropped.
        context: number of tokens of the text, the most recent ones; None for ``MOST_TOKENS`` minus the core.
        ops: see ``HeadOptions.ops``.

    Attributes:
        core: (C, H) contiguous copy of the core's rows.
        core_rows: (C,) int32 head rows of the core, ascending.
        outside: (R - C,) int32 the other head rows, ascending.
        inside: bool (R,), whether each head row is in the core.
        others: (V + 1,) int32 head row of each id outside the core, else -1; the last is for invalid ids.

    Raises:
        MismatchError: the exact head has no row for any of the core's ids.
        UsageError: ``context`` is outside 1 to V.
    """

    KIND = "context"
    weight: Tensor
    target_ids: Tensor
    core: Tensor
    core_rows: Tensor
    outside: Tensor
    inside: Tensor
    others: Tensor

    def __init__(
        self, base: HeadBase, ranked: Sequence[int], context: int | None = None, ops: bool | None = None
    ) -> None:
        super().__init__()
        vocab_size = len(base.embedding)
        if context is None:
            context = min(max(MOST_TOKENS - len(ranked), LEAST_CONTEXT), vocab_size)
        if not 1 <= context <= vocab_size:
            raise UsageError(
                "the context of a draft head does not suit the vocabulary",
                got=f"{context:,} tokens of the text",
                expected=f"1 to {vocab_size:,}",
            )
        ids, device = base.target_ids, base.target_ids.device
        rows = rows_of(base, ranked)[0].sort().values
        inside = torch.zeros(len(ids), dtype=torch.bool, device=device)
        inside[rows] = True
        known = max(vocab_size, int(ids[-1]) + 1)
        others = torch.full((known + 1,), -1, dtype=torch.int32, device=device)
        others[ids] = torch.arange(len(ids), dtype=torch.int32, device=device)
        others[ids[rows]] = -1
        weight = base.weight.detach()
        parts = {"weight": weight, "target_ids": ids, "core": weight[rows], "core_rows": rows.int()}
        parts |= {"outside": (~inside).nonzero()[:, 0].int(), "inside": inside, "others": others}
        for name, tensor in parts.items():
            self.register_buffer(name, tensor, persistent=False)
        self.transform, self.on_ops = base.transform, head_ops.chosen(base.weight, ops)
        self.size, self.core_size, self.context_size = len(ids), len(rows), context

    @classmethod
    def build(cls, base: HeadBase, module: nn.Module | None, options: HeadOptions) -> DraftHead:
        refuse_options(cls.KIND, options, ("ranked", "context"))
        return cls(base, ranked_ids(cls.KIND, options.ranked), options.context, options.ops)

    def scored(self, step: int) -> int:
        return min(self.core_size + self.context_size, self.size)

    def logits_on_ops(
        self, hidden: Tensor, k: int, state: DraftState | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        spare, text = self._spare_and_text(k, state)
        parts = [linear(hidden, self.core).float()]
        rows = [self.core_rows]
        if len(spare):
            parts.append(linear(hidden, self.weight[spare]).float())
            rows.append(spare)
        if len(text) == len(hidden) > 1:
            parts.append(indexed_logits(hidden, self.weight, text))
            columns = torch.cat([*(part.expand(len(text), -1) for part in rows), text], -1)  # (N, C)
        else:
            logits, union = head_ops.shared_logits(hidden, self.weight, text, len(text), distinct=True)
            parts.append(logits)
            columns = torch.cat([*rows, union])  # (C,)
        return self.transform(torch.cat(parts, -1)), columns, self.target_ids

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        logits, ids = self._scored(hidden, k, state)
        ids, order = ids.sort(dim=-1, stable=True)
        return logits.gather(-1, order.expand(len(logits), -1)), ids

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        text = self._text(state)
        inside = F.pad(self.inside, (0, 1)).repeat(len(text), 1)  # the last column is for padding
        inside.scatter_(-1, torch.where(text < 0, self.size, text).long(), True)
        logits = self.transform(linear(hidden, self.weight).float())
        return masked(logits, of_rows(inside[:, : self.size], len(logits)))

    def _scored(self, hidden: Tensor, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        spare, text = self._spare_and_text(k, state)
        places = text.clamp(min=0)
        grouped = hidden.reshape(len(text), -1, hidden.shape[-1])  # (B, N / B, H)
        beside = torch.bmm(grouped, self.weight[places].transpose(1, 2)).float()
        beside = beside.masked_fill((text < 0)[:, None], float("-inf")).flatten(0, 1)
        always = [linear(hidden, self.core).float()]
        if len(spare):
            always.append(linear(hidden, self.weight[spare]).float())
        logits = self.transform(torch.cat([*always, beside], -1))
        rows = torch.cat([self.core_rows, spare]).expand(len(text), -1)
        ids = self.target_ids[torch.cat([rows, places], -1)]  # (B, C)
        return logits, ids[0] if len(text) == 1 else of_rows(ids, len(logits))

    def _spare_and_text(self, k: int, state: DraftState | None) -> tuple[Tensor, Tensor]:
        """Return the spare head rows (n,) shared by all hidden rows, and the text's rows (B, T) without them.

        A text may be too short for k tokens. If the core is also too small, the lowest other ids are added.
        """
        text = self._text(state)
        spare = self.outside[: max(0, k - self.core_size)]
        if len(spare):  # all rows outside the core up to the last spare row are spare
            text = text.masked_fill(text <= spare[-1], -1)
        return spare, text

    def _text(self, state: DraftState | None) -> Tensor:
        """Return the head rows (B, T) outside the core of each request's text, each once, -1 for padding."""
        if state is None or state.context is None:
            raise UsageError(
                "this draft head reads the tokens of the request's text, and this way of drafting does not tell them",
                expected="a proposer that passes the text's tokens to the head",
            )
        # Padding (-1) and invalid ids map to the last entry.
        return self.others[state.context.clamp(max=len(self.others) - 1)]


def rows_of(base: HeadBase, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Find the head rows of target ids.

    Returns:
        the rows (n,) int64 of the ids that have one, in order, and bool (len(ids),) whether each id has one.

    Raises:
        MismatchError: no id has a row.
    """
    wanted = torch.tensor(ids, dtype=torch.int64, device=base.target_ids.device)
    places = torch.searchsorted(base.target_ids, wanted).clamp(max=len(base.target_ids) - 1)
    known = base.target_ids[places] == wanted
    if not bool(known.any()):
        raise MismatchError(
            "the exact head scores no token of this draft vocabulary",
            got=f"{len(ids):,} ids, none with a row",
            expected="ids with a row in the head",
        )
    return places[known], known


def ranked_ids(kind: str, ranked: Sequence[int] | None) -> Sequence[int]:
    """Check that a vocabulary was given for a kind of head, and return it.

    Raises:
        UsageError: none was given.
    """
    if not ranked:
        raise UsageError(
            f"a {kind} head is made over a draft vocabulary",
            got="none",
            expected="token ids in rank order",
            remedy="give a subset artefact with --vocab",
        )
    return ranked
