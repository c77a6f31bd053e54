"""A block of rows that draft heads are asked about, and what their answers share: logits, and scorers' shortlists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vocabforge.core.errors import MismatchError
from vocabforge.models.heads.registry import DraftState, HeadBase
from vocabforge.models.heads.scorer import Selector

from .lists import OnList, Pairs, Shortlist, above, on_lists

_T = TypeVar("_T")


class Placed(NamedTuple):
    """One head's answers on a block of B rows.

    ``rank`` (B,) int64 tokens that it scores above the wanted one; ``inside`` bool (B,): it scores that one, too;
    ``scored``: tokens that get an exact logit, (B,) or the same number on every row.
    """

    rank: Tensor
    inside: Tensor
    scored: Tensor | float


@dataclass
class Block:
    """B rows of one draft step.

    Attributes:
        base: the drafter's exact head.
        state: what was fed; every row is a request of its own.
        hidden: (B, H) what the heads read.
        wanted: (B,) int64 head row of the token that is asked for, -1 if the drafter's head has none.
        contexts: by C, (B, C) tokens of the text.
        shared: by a part's id, what heads over this part share.
    """

    base: HeadBase
    state: DraftState
    hidden: Tensor
    wanted: Tensor
    contexts: Mapping[int, Tensor]
    shared: dict[int, Any] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> Pairs:
        """What is above the wanted token by exact logits, among all rows of the drafter's head."""
        return above(F.linear(self.hidden, self.base.weight).float(), self.wanted)

    @cached_property
    def known(self) -> Tensor:
        """bool (B,): the drafter's head has the wanted token."""
        return self.wanted >= 0

    @cached_property
    def places(self) -> Tensor:
        """(B,) ``wanted``, and some head row if there is none."""
        return self.wanted.clamp(min=0)

    def placed(self, member: Tensor, inside: Tensor, scored: Tensor | float) -> Placed:
        """The answers of a head that scores these of the pairs, bool (n,), and the wanted token where ``inside``."""
        return Placed(self.pairs.count(member), inside & self.known, scored)


@dataclass
class Parts:
    """State shared by the heads of one drafter.

    Attributes:
        base: the drafter's exact head.
        width: ranks that are distinguished.
        lists: shortlists by scorer and form that it is read in: one pass over its scores answers all of them.
    """

    base: HeadBase
    width: int
    lists: dict[tuple[int, bool], list[Shortlist]] = field(default_factory=dict)

    def table(self, ids: Tensor) -> Tensor:
        """bool (R,) head rows of target ids.

        Raises:
            MismatchError: an id has none.
        """
        rows = torch.searchsorted(self.base.target_ids, ids).clamp(max=len(self.base.target_ids) - 1)
        if not torch.equal(self.base.target_ids[rows], ids):
            raise MismatchError(
                "the draft head scores tokens that its drafter's head does not",
                got=f"{int((self.base.target_ids[rows] != ids).sum()):,} ids without a row",
                expected=f"some of {len(self.base.target_ids):,}",
            )
        found = torch.zeros(len(self.base.target_ids), dtype=torch.bool, device=ids.device)
        found[rows] = True
        return found

    def shortlist(self, head: nn.Module, scorer: Any, wanted: Shortlist) -> Callable[[Block], OnList]:
        """What of a shortlist by a head's low-rank scorer is above a block's wanted tokens."""
        selector = part_of(head, Selector)
        lists = self.lists.setdefault((id(scorer), selector.scale is None), [])
        lists.append(wanted)
        number = len(lists) - 1

        def ask(block: Block) -> OnList:
            if id(lists) not in block.shared:
                scores = selector.scores(scorer.project(block.hidden))  # (B, R)
                block.shared[id(lists)] = on_lists(scores, block.pairs, block.wanted, lists)
            found: list[OnList] = block.shared[id(lists)]
            return found[number]

        return ask


def part_of(head: nn.Module, kind: type[_T]) -> _T:
    """The first module of a kind inside a head."""
    return next(module for module in head.modules() if isinstance(module, kind))
