"""The search space: draft heads and draft trees, described by their sizes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from ..core.config import Positive, StrictModel
from ..core.errors import UsageError
from ..decode.build.spec import MethodSpec
from ..models.heads.registry import DraftHead

HeadKind = Literal["full", "static", "scheduled", "ranker", "low-rank", "router", "context", "hybrid"]
TreeKind = Literal["dynamic", "chain"]
Count = Annotated[int, Field(ge=0)]


class HeadSetting(StrictModel):
    """A draft head, described by the sizes that determine its time; hashable.

    Attributes:
        kind: row of ``models.heads.HEADS``.
        scored: number of tokens scored per row at draft steps 0, 1, ...; the last value holds for deeper
            steps.
        core: tokens of a hot core.
        rank: d' of a scorer.
        clusters: M of a router.
        shared: whether the rows of a step share one shortlist.
        fp8: whether the scorer uses 8 bits per weight.
    """

    kind: HeadKind
    scored: Annotated[tuple[Positive, ...], Field(min_length=1)]
    core: Count = 0
    rank: Count = 0
    clusters: Count = 0
    shared: bool = False
    fp8: bool = False

    @property
    def label(self) -> str:
        """Label for tables."""
        more = [f"core {self.core:,}"] if self.core else []
        more += [f"rank {self.rank:,}"] if self.rank else []
        more += [f"{self.clusters:,} clusters"] if self.clusters else []
        more += ["shared rows"] if self.shared else []
        more += ["fp8"] if self.fp8 else []
        return ", ".join([f"{self.kind} " + " ".join(f"{one:,}" for one in self.scored), *more])


class TreeSetting(StrictModel):
    """A draft tree; hashable.

    Attributes:
        kind: a chain has ``topk`` 1 and ``total`` depth + 2.
        topk: children per node.
        depth: rounds after the root's expansion; the tree has depth + 1 levels.
        total: number of verified nodes, including the root.
    """

    kind: TreeKind = "dynamic"
    topk: Positive
    depth: Count
    total: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _is_one(self) -> TreeSetting:
        most = self.history + 1
        if self.kind == "chain" and (self.topk, self.total) != (1, self.depth + 2):
            raise ValueError(f"a chain of depth {self.depth} has topk 1 and total {self.depth + 2}")
        if not self.levels < self.total <= most:
            raise ValueError(
                f"a tree of depth {self.depth} and topk {self.topk} has {self.levels + 1} to {most} nodes"
            )
        return self

    @classmethod
    def chain(cls, depth: int) -> TreeSetting:
        """Return a chain of depth + 1 draft tokens."""
        return cls(kind="chain", topk=1, depth=depth, total=depth + 2)

    @property
    def levels(self) -> int:
        """Number of levels below the root."""
        return self.depth + 1

    @property
    def history(self) -> int:
        """Number of nodes that drafting creates; ``total - 1`` of them are verified."""
        return self.topk + self.depth * self.topk**2

    @property
    def options(self) -> MethodSpec:
        """Return the fields of a method that select this tree."""
        if self.kind == "chain":
            return MethodSpec(tree="chain", depth=self.depth)
        return MethodSpec(tree=self.kind, depth=self.depth, topk=self.topk, total_nodes=self.total)

    @property
    def label(self) -> str:
        """Label that is valid in file names: ``chain4``, ``tree6x10x60`` (levels, width, nodes)."""
        if self.kind == "chain":
            return f"chain{self.levels}"
        return f"tree{self.levels}x{self.topk}x{self.total}"


def setting_of(head: DraftHead) -> HeadSetting:
    """Return the setting of a built draft head.

    Raises:
        UsageError: the kind of head is unknown.
    """
    kind: Any = getattr(head, "KIND", None)
    if kind not in get_args(HeadKind):
        raise UsageError(
            "the sizes of this draft head are not known",
            got=type(head).__name__,
            expected=", ".join(get_args(HeadKind)),
        )
    tail = getattr(head, "tail", None)  # the dynamic part of a head with a core
    owner = head if tail is None else tail
    scorer, router = getattr(owner, "scorer", None), getattr(head, "router", None)
    scored = getattr(head, "scored", None)
    steps = max(len(getattr(head, name, None) or ()) for name in ("sizes", "budgets"))
    sizes = [head.size if scored is None else scored(step) for step in range(max(steps, 1))]
    return HeadSetting(
        kind=kind,
        scored=tuple(sizes if len(set(sizes)) > 1 else sizes[:1]),
        core=getattr(head, "core_size", 0),
        rank=0 if scorer is None else scorer.down.out_features,
        clusters=0 if router is None else router.clusters,
        shared=bool(getattr(owner, "shared", False)),
        fp8=bool(getattr(owner, "fp8", getattr(owner, "_fp8", False))),
    )
