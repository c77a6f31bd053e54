"""Options of the commands that decode: how is drafted, and how tokens are chosen."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
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


ProposerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--proposer",
        help="n-gram, early-exit, draft-model, tli, slem, slrs, medusa, eagle1, eagle2 or eagle3. The first two need "
        "no drafter; the others say how --drafter drafts [default: by its kind and vocabulary]. Repeatable.",
    ),
]
TreeOption = Annotated[
    Tree | None,
    typer.Option(
        "--tree",
        help="What is drafted: a dynamic tree, a chain of depth + 1 tokens, or a static tree [default: the "
        "proposer's].",
    ),
]
TreeFileOption = Annotated[
    Path | None,
    typer.Option("--tree-file", help="JSON with the paths of a static tree, each a list of ranks."),
]
DraftSamplingOption = Annotated[
    bool,
    typer.Option(
        "--draft-sampling",
        help="Draw drafts from the drafter's distribution instead of taking its best tokens "
        "(chains and static trees, temperature above 0).",
    ),
]
DepthOption = Annotated[
    int | None,
    typer.Option(
        "--depth", min=0, help="Draft depth + 1 tokens deep [default: the proposer's; 5 for a dynamic tree]."
    ),
]
TopkOption = Annotated[
    int | None,
    typer.Option("--topk", min=1, help="Children of a node and width of a tree level [default: 10]."),
]
NodesOption = Annotated[
    int | None,
    typer.Option(
        "--total-nodes", min=2, help="Nodes that one verification checks, root included [default: 60]."
    ),
]
LayersOption = Annotated[
    int | None,
    typer.Option(
        "--exit-layers", min=1, help="Layers of the target that an early exit drafts with [default: a third]."
    ),
]
NgramOption = Annotated[
    str | None,
    typer.Option(
        "--ngram",
        metavar="MIN:MAX",
        help="Shortest and longest suffix that n-gram drafting looks up [default: 2:4].",
    ),
]
LookAheadOption = Annotated[
    int | None,
    typer.Option(
        "--look-ahead",
        min=0,
        help="Bytes behind a target token within which slrs looks for a longer one [default: 3].",
    ),
]
SingleOption = Annotated[
    bool,
    typer.Option("--single-token", help="slrs drafts one target token a cycle, as in its paper."),
]
_OVERLAP_HELP = "Common tokens of target and drafter, as `compare-vocab --save` wrote them, in either order."
OverlapOption = Annotated[list[Path] | None, typer.Option("--overlap", help=_OVERLAP_HELP + " Repeatable.")]
OneOverlapOption = Annotated[Path | None, typer.Option("--overlap", help=_OVERLAP_HELP)]
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
CompileOption = Annotated[
    bool,
    typer.Option("--compile", help="Compile the passes first (a minute or so); each is faster afterwards."),
]
GraphsOption = Annotated[
    bool | None,
    typer.Option(
        "--graphs/--no-graphs",
        help="Replay cycles as CUDA graphs [default: on CUDA devices].",
    ),
]

TemperatureOption = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        min=0,
        max=2**63 - 1,
        help="Start of the random streams; the same seed, the same output.",
    ),
]
SamplingTopKOption = Annotated[
    int,
    typer.Option("--sampling-top-k", min=0, help="Choose among the k most probable tokens; 0: all."),
]
TopPOption = Annotated[
    float, typer.Option("--top-p", help="Choose among the tokens of this probability mass, above 0 to 1.")
]
MinPOption = Annotated[
    float, typer.Option("--min-p", help="Drop tokens below this share of the most probable one, 0 to 1.")
]
RepetitionOption = Annotated[
    float, typer.Option("--repetition-penalty", help="Against tokens of prompt and output; 1: none.")
]
PresenceOption = Annotated[
    float, typer.Option("--presence-penalty", help="Against tokens of the output, once; 0: none.")
]
FrequencyOption = Annotated[
    float, typer.Option("--frequency-penalty", help="Against tokens of the output, each time; 0: none.")
]


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


def draft_options(tree: Tree | None, ngram: str | None, **others: Any) -> DraftOptions:
    """The options as ``decode.build`` takes them; ``others`` have the names of ``DraftOptions``.

    Raises:
        UsageError: sizes of n-grams that cannot be read.
    """
    from ..decode.build_options import parse_ngram
    from ..decode.proposers import DraftOptions

    return DraftOptions(tree=None if tree is None else tree.value, ngram=parse_ngram(ngram), **others)
