"""Draft heads: for N hidden rows, the top-k log-probabilities and target token ids.

Every head answers in fp32, ordered by logit, ties to the lower target id (docs/methods.md, Draft heads). This file is
the table; ``heads/interface.py`` holds what a head is, ``heads_*.py`` the kinds.
"""

from __future__ import annotations

from torch import nn

from ...core.registry import ExtensionTable, resolve
from ..drafters.interface import Drafter, is_autoregressive
from ..target.interface import Target
from .context import ContextHead, HybridHead
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
    "HybridHead",
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

# name -> "module:attr" of a class as in head_types.DraftHeadKind; a new kind is a file and a row.
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
        "hybrid": "vocabforge.models.heads.context:HybridHead",
    },
)


def build_head(
    kind: str, base: HeadBase, module: nn.Module | None = None, options: HeadOptions | None = None
) -> DraftHead:
    """A draft head of the table over a drafter's head rows.

    Args:
        module: its trained part, already on the base's device and dtype; None for kinds without one.

    Raises:
        UsageError: no such kind, or an option that the kind does not have.
        MismatchError: the trained part does not fit the base.
    """
    return resolve(HEADS, kind, "draft head").build(base, module, options or HeadOptions())


def base_of(drafter: Drafter) -> HeadBase:
    """The exact head below a drafter's draft heads."""
    # A parameter, so that a compiled pass takes it for a constant.
    weight = nn.Parameter(drafter.head_weight.detach(), requires_grad=False)
    return HeadBase(
        weight, drafter.target_ids, drafter.embedding, drafter.transform, is_autoregressive(drafter)
    )


def base_of_model(model: Target) -> HeadBase:
    """The exact head below the draft heads of a language model: a draft model, or an early exit's target."""
    weight = model.lm_head_weight
    return HeadBase(weight, full_ids(weight), model.embedding.detach(), model.transform)


def exact_head(drafter: Drafter) -> DraftHead:
    """The head that a drafter brings: the whole vocabulary's, or a static subset's."""
    if not drafter.heads_differ:
        return exact_head_of(base_of(drafter))
    ids, embedding, transform = drafter.target_ids, drafter.embedding, drafter.transform
    rows = [drafter.head_rows(step).detach() for step in range(drafter.max_steps or 1)]
    return HeadsByStep([exact_head_of(HeadBase(one, ids, embedding, transform)) for one in rows])


def exact_head_of(base: HeadBase) -> FullHead:
    """The exact head itself, as a draft head."""
    if len(base.weight) == len(base.embedding):
        return FullHead(base.weight, transform=base.transform)
    return StaticHead(base.weight, base.target_ids, transform=base.transform)
