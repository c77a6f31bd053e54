"""The table of draft heads, which compute top-k log-probabilities and target ids for N hidden rows.

Results are fp32, ordered by logit, with ties going to the lower target id (docs/methods.md, Draft heads). The
interface is in ``heads/interface.py``, and the kinds are in the other modules of this package.
"""

from __future__ import annotations

from torch import nn

from ...core.registry import ExtensionTable, resolve
from ..drafters.interface import Drafter, is_autoregressive
from ..target.interface import Target
from .context import ContextHead
from .exact import FullHead, HeadsByStep, StaticHead
from .interface import DraftHead, DraftState, HeadBase, HeadOptions, HeadSizes, ScoresSome, full_ids
from .low_rank import LowRankHead, RankerHead
from .router import RouterHead
from .scheduled import ScheduledHead

__all__ = [
    "HEADS",
    "ContextHead",
    "DraftHead",
    "DraftState",
    "FullHead",
    "HeadBase",
    "HeadOptions",
    "HeadSizes",
    "LowRankHead",
    "RankerHead",
    "RouterHead",
    "ScheduledHead",
    "ScoresSome",
    "StaticHead",
    "base_of",
    "base_of_model",
    "build_head",
    "exact_head",
    "exact_head_of",
]

# name -> "module:attr" of a class that implements interface.DraftHeadKind
HEADS = ExtensionTable(
    "vocabforge.heads",
    {
        "full": "vocabforge.models.heads.exact:FullHead",
        "static": "vocabforge.models.heads.exact:StaticHead",
        "ranker": "vocabforge.models.heads.low_rank:RankerHead",
        "low-rank": "vocabforge.models.heads.low_rank:LowRankHead",
        "router": "vocabforge.models.heads.router:RouterHead",
        "scheduled": "vocabforge.models.heads.scheduled:ScheduledHead",
        "context": "vocabforge.models.heads.context:ContextHead",
    },
)


def build_head(
    kind: str, base: HeadBase, module: nn.Module | None = None, options: HeadOptions | None = None
) -> DraftHead:
    """Create a draft head of the table over a drafter's head rows.

    Args:
        module: the trained part, already with the base's device and dtype; None for kinds without one.

    Raises:
        UsageError: an unknown kind, or an option that the kind does not have.
        MismatchError: the trained part does not fit the base.
    """
    return resolve(HEADS, kind, "draft head").build(base, module, options or HeadOptions())


def base_of(drafter: Drafter) -> HeadBase:
    """Return the exact head of a drafter, the base of its draft heads."""
    # A parameter, so that compiled passes treat it as a constant.
    weight = nn.Parameter(drafter.head_weight.detach(), requires_grad=False)
    return HeadBase(
        weight, drafter.target_ids, drafter.embedding, drafter.transform, is_autoregressive(drafter)
    )


def base_of_model(model: Target) -> HeadBase:
    """Return the exact head of a language model that drafts (a draft model, or an early exit's target)."""
    weight = model.lm_head_weight
    return HeadBase(weight, full_ids(weight), model.embedding.detach(), model.transform)


def exact_head(drafter: Drafter) -> DraftHead:
    """Return a drafter's own head as a draft head, over the whole vocabulary or a static subset."""
    if not drafter.heads_differ:
        return exact_head_of(base_of(drafter))
    ids, embedding, transform = drafter.target_ids, drafter.embedding, drafter.transform
    rows = [drafter.head_rows(step).detach() for step in range(drafter.max_steps or 1)]
    return HeadsByStep([exact_head_of(HeadBase(weight, ids, embedding, transform)) for weight in rows])


def exact_head_of(base: HeadBase) -> FullHead:
    """Return the exact head itself as a draft head."""
    if len(base.weight) == len(base.embedding):
        return FullHead(base.weight, transform=base.transform)
    return StaticHead(base.weight, base.target_ids, transform=base.transform)
