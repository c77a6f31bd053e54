"""One decoding method, declared once for command-line options, recipe keys and construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator
from pydantic.dataclasses import dataclass as record

from ..core.config import RECORD, ModelPath, Positive, Size, StrictModel, TokenizerPath, option
from ..core.errors import UsageError
from ..core.hub import model_folder
from ..core.values import LEAST_WINDOW, labelled

NonNegative = Annotated[int, Field(ge=0)]
DRAFT_MODEL = "draft-model"


def parse_ngram(value: Any) -> tuple[int, int]:
    """Parse ``MIN:MAX``, or ``N`` for both."""
    parts = value if isinstance(value, (tuple, list)) else str(value).split(":")
    sizes = [int(part) if str(part).isdecimal() else 0 for part in parts]
    if not 1 <= len(sizes) <= 2 or not 0 < sizes[0] <= sizes[-1]:
        raise UsageError(
            "the sizes of n-grams cannot be read",
            got=value,
            expected="MIN:MAX, such as 1:4",
            source="--ngram",
        )
    return sizes[0], sizes[-1]


NgramSizes = Annotated[
    tuple[int, int],
    BeforeValidator(parse_ngram),
    PlainSerializer(lambda sizes: f"{sizes[0]}:{sizes[1]}", return_type=str),
]
Text = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


def _former_control(value: Any) -> Any:
    """Map the former name of adaptive control over joined proposers, which recipes may contain."""
    return "adaptive" if value == "bandit" else value


RANKER_REMOVED = "--dynamic ranker was removed: draft with the ranker alone (--head without --vocab)"
SHORT_CHAIN = 4  # draft tokens that a CPU verifies at little cost


class MethodSpec(StrictModel):
    """One decoding method. Every field is an option of ``generate`` and ``eval`` and a key of a decoding recipe.

    None means the default of the drafter, the draft head or the proposer. Without a drafter and a proposer, decoding is
    plain.
    """

    drafter: ModelPath | None = option(None, "Trained drafter, or a smaller model of any vocabulary.")
    proposer: str | None = option(
        None,
        "How to draft. Without a drafter: n-gram or early-exit. With one: draft-model for a model with the target's "
        "vocabulary; tli, slem or slrs for a model with another vocabulary; or the kind of the trained drafter "
        "(eagle1 or eagle2 for EAGLE-1 drafters). Join several with +, such as eagle3+n-gram, to alternate between "
        "them [default: by the drafter's kind and vocabulary].",
        metavar="NAME",
    )
    vocab: Path | None = option(None, "Draft vocabulary (subset artefact): draft only these tokens.")
    head: Path | None = option(None, "Draft head (ranker, low-rank, router) to draft with.")
    shortlist: Size | None = option(
        None, "Number of candidates of a ranker [default: the saved one].", extra={"heads": ["ranker"]}
    )
    budget: Text | None = option(
        None,
        "Number of clusters that a router opens: K at every draft step, or a schedule such as decay:32:8; at most all "
        "its clusters [default: the saved one: a quarter of the clusters, falling to a sixteenth].",
        metavar="K|SCHEDULE:MAX:MIN",
        extra={"heads": ["router"]},
    )
    head_rows: Literal["own", "shared"] | None = option(
        None,
        "Shortlists of a draft step: one per row (own), or one shared union [default: own for a ranker, shared for "
        "a router].",
        extra={"heads": ["ranker", "router"]},
    )
    dynamic: str | None = option(
        None,
        "Add the tokens of the text so far to those of --vocab, at most SIZE [default: 2,999 minus the vocabulary's "
        "size, at least 256].",
        metavar="context[:SIZE]",
    )
    tree: Literal["dynamic", "chain", "static", "auto"] | None = option(
        None,
        "Shape of the draft: a dynamic tree (EAGLE-2), a chain of depth + 1 tokens, a static tree, or auto: the "
        "proposer's default on CUDA, a chain of 4 tokens or of --depth on a CPU [default: auto for a trained "
        "drafter without --topk and --total-nodes; else the proposer's].",
    )
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] | None = option(
        None,
        "End a DSpark chain before a draft token whose estimated probability of being reached is lower "
        "[default: draft all].",
        extra={"drafter": ["dspark"]},
    )
    tree_file: Path | None = option(None, "JSON file with the paths of a static tree, each a list of ranks.")
    draft_sampling: bool = option(
        False,
        "Sample drafts from the drafter's distribution instead of taking its best tokens (chains and static trees, "
        "temperature above 0).",
    )
    depth: NonNegative | None = option(
        None, "Draft depth + 1 levels [default: the proposer's; 5 for a dynamic tree]."
    )
    topk: Positive | None = option(None, "Children of a node, and width of a tree level [default: 10].")
    total_nodes: Annotated[int, Field(ge=2)] | None = option(
        None, "Nodes per verification, including the root [default: 60]."
    )
    draft_window: Annotated[int, Field(ge=LEAST_WINDOW)] | None = option(
        None,
        "Number of positions that an EAGLE or MTP drafter attends to, for texts longer than those that it was "
        "trained on [default: the drafter's own window, or all].",
        extra={"drafter": ["eagle3", "eagle1", "mtp"]},
    )
    exit_layers: Positive | None = option(
        None,
        "Number of target layers that early-exit drafts with [default: a third].",
        extra={"proposer": "early-exit"},
    )
    ngram: NgramSizes | None = option(
        None,
        "Shortest and longest suffix that n-gram drafting looks up [default: 2:4].",
        metavar="MIN:MAX",
        extra={"proposer": "n-gram"},
    )
    look_ahead: NonNegative | None = option(
        None,
        "Bytes after a target token in which slrs looks for a longer token [default: 3].",
        extra={"proposer": "slrs"},
    )
    single_token: bool = option(
        False, "slrs drafts one target token per cycle, as in its paper.", extra={"proposer": "slrs"}
    )
    overlap: Path | None = option(
        None,
        "Shared tokens of target and drafter: a folder written by `compare-vocab --output`, in either order.",
        extra={"drafter": [DRAFT_MODEL]},
    )
    drafter_tokenizer: TokenizerPath | None = option(
        None,
        "Tokenizer folder for a draft model without its own tokenizer.",
        extra={"drafter": [DRAFT_MODEL]},
    )
    control: Annotated[Literal["fixed", "adaptive"], BeforeValidator(_former_control)] | None = option(
        None,
        "fixed drafts the full size in every cycle; adaptive drafts what pays off, down to nothing, and chooses "
        "between joined proposers [default: adaptive for joined proposers and on a CPU at temperature 0, else "
        "fixed].",
    )
    verifier: str | None = option(
        None,
        "How drafts are accepted when sampling: match, point or residual [default: residual with --draft-sampling, "
        "else match].",
        metavar="NAME",
    )

    @model_validator(mode="before")
    @classmethod
    def _former_keys(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        for key in ("fp8", "ranker_fp8"):
            if key in values:
                raise ValueError(
                    f"the key {key!r} was removed: leave it out, rankers score in their own dtype"
                )
        return {"head_rows" if key == "rows" else key: value for key, value in values.items()}

    @property
    def hybrid(self) -> bool:
        """Whether several proposers alternate."""
        return "+" in (self.proposer or "")  # ``JOIN`` of proposers/registry.py, which imports torch

    @property
    def drafts(self) -> bool:
        """Whether the method is more than plain decoding."""
        return self.drafter is not None or self.proposer is not None

    @property
    def label(self) -> str:
        """Name from the folders' names, as ``eval`` names its methods."""
        parts = [self.proposer or "plain" if self.drafter is None else labelled(str(self.drafter))[0]]
        parts += [labelled(str(path))[0] for path in (self.vocab, self.head) if path is not None]
        if self.dynamic is not None:
            parts.append(self.dynamic.partition(":")[0])
        return "+".join(parts)

    @property
    def draft_steps(self) -> int:
        """Number of draft steps of a schedule of budgets."""
        return 6 if self.depth is None else self.depth + 1

    def given(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults; 0 counts, an option switched off does not."""
        return {
            name: value
            for name in type(self).model_fields
            if (value := getattr(self, name)) not in (None, False, type(self).model_fields[name].default)
            or (value == 0 and type(value) is int)
        }

    def texts(self, names: Sequence[str]) -> list[str]:
        """Return options as on a command line, such as ``--depth 3``."""
        values = {name: getattr(self, name) for name in names}
        return [option_of(name) + ("" if value is True else f" {value}") for name, value in values.items()]

    def on(
        self,
        device: str,
        *,
        chains: bool = False,
        sampled: bool = False,
        trained: bool = False,
        most_levels: int | None = None,
    ) -> MethodSpec:
        """Return a copy with the tree and control that suit a type of device and a target, if left open.

        A CPU computes the nodes of a tree one after the other; a GPU computes many at the cost of one. A
        target with recurrent layers verifies ``chains`` only. Above temperature 0 (``sampled``), adaptive
        control would make a seed's output depend on a clock. ``trained``: the drafter is one of this
        project's kinds, not a language model. ``most_levels``: the maximum depth that it can draft, None
        without a limit.
        """
        measures = self.hybrid or (device == "cpu" and not sampled)
        control = self.control or ("adaptive" if measures else "fixed")
        spec = self.model_copy(update={"control": control})
        if chains and self.tree in (None, "auto") and self.drafter is not None:
            return spec.without("topk", "total_nodes").model_copy(update={"tree": "chain"})
        asked = self.tree_file or self.topk or self.total_nodes
        if self.tree != "auto" and (self.tree is not None or asked or not trained):
            return spec
        if device == "cuda":
            return spec.without("tree")
        most = min(SHORT_CHAIN, most_levels or SHORT_CHAIN) - 1
        depth = most if self.depth is None and not self.hybrid else self.depth  # not for a hybrid's parts
        return spec.without("topk", "total_nodes").model_copy(update={"tree": "chain", "depth": depth})

    def without(self, *names: str) -> MethodSpec:
        """Return a copy with the defaults for these fields."""
        fields = type(self).model_fields
        return self.model_copy(update={name: fields[name].default for name in names})

    def contradiction(self) -> str | None:
        """Return why these settings are not a valid method, in one sentence; None if they may be."""
        if self.dynamic is not None and self.dynamic.partition(":")[0] == "ranker":
            return RANKER_REMOVED
        if self.vocab is not None and self.head is not None:
            return "vocab and head are two ways of drafting"
        if self.dynamic is not None and self.vocab is None:
            return "dynamic adds tokens to a draft vocabulary: give vocab"
        useless = [name for name in self.given() if option_needs(name).heads] if self.head is None else []
        return f"{useless[0]} applies to a trained draft head: give head" if useless else None


@record(frozen=True, config=RECORD)
class DraftVocabulary:
    """Size of a draft head."""

    kind: str  # of ``models.heads.HEADS``; ``full`` or ``static`` for others
    size: int  # scored tokens per draft step, the mean over the steps of a draft
    of: int  # rows of the target's LM head


class MethodGrid:
    """Several decoding methods: every drafter alone, with every draft vocabulary and with every draft head.

    Drafters, vocabularies and heads are ``DIR`` or ``LABEL=DIR``. Proposers that need no drafter become
    methods; the others determine how the drafters draft. ``dynamic`` applies to every vocabulary, each
    overlap to its draft model, and the ``common`` fields of :class:`MethodSpec` to all methods.
    """

    LABELLED = ("drafter", "vocab", "head")
    MANY = (*LABELLED, "proposer", "dynamic", "overlap")

    def __init__(
        self,
        *,
        drafter: Sequence[str] | None = None,
        proposer: Sequence[str] | None = None,
        vocab: Sequence[str] | None = None,
        head: Sequence[str] | None = None,
        dynamic: Sequence[str] | None = None,
        overlap: Sequence[str | Path] | None = None,
        **common: Any,
    ) -> None:
        self.drafters = [(label, model_folder(path)) for label, path in map(labelled, drafter or ())]
        self.vocabs = [labelled(text) for text in vocab or ()]
        self.heads = [labelled(text) for text in head or ()]
        self.proposers, self.dynamic = list(proposer or ()), list(dynamic or ())
        self.overlaps = [Path(path) for path in overlap or ()]
        self.common = MethodSpec(**common)

    def on(self, device: str) -> MethodGrid:
        """Return a copy with the tree that suits a device; see :meth:`MethodSpec.on`."""
        grid = copy(self)
        if self.common.tree == "auto":
            tree = self.common.on(device)
            grid.common = tree.model_copy(update={"control": self.common.control})
        return grid


def option_of(name: str) -> str:
    """Return the command-line option of a field."""
    return "--" + name.replace("_", "-")


def meaningless(what: str, got: object, expected: str, remedy: str | None = None) -> UsageError:
    """Return the error for an option that nothing in the run reads."""
    return UsageError(f"{what} has no effect here", got=got, expected=expected, remedy=remedy)


class OptionNeeds(NamedTuple):
    """What an option of :class:`MethodSpec` needs to have an effect; its field declares it as ``extra``."""

    heads: Sequence[str] = ()  # kinds of trained draft head that read it; empty: it is not about heads
    proposer: str | None = None  # the only proposer that reads it; None: all do
    drafter: Sequence[str] = ()  # the only kinds of drafter that it is for; empty: any


def option_needs(name: str) -> OptionNeeds:
    """Return what an option needs."""
    extra: Any = MethodSpec.model_fields[name].json_schema_extra or {}
    return OptionNeeds(**{key: extra[key] for key in OptionNeeds._fields if key in extra})
