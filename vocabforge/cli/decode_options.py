"""Options of the commands that decode: what is drafted, and how the passes run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .head_options import HeadOptions

if TYPE_CHECKING:
    from ..decode.build_options import BuildOptions
    from ..decode.draft import Wrap
    from ..decode.proposers import DraftOptions


class Tree(str, Enum):
    """Shape of what is drafted."""

    dynamic = "dynamic"
    chain = "chain"
    static = "static"


class ControlName(str, Enum):
    """Who chooses how much a cycle drafts."""

    fixed = "fixed"
    adaptive = "adaptive"


TargetOption = Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")]
TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
]
PromptFormatOption = Annotated[
    str,
    typer.Option(
        "--prompt-format", help="auto, chat or raw; auto uses the chat template where there is one."
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda, cuda:1 … [default: cuda where there is one].")
]
_OVERLAP_HELP = "Common tokens of target and drafter, as `compare-vocab --save` wrote them, in either order."
DrafterTokenizerOption = Annotated[
    Path | None,
    typer.Option(
        "--drafter-tokenizer", help="Tokenizer folder for a draft model whose own folder holds none."
    ),
]
ControlOption = Annotated[
    ControlName,
    typer.Option(
        "--control",
        help="fixed drafts the full size in every cycle; adaptive drafts what pays, and nothing where nothing does.",
    ),
]
VerifierOption = Annotated[
    str | None,
    typer.Option(
        "--verifier",
        metavar="NAME",
        help="Row of the verifiers' table that decides, above temperature 0, which drafts are kept: match, point or "
        "residual [default: residual for drawn drafts, else match].",
    ),
]


@dataclass(frozen=True, kw_only=True)
class TreeSizeOptions:
    """Sizes of a draft tree."""

    depth: Annotated[
        int | None,
        typer.Option(
            "--depth",
            min=0,
            help="Draft depth + 1 tokens deep [default: the proposer's; 5 for a dynamic tree].",
        ),
    ] = None
    topk: Annotated[
        int | None,
        typer.Option("--topk", min=1, help="Children of a node and width of a tree level [default: 10]."),
    ] = None
    total_nodes: Annotated[
        int | None,
        typer.Option(
            "--total-nodes", min=2, help="Nodes that one verification checks, root included [default: 60]."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DraftShapeOptions:
    """What a proposer drafts."""

    tree: Annotated[
        Tree | None,
        typer.Option(
            "--tree",
            help="What is drafted: a dynamic tree, a chain of depth + 1 tokens, or a static tree [default: the "
            "proposer's].",
        ),
    ] = None
    tree_file: Annotated[
        Path | None,
        typer.Option("--tree-file", help="JSON with the paths of a static tree, each a list of ranks."),
    ] = None
    draft_sampling: Annotated[
        bool,
        typer.Option(
            "--draft-sampling",
            help="Draw drafts from the drafter's distribution instead of taking its best tokens "
            "(chains and static trees, temperature above 0).",
        ),
    ] = False
    sizes: TreeSizeOptions
    exit_layers: Annotated[
        int | None,
        typer.Option(
            "--exit-layers",
            min=1,
            help="Layers of the target that an early exit drafts with [default: a third].",
        ),
    ] = None
    ngram: Annotated[
        str | None,
        typer.Option(
            "--ngram",
            metavar="MIN:MAX",
            help="Shortest and longest suffix that n-gram drafting looks up [default: 2:4].",
        ),
    ] = None
    look_ahead: Annotated[
        int | None,
        typer.Option(
            "--look-ahead",
            min=0,
            help="Bytes behind a target token within which slrs looks for a longer one [default: 3].",
        ),
    ] = None
    single_token: Annotated[
        bool, typer.Option("--single-token", help="slrs drafts one target token a cycle, as in its paper.")
    ] = False

    def options(self) -> DraftOptions:
        """The same as ``decode.build`` takes it.

        Raises:
            UsageError: sizes of n-grams that cannot be read.
        """
        from ..decode.build_options import parse_ngram
        from ..decode.proposers import DraftOptions

        return DraftOptions(
            tree=None if self.tree is None else self.tree.value,
            sample=self.draft_sampling,
            depth=self.sizes.depth,
            topk=self.sizes.topk,
            total_nodes=self.sizes.total_nodes,
            tree_file=self.tree_file,
            layers=self.exit_layers,
            ngram=parse_ngram(self.ngram),
            look_ahead=self.look_ahead,
            single=self.single_token,
        )


@dataclass(frozen=True, kw_only=True)
class DraftingOptions:
    """How drafters draft."""

    shape: DraftShapeOptions
    overlap: Annotated[list[Path] | None, typer.Option("--overlap", help=_OVERLAP_HELP + " Repeatable.")] = (
        None
    )
    drafter_tokenizer: DrafterTokenizerOption = None
    control: ControlOption = ControlName.fixed
    verifier: VerifierOption = None


@dataclass(frozen=True, kw_only=True)
class OneDraftingOptions:
    """The same where there is one drafter."""

    shape: DraftShapeOptions
    overlap: Annotated[Path | None, typer.Option("--overlap", help=_OVERLAP_HELP)] = None
    drafter_tokenizer: DrafterTokenizerOption = None
    control: ControlOption = ControlName.fixed
    verifier: VerifierOption = None

    def as_many(self) -> DraftingOptions:
        """The same for several drafters."""
        return DraftingOptions(
            shape=self.shape,
            overlap=[self.overlap] if self.overlap else None,
            drafter_tokenizer=self.drafter_tokenizer,
            control=self.control,
            verifier=self.verifier,
        )


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """What the passes run on, and how they are made faster."""

    compiled: Annotated[
        bool,
        typer.Option(
            "--compile", help="Compile the passes first (a minute or so); each is faster afterwards."
        ),
    ] = False
    graphs: Annotated[
        bool | None,
        typer.Option("--graphs/--no-graphs", help="Replay cycles as CUDA graphs [default: on CUDA devices]."),
    ] = None
    dtype: Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = "float32"
    device: DeviceOption = None


def build_options(
    drafting: DraftingOptions,
    heads: HeadOptions,
    passes: PassOptions,
    *,
    tokenizer: Path | None,
    proposers: list[str],
    sampled: bool,
) -> BuildOptions:
    """The options as :func:`~vocabforge.decode.build.build_methods` takes them.

    Raises:
        UsageError: one that cannot be read, or a way of running passes that the device does not have.
    """
    from ..decode.build_options import BuildOptions

    return BuildOptions(
        tokenizer=tokenizer,
        device=passes.device,
        dtype=passes.dtype,
        proposers=proposers,
        draft=drafting.shape.options(),
        heads=heads.request(),
        control=drafting.control.value,
        wrap=wrap_for(passes.compiled, passes.graphs, passes.device),
        sampled=sampled,
        overlaps=drafting.overlap or [],
        drafter_tokenizer=drafting.drafter_tokenizer,
        verifier=drafting.verifier,
    )


def wrap_for(compiled: bool, graphs: bool | None, device: str | None) -> Wrap | None:
    """What makes passes faster.

    Args:
        graphs: None where nothing was said: on CUDA devices only.

    Raises:
        UsageError: both, or one that the device does not have.
    """
    from ..core.errors import UsageError
    from ..models.device import choose_device

    if compiled and graphs:
        raise UsageError(
            "passes are either compiled or captured",
            got="--compile and --graphs",
            expected="one of them: --compile on a CPU, --graphs on a CUDA device",
        )
    chosen = choose_device(device)
    if compiled:
        from ..decode.compiled import compile_passes

        return compile_passes(chosen)
    if graphs or (graphs is None and chosen.type == "cuda"):
        from ..decode.graphs import capture_passes

        return capture_passes(chosen)
    return None
