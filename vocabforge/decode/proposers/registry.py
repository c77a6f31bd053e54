"""The table of proposers, and the interface that the engine uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from torch import Tensor

from ...core.registry import ExtensionTable, load_attribute, resolve
from ...models.heads.registry import DraftHead
from ...models.kv_cache import KVCache
from ...models.target.interface import Target
from ..interface import Commit, Draw, Plan, Wrap
from ..tree import DraftTree, TreeSettings

if TYPE_CHECKING:
    from ...vocab.overlap.bridge import Bridge
    from ..spec import MethodSpec  # needs pydantic, which GPU checks run without

# name -> "module:attr", called as build(parts: ProposerParts) -> Proposer; a new proposer is a file and a
# row.
PROPOSERS = ExtensionTable(
    "vocabforge.proposers",
    {
        "draft-model": "vocabforge.decode.proposers.draft_model:build",
        "n-gram": "vocabforge.decode.proposers.ngram:build",
        "early-exit": "vocabforge.decode.proposers.early_exit:build",
        "medusa": "vocabforge.decode.proposers.medusa:build",
        "peagle": "vocabforge.decode.proposers.block:build",
        "dflash": "vocabforge.decode.proposers.block:build",
        "dspark": "vocabforge.decode.proposers.block:build",
        "eagle1": "vocabforge.decode.proposers.eagle:build_eagle1",
        "eagle2": "vocabforge.decode.proposers.eagle:build_eagle2",
        "eagle3": "vocabforge.decode.proposers.eagle:build_eagle3",
        "mtp": "vocabforge.decode.proposers.eagle:build_mtp",
        "tli": "vocabforge.decode.cross_vocab.proposer:build_tli",
        "slem": "vocabforge.decode.cross_vocab.proposer:build_slem",
        "slrs": "vocabforge.decode.cross_vocab.slrs.proposer:build",
    },
)

FOREIGN = ("tli", "slem", "slrs")  # proposers for a draft model with another vocabulary: they need a bridge

# Proposers that need no drafter. Those of plugins need none if no row of FITTING lists them.
ALONE = ("n-gram", "early-exit")

JOIN = "+"  # between the names of a hybrid's proposers
_HYBRID = "vocabforge.decode.proposers.hybrid:HybridProposer"

# kind of drafter -> the proposers that can draft with it, its default first
FITTING = ExtensionTable(
    "vocabforge.fitting",
    {
        "eagle3": ("eagle3",),
        "eagle1": ("eagle2", "eagle1"),
        "medusa": ("medusa",),
        "mtp": ("mtp",),
        "peagle": ("peagle",),
        "dflash": ("dflash",),
        "dspark": ("dspark",),
        "draft-model": ("draft-model", *FOREIGN),
    },
)


def _default_options() -> MethodSpec:
    from ..spec import MethodSpec  # kernels are tested on machines without pydantic

    return MethodSpec()


class Lap(Protocol):
    """Function that is called at the end of a part of the work: ``head``, ``layers``, ``draft``, ``verify``.

    ``head_s``: seconds of the part that the draft head took.
    """

    def __call__(self, part: str, head_s: float = 0.0, /) -> object: ...


@dataclass(frozen=True)
class ProposerParts:
    """Parts of a proposer.

    ``drafter`` is a trained drafter or a lean draft model; without a ``head``, the drafter's own is used; the
    ``bridge`` connects the vocabularies of target and draft model if they differ.
    """

    target: Target
    drafter: Any = None
    head: DraftHead | None = None
    options: MethodSpec = field(default_factory=_default_options)
    bridge: Bridge | None = None


class Proposer:
    """Base class of proposers, which draft a tree under the last committed token of each of B rows."""

    kind: str  # name in the table
    label: str  # name shown to users
    reads: Literal["aux", "hidden", "none"] = "none"  # states of the target; see ``DraftBackend``
    aux_layers: tuple[int, ...] = ()
    plan: Plan  # full size; ``plans`` returns all sizes that it can draft
    samples = False  # its trees carry the distributions from which their nodes were drawn
    scratch = 0  # slots after the committed ones of the target's cache that drafting writes
    head: DraftHead | None = None

    def plans(self) -> list[Plan]:
        raise NotImplementedError

    def wrap(self, wrap: Wrap) -> None:
        """Speed up its passes."""

    def allocate(self, rows: int, positions: int, cache: KVCache) -> None:
        """Allocate memory for B rows of ``positions``, discarding all state; ``cache`` is the target's."""

    def begin(self, row: int, ids: Sequence[int]) -> None:
        """Start a new request in a row; ``ids``: the prompt and the first generated token, the first root."""

    def prefill(self, row: int, following: Tensor, states: Tensor | None) -> None:
        """Process a row's next prompt positions: tokens (T,) after them, the target's states (T, .)."""

    def commit(self, commit: Commit) -> None:
        """Keep the accepted positions."""

    def ready(self, plan: Plan) -> bool:
        """Return whether a plan has anything to draft for any row now."""
        return True

    def propose(self, roots: Tensor, plan: Plan, draws: Sequence[Draw] | None, lap: Lap) -> DraftTree:
        """Draft trees under the last committed tokens (B,), of at most the plan's size."""
        raise NotImplementedError

    def counts(self, row: int) -> dict[str, int]:
        """Return the cost of drafting a row's request, apart from passes of the target; see ``counts.py``."""
        return {}


