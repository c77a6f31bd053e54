"""A block of rows that draft heads are asked about, and what their answers share: logits, and scorers' shortlists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...core.errors import MismatchError
from ...models.heads.registry import DraftState, HeadBase
from ...models.heads.scorer import Selector
from .lists import OnList, Pairs, Shortlist, above, on_lists

_T = TypeVar("_T")


class Placed(NamedTuple):
    """One head's answers on a block of B rows.

    ``rank`` (B,) int64 tokens that it scores above the wanted one; ``inside`` bool (B,): it scores that one, too;
    ``scored`` (B,) fp32 tokens that get an exact logit.
    """

    rank: Tensor
    inside: Tensor
    scored: Tensor


@dataclass
class Block:
    """B rows of one draft step.

    Attributes:
        base: the drafter's exact head.
        state: what was fed; every row is a request of its own.
        hidden: (B, H) what the heads read.
        wanted: (B,) int64 head row of the token that is asked for, -1 where the drafter's head has none.
        contexts: by C, (B, C) tokens of the text.
    """

    base: HeadBase
    state: DraftState
    hidden: Tensor
    wanted: Tensor
    contexts: Mapping[int, Tensor] = field(default_factory=dict)
    _prepared: dict[int, DraftState] = field(default_factory=dict)

    def prepared(self, router: nn.Module, prepare: Callable[[DraftState], DraftState]) -> DraftState:
        """The state with what heads over one router share: its ranking of the clusters."""
        if id(router) not in self._prepared:
            self._prepared[id(router)] = prepare(self.state)
        return self._prepared[id(router)]

    @cached_property
    def pairs(self) -> Pairs:
        """What stands above the wanted token by exact logits, among all rows of the drafter's head."""
        return above(F.linear(self.hidden, self.base.weight).float(), self.wanted)

    @cached_property
    def known(self) -> Tensor:
        """bool (B,): the drafter's head has the wanted token."""
        return self.wanted >= 0

    @cached_property
    def places(self) -> Tensor:
        """(B,) ``wanted``, and some head row where there is none."""
        return self.wanted.clamp(min=0)

    def constant(self, value: float) -> Tensor:
        """(B,) fp32."""
        return torch.full((len(self.wanted),), float(value), device=self.wanted.device)

    def placed(self, member: Tensor, inside: Tensor, scored: Tensor) -> Placed:
        """The answers of a head that scores these of the pairs, bool (n,), and the wanted token where ``inside``."""
        return Placed(self.pairs.count(member), inside & self.known, scored)


class ByScorer:
    """Shortlists by one low-rank scorer, of all heads that share it.

    Args:
        selector: its scores, of the head rows in order.
        project: W_down.
        width: ranks that are told apart.
    """

    def __init__(self, selector: Selector, project: Callable[[Tensor], Tensor], width: int) -> None:
        self._selector, self._project, self._width = selector, project, width
        self._lists: list[Shortlist] = []
        self._block: Block | None = None
        self._found: list[OnList] = []

    def want(self, shortlist: Shortlist) -> int:
        """Ask for one more shortlist; its number."""
        self._lists.append(shortlist)
        return len(self._lists) - 1

    def asked(self, block: Block, number: int) -> OnList:
        """What of a shortlist stands above a block's wanted tokens."""
        if self._block is not block:
            self._block = block
            scores = self._selector.scores(self._project(block.hidden))  # (B, R)
            self._found = on_lists(scores, block.pairs, block.wanted, self._lists, self._width)
        return self._found[number]


@dataclass
class Parts:
    """What the heads of one drafter share.

    Attributes:
        base: the drafter's exact head.
        width: ranks that are told apart.
        scorers: by the scorer and the form that it is read in.
    """

    base: HeadBase
    width: int
    scorers: dict[tuple[int, bool], ByScorer] = field(default_factory=dict)

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

    def scorer(self, head: nn.Module, scorer: nn.Module) -> ByScorer:
        """The shared shortlists of a head's scorer."""
        selector = part_of(head, Selector)
        key = (id(scorer), selector.scale is None)
        if key not in self.scorers:
            project: Callable[[Tensor], Tensor] = scorer.project  # type: ignore[assignment]
            self.scorers[key] = ByScorer(selector, project, self.width)
        return self.scorers[key]


def part_of(head: nn.Module, kind: type[_T]) -> _T:
    """The first module of a kind inside a head."""
    return next(module for module in head.modules() if isinstance(module, kind))
