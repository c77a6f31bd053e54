"""The table of proposers: what drafts a tree, by kind of drafter."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from torch import Tensor

from ..core.extension import resolve
from ..models.heads import DraftHead
from .tree import DraftTree, TreeSettings

# kind of drafter -> "module:attr", called as proposer(drafter, head, settings, context)
PROPOSERS: dict[str, str] = {
    "eagle3": "vocabforge.decode.proposer_eagle3:Eagle3Proposer",
    "eagle1": "vocabforge.decode.proposer_eagle3:Eagle3Proposer",
    "medusa": "vocabforge.decode.proposer_medusa:MedusaProposer",
}


class Proposer(Protocol):
    """Drafts a tree under the last committed token, from the target's states of what is committed.

    Attributes:
        settings: shape of its trees.
        reads: which states of the target :meth:`advance` takes.
        aux_layers: target layers (0-based outputs) behind ``aux``; empty where it reads ``hidden``.
        rows: committed rows.
    """

    settings: TreeSettings
    reads: Literal["aux", "hidden"]
    aux_layers: tuple[int, ...]
    rows: int
    drafter: Any
    head: DraftHead

    def reserve(self, positions: int) -> None:
        """Make room for requests of this length; may forget the last request."""
        ...

    def reset(self) -> None:
        """Forget the last request."""
        ...

    def advance(self, tokens: Tensor, features: Tensor, count: int) -> None:
        """Commit the first ``count`` of N rows: target states (N, .) and the tokens (N,) that follow them."""
        ...

    def propose(self, root_token: Tensor) -> DraftTree:
        """The tree under the last committed token (1,)."""
        ...


def make_proposer(drafter: Any, head: DraftHead, settings: TreeSettings, context: int) -> Proposer:
    """The proposer of a drafter's kind.

    Args:
        drafter: loaded, of any kind.
        head: scores its states.
        context: positions to begin with.

    Raises:
        UsageError: a tree that the drafter or the head cannot fill.
    """
    return resolve(PROPOSERS, drafter.kind, "proposer")(drafter, head, settings, context)
