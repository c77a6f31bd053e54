"""Requests in work: what each has, what it may still take, and what its trees offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.errors import MismatchError, UsageError
from .proposers.registry import Proposer
from .request import Finish, Generation, Request
from .tree import DraftTree
from .verify.registry import RowVerification


@dataclass
class Work:
    """A request in a row: its place among those asked together, the tokens that it may generate in what is left of the
    context, what verification knows of it, and why it has ended."""

    number: int
    request: Request
    result: Generation
    room: int
    judge: RowVerification
    finish: Finish | None = None

    def take(self, tokens: Sequence[int]) -> list[int]:
        """Append committed tokens up to a stop or the limit; returns those taken."""
        ids, request = self.result.token_ids, self.request
        before = len(ids)
        for token in tokens:
            ids.append(token)
            if token in request.stop_ids:
                self.finish = "stop"
            elif len(ids) == self.room:
                self.finish = "cache" if self.room < request.max_new_tokens else "length"
            if self.finish is not None:
                break
        if request.stop is not None and (kept := request.stop.kept(ids, len(ids) - before)) is not None:
            del ids[kept:]
            self.finish = "stop"
        self.result.drop(before + len(tokens) - len(ids))
        return ids[before:]


class Waiting(NamedTuple):
    """A request that waits for a row; its fields are those of :class:`Work`."""

    number: int
    request: Request
    result: Generation
    room: int


def check_request(request: Request, context: int, vocab: int) -> None:
    """Raises: UsageError: nothing is to be generated, or the prompt does not fit the target."""
    prompt_ids = request.prompt_ids
    if request.max_new_tokens < 1:
        raise UsageError(
            "nothing is to be generated",
            got=f"{request.max_new_tokens} new tokens",
            expected="at least 1",
        )
    if not 0 < len(prompt_ids) < context:
        raise UsageError(
            "the prompt does not fit the context",
            got=f"{len(prompt_ids):,} tokens",
            expected=f"1 to {context - 1:,}",
            remedy="shorten the prompt, or use a target with a longer context",
        )
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocab:
        raise UsageError(
            "the prompt holds token ids that the target does not have",
            got=f"ids {min(prompt_ids)} to {max(prompt_ids)}",
            expected=f"0 to {vocab - 1}",
            remedy="use the target's own tokenizer",
        )


def check_layers(aux_layers: Sequence[int], count: int) -> None:
    """Raises: MismatchError: auxiliary layers beyond a target's ``count``."""
    if max(aux_layers, default=0) >= count:
        raise MismatchError(
            "the drafter reads layers that the target does not have",
            got=f"auxiliary layers {list(aux_layers)} (0-based)",
            expected=f"at most {count - 1}",
        )


def offered(tree: DraftTree) -> tuple[list[int], list[int]]:
    """The level and the number of draft tokens that each row's tree offers."""
    rows, count = tree.tokens.shape
    if tree.alive is None:
        deepest = [count - 1] * rows if tree.chain else tree.depths.amax(1).tolist()
        return deepest, [count - 1] * rows
    depths = tree.depths.masked_fill(~tree.alive, 0)
    return depths.amax(1).tolist(), (tree.alive.sum(1) - 1).tolist()


def check_chain(proposer: Proposer | None) -> None:
    """Refuse trees over recurrent layers: their state after a node is that of one path only.

    Raises:
        UsageError: the proposer drafts more than one node a level.
    """
    plans = [] if proposer is None else proposer.plans()
    if trees := [plan for plan in plans if plan.nodes > plan.levels + 1]:
        raise UsageError(
            "this target has recurrent layers, so only chains can be verified",
            got=f"trees of {trees[-1].nodes} nodes and {trees[-1].levels} levels",
            expected="one node a level",
            remedy="use --tree chain",
        )
