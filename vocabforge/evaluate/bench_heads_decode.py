"""Decoding the held-out prompts with one draft head after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.console import say
from ..decode.proposers import tree_proposer
from ..decode.tree import TreeSettings
from ..export.formats import load_drafter, restrict
from ..models.drafter_io import TargetTensors
from ..models.head_io import load_head
from ..models.heads import (
    DraftHead,
    DraftState,
    base_of,
    build_head,
    exact_head,
)
from ..models.heads_exact import answer
from ..models.lean import LeanModel
from .acceptance import AcceptanceMeter, pooled
from .bench_heads_candidates import Candidate
from .compare import first_difference
from .live_prompts import LivePrompts


class CountingHead:
    """A draft head that counts the tokens it scores exactly, a row."""

    def __init__(self, head: DraftHead) -> None:
        self.head, self.size = head, head.size
        self.context_size, self.by_step = head.context_size, head.by_step
        self._rows, self._scored = 0, 0

    @property
    def target_ids(self) -> Tensor:
        """(R,) target ids of the head's rows."""
        return self.head.target_ids

    @property
    def mean(self) -> float:
        """Mean tokens scored a row; the whole head's where nothing was asked."""
        return self._scored / self._rows if self._rows else float(self.size)

    def topk(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        """The head's answers, from its scores, which are counted."""
        logits, ids = self.scores(hidden, k, state)
        self._rows += len(hidden)
        self._scored += int(logits.isfinite().sum())
        return answer(logits, ids, k)

    def scores(self, hidden: Tensor, k: int, state: DraftState | None = None) -> tuple[Tensor, Tensor]:
        """The head's own; not counted."""
        return self.head.scores(hidden, k, state)

    def log_probs(self, hidden: Tensor, state: DraftState | None = None) -> Tensor:
        """The head's own; not counted."""
        return self.head.log_probs(hidden, state)


class HeldoutDecoding:
    """The prompts, and what plain decoding makes of them.

    Args:
        model: the target.
        target: its folder.
        prompts: what is decoded.
        new: tokens a prompt.
        tree: shape of the draft tree.
    """

    def __init__(
        self, model: LeanModel, target: Path, prompts: LivePrompts, new: int, tree: TreeSettings
    ) -> None:
        self.model, self.target, self.prompts, self.tree = model, target, prompts, tree
        self.meter = AcceptanceMeter(model, prompts, new)

    def plain(self) -> dict[str, Any]:
        """``outputs``: the target's own continuation of each prompt."""
        return {"outputs": [one.token_ids for one in self.meter.plain()]}

    def measure(self, candidate: Candidate, plain: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Decode every prompt with a candidate.

        Args:
            plain: outputs of plain decoding.

        Returns:
            figures of :func:`~vocabforge.evaluate.acceptance.pooled`; ``scored``: mean tokens scored a row;
            ``identical``: prompts whose output is plain decoding's; ``different``: for the others the place
            (prompt, token) of the first difference, from 1.
        """
        drafter, head = self.head(candidate)
        counting = CountingHead(head)
        proposer = tree_proposer(self.model, drafter, counting, self.tree)
        made = self.meter.decode(proposer)
        different = [
            [index + 1, place + 1]
            for index, one in enumerate(made)
            if (place := first_difference(one.token_ids, plain[index])) is not None
        ]
        if different:
            say(
                f"Warning: {candidate.method}, {candidate.setting}: {len(different)} of {len(made)} outputs are "
                f"not plain decoding's, first prompt {different[0][0]}, token {different[0][1]}"
            )
        figures = pooled(made) | {"scored": counting.mean, "size": head.size}
        return figures | {"identical": len(made) - len(different), "different": different}

    def head(self, candidate: Candidate) -> tuple[Any, DraftHead]:
        """The drafter and the head of a candidate, loaded."""
        tensors = TargetTensors(self.model.embedding, self.model.lm_head_weight)
        drafter, artifact = load_drafter(candidate.drafter, tensors, self.target)
        if candidate.vocab is not None:
            drafter = restrict(drafter, candidate.vocab, artifact)
        if candidate.head is None:
            return drafter, exact_head(drafter)
        loaded = load_head(candidate.head, device=self.model.device, dtype=self.model.dtype)
        return drafter, build_head(loaded.kind, base_of(drafter), loaded.module, candidate.options)
