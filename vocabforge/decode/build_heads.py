"""Draft heads of a run: load them, find the drafter each belongs to, settle how they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ..core.errors import UsageError
from ..models.drafter import Drafter
from ..models.head_io import HeadOwner, LoadedHead, check_owner, load_head, owner_of
from ..models.heads import DraftHead, HeadBase, HeadOptions, base_of, build_head
from ..models.heads_low_rank import check_shortlist
from ..models.heads_router import Router, check_budgets
from ..models.low_rank import LowRankScorer
from ..vocab.schedule import schedule_sizes
from .build_vocab_heads import check_dynamic, phrase

# option of the command line -> kinds of head that it means something for
_MEANT_FOR = {
    "shortlist": ("ranker",),
    "budget": ("router",),
    "rows": ("ranker", "router"),
    "fp8": ("ranker",),
}
_OPTION = {"rows": "--head-rows", "fp8": "--ranker-fp8"}  # where it is not the name itself


@dataclass(frozen=True)
class HeadRequest:
    """What a user asks for; None leaves what the head was saved with, else its kind's default.

    Attributes:
        given: draft-head artefacts, each ``DIR`` or ``LABEL=DIR``.
        shortlist: candidates of a ranker.
        budget: clusters of a router: ``K`` at every step, or ``LAW:K_MAX:K_MIN`` (laws of vocab/schedule.py).
        rows: ``own`` or ``shared`` shortlists for the rows of one draft step.
        dynamic: what is scored beside a draft vocabulary: ``context[:SIZE]`` or ``ranker[:SIZE]``.
        fp8: read a ranker's scorer in 8 bits a weight.
    """

    given: Sequence[str] = ()
    shortlist: int | None = None
    budget: str | None = None
    rows: Literal["own", "shared"] | None = None
    dynamic: Sequence[str] = ()
    fp8: bool | None = None


@dataclass(frozen=True)
class NamedHead:
    """A loaded head, its name, and how it will be used."""

    label: str
    path: Path
    loaded: LoadedHead
    options: HeadOptions

    def over(self, drafter: Drafter | HeadBase) -> DraftHead:
        """The head over a drafter's exact head, or another."""
        base = drafter if isinstance(drafter, HeadBase) else base_of(drafter)
        return build_head(self.loaded.kind, base, self.loaded.module, self.options)


def load_heads(
    request: HeadRequest,
    named: Sequence[tuple[str, Path]],
    *,
    steps: int,
    device: torch.device,
    dtype: torch.dtype,
    kept: dict[Path, LoadedHead] | None = None,
) -> list[NamedHead]:
    """Load every head of a request.

    Args:
        named: label and folder of each.
        steps: draft steps, for a schedule of budgets.
        kept: heads that are loaded already, by folder; what is loaded here is added.

    Raises:
        ArtifactError: no head there, or a damaged one.
        UsageError: a setting that none of the heads has, or one that is larger than the head.
    """
    heads, kept = [], {} if kept is None else kept
    for label, path in named:
        if path not in kept:
            kept[path] = load_head(path, device=device, dtype=dtype)
        loaded = kept[path]
        options = head_options(loaded.kind, loaded.artifact.meta, request, steps)
        _check_fits(loaded, options, request)
        heads.append(NamedHead(label, path, loaded, options))
    for name, kinds in _MEANT_FOR.items():
        if getattr(request, name) is not None and not any(head.loaded.kind in kinds for head in heads):
            raise UsageError(
                f"{_OPTION.get(name, '--' + name)} means nothing here",
                got=", ".join(f"{head.label} ({head.loaded.kind})" for head in heads) or "no draft head",
                expected=f"--head with a {' or '.join(kinds)}",
            )
    check_dynamic(request.dynamic, heads)
    return heads


def _check_fits(loaded: LoadedHead, options: HeadOptions, request: HeadRequest) -> None:
    """Refuse a size beyond the head's before the target is loaded."""
    if isinstance(loaded.module, Router) and options.budgets:
        check_budgets(options.budgets, loaded.module.clusters, source=loaded.artifact.path)
    if isinstance(loaded.module, LowRankScorer):
        check_shortlist(request.shortlist, len(loaded.module.head_weight), source=loaded.artifact.path)


def head_options(kind: str, meta: Mapping[str, Any], request: HeadRequest, steps: int) -> HeadOptions:
    """How a head of a kind is used: the request first, then what it was saved with.

    Raises:
        UsageError: a budget that cannot be read.
    """
    shortlist = request.shortlist or meta.get("shortlist")
    budgets = parse_budget(request.budget, steps) if request.budget else meta.get("budgets")
    return HeadOptions(
        shortlist=int(shortlist) if shortlist and kind in _MEANT_FOR["shortlist"] else None,
        budgets=tuple(map(int, budgets)) if budgets and kind in _MEANT_FOR["budget"] else None,
        rows=request.rows if kind in _MEANT_FOR["rows"] else None,
        fp8=request.fp8 if kind in _MEANT_FOR["fp8"] else None,
    )


def parse_budget(text: str, steps: int) -> tuple[int, ...]:
    """``32`` or ``decay:32:8`` -> clusters of each draft step.

    Raises:
        UsageError: not of this form, an unknown law, or sizes that are not in order.
    """
    law, *sizes = text.split(":") if ":" in text else ("constant", text)
    if not 1 <= len(sizes) <= 2 or not all(size.isdecimal() for size in sizes):
        raise UsageError(
            "the budget of clusters cannot be read",
            got=text,
            expected="K, or LAW:K_MAX:K_MIN such as decay:32:8",
            source="--budget",
        )
    return schedule_sizes(law, int(sizes[0]), int(sizes[1]) if sizes[1:] else None, max(steps, 2))


def heads_of(heads: Sequence[NamedHead], owners: Mapping[Path, HeadOwner]) -> dict[Path, list[NamedHead]]:
    """The heads of each drafter.

    Args:
        owners: what a head must have been trained for, by drafter folder.

    Raises:
        MismatchError: a head belongs to none of the drafters, or to another target or tokenizer.
    """
    found: dict[Path, list[NamedHead]] = {path: [] for path in owners}
    for head in heads:
        wanted = owner_of(head.loaded.artifact)
        homes = [path for path, owner in owners.items() if owner.drafter == wanted.drafter]
        for path in homes or list(owners)[:1]:  # where there is no home, the check names the difference
            check_owner(head.loaded.artifact, owners[path], drafter=path)
            found[path].append(head)
    return found


def describe(head: NamedHead, built: DraftHead) -> str:
    """One phrase for tables and reports."""
    return phrase(head.loaded.kind, built, head.options)
