"""Active requests: their state and limits, and the size of their trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import MismatchError, UsageError
from .proposers.registry import Proposer
from .request import Finish, Generation, Request
from .tree import DraftTree
from .verify.registry import RowVerification


@dataclass
class Work:
    """A request in a row."""

    number: int  # index among the requests submitted together
    request: Request
    result: Generation
    room: int  # maximum new tokens, also limited by the rest of the context
    judge: RowVerification
    finish: Finish | None = None

    def take(self, tokens: Sequence[int]) -> list[int]:
        """Append committed tokens up to a stop or the limit; return the tokens taken."""
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


def check_request(request: Request, context: int, vocab: int) -> None:
    """Check a request against the target's context and vocabulary.

    Raises:
        UsageError: the request allows no new tokens, or the prompt does not fit the target.
    """
    prompt_ids = request.prompt_ids
    if request.max_new_tokens < 1:
        raise UsageError(
            "nothing is to be generated", got=f"{request.max_new_tokens} new tokens", expected="at least 1"
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
    """Check that a target of ``count`` layers has all auxiliary layers.

    Raises:
        MismatchError: it does not.
    """
    if max(aux_layers, default=0) >= count:
        raise MismatchError(
            "the drafter reads layers that the target does not have",
            got=f"auxiliary layers {list(aux_layers)} (0-based)",
            expected=f"at most {count - 1}",
        )


def offered(tree: DraftTree) -> tuple[list[int], list[int]]:
    """Return the deepest level and the number of draft tokens of each row's tree."""
    rows, count = tree.tokens.shape
    if tree.alive is None:
        deepest = [count - 1] * rows if tree.chain else tree.depths.amax(1).tolist()
        return deepest, [count - 1] * rows
    depths = tree.depths.masked_fill(~tree.alive, 0)
    return depths.amax(1).tolist(), (tree.alive.sum(1) - 1).tolist()


def check_chain(proposer: Proposer | None) -> None:
    """Reject trees for recurrent layers, whose state after a node covers a single path only.

    Raises:
        UsageError: the proposer drafts more than one node per level.
    """
    plans = [] if proposer is None else proposer.plans()
    if trees := [plan for plan in plans if plan.nodes > plan.levels + 1]:
        raise UsageError(
            "this target has recurrent layers, so only chains can be verified",
            got=f"trees of {trees[-1].nodes} nodes and {trees[-1].levels} levels",
            expected="one node per level",
            remedy="use --tree chain",
        )