def make_proposer(name: str, parts: ProposerParts) -> Proposer:
    """Return the proposer of this name, or the hybrid of these names.

    Raises:
        UsageError: the proposer is unknown, cannot fill the tree, or does not support an option.
    """
    if len(names := part_names(name)) == 1:
        proposer: Proposer = resolve(PROPOSERS, name, "proposer")(parts)
        return proposer
    hybrid: Callable[[list[Proposer]], Proposer] = load_attribute(_HYBRID)
    owner = with_drafter(name) or "early-exit"

    def made(part: str) -> Proposer:
        whole = replace(parts, options=usable(parts.options, part)[0])
        return make_proposer(part, whole if part == owner else replace(whole, drafter=None, head=None))

    return hybrid(list(map(made, names)))


def part_names(name: str) -> list[str]:
    """Split a name into its proposers: several for a hybrid, such as ``eagle3+n-gram``."""
    return name.split(JOIN)


def with_drafter(name: str) -> str | None:
    """Return the part of a name that needs a drafter; None if none does."""
    return next((part for part in part_names(name) if not _is_alone(part)), None)


def _is_alone(part: str) -> bool:
    if part in ALONE or part not in PROPOSERS:
        return part in ALONE
    return not any(part in row for row in FITTING.values())


def usable(spec: MethodSpec, proposer: str) -> tuple[MethodSpec, list[str]]:
    """Return the spec without the options that its proposer does not use, and a list of these.

    Options meant for another proposer are also dropped, but not listed.
    """
    from ..spec import option_needs

    lost, own = unused_options(spec, proposer), (None, *part_names(proposer))
    others = [name for name in spec.given() if option_needs(name).proposer not in own]
    return spec.without(*others, *lost), spec.texts(lost)


def unused_options(spec: MethodSpec, proposer: str) -> list[str]:
    """Return the names of the given options for which a proposer has no use."""
    unused: list[str] = []
    if proposer in ("n-gram", "slem"):
        unused += ["draft_sampling"]
    if proposer in ("n-gram", "slrs"):
        unused += ["tree_file"]
        if proposer == "slrs" or spec.tree != "dynamic":
            unused += ["topk", "total_nodes"]
        if spec.tree != "chain" and (proposer == "slrs" or spec.tree != "dynamic"):
            unused += ["tree"]
    return [name for name in spec.given() if name in unused]


def tree_proposer(target: Target, drafter: Any, head: DraftHead, settings: TreeSettings) -> Proposer:
    """Return a trained drafter's default proposer with a dynamic tree."""
    from ..spec import MethodSpec

    options = MethodSpec(
        tree="dynamic", depth=settings.depth, topk=settings.topk, total_nodes=settings.total_nodes
    )
    return make_proposer(FITTING[drafter.kind][0], ProposerParts(target, drafter, head, options))
