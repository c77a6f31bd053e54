"""How many tokens a draft head scores in a draft step."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.heads import DraftHead, ScoresSome


@dataclass(frozen=True)
class DraftVocabulary:
    """What a draft head scores.

    Attributes:
        kind: of the head, as ``models.heads.HEADS`` names it.
        size: tokens that get a logit in a draft step, the mean over the steps of a draft.
        of: rows of the target's LM head.
    """

    kind: str
    size: int
    of: int


def draft_vocabulary(head: DraftHead, steps: int, of: int) -> DraftVocabulary:
    """What a head scores over a draft.

    Args:
        steps: draft steps of a cycle.
        of: rows of the target's LM head.
    """
    kind = getattr(head, "KIND", "full" if head.size >= of else "static")
    if not isinstance(head, ScoresSome):
        return DraftVocabulary(kind, head.size, of)
    sizes = [head.scored(step) for step in range(max(steps, 1))]
    return DraftVocabulary(kind, round(sum(sizes) / len(sizes)), of)
