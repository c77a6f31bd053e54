"""What ``vocabforge tune`` is asked for: models, the space that is searched, and the time for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.values import labelled, sizes_in, words_in
from ..options.decoding import DeviceOption, PromptFormatOption, TargetOption, TokenizerOption

if TYPE_CHECKING:
    from ...tune.options import TuneInputs, TuneOptions


class Dtype(str, Enum):
    """Of target and drafter."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is tuned, on which prompts, and where to."""

    target: TargetOption
    drafter: Annotated[Path, typer.Option("--drafter", help="Trained drafter, native or in another layout.")]
    prompts: Annotated[
        str,
        typer.Option(
            "--prompts",
            help="Question file of any format that eval reads, or the name of a benchmark: acceptance is measured on "
            "every other question, --check uses the rest.",
        ),
    ]
    output: Annotated[
        Path,
        typer.Option("--output", help="Folder of the run; an interrupted one goes on where it stopped."),
    ]


@dataclass(frozen=True, kw_only=True)
class HeadSpaceOptions:
    """The draft heads that are tried beside the drafter's own."""

    vocab: Annotated[
        list[str] | None,
        typer.Option(
            "--vocab", help="Subset artefact, as DIR or LABEL=DIR: a static draft vocabulary. Repeatable."
        ),
    ] = None
    ranking: Annotated[
        Path | None,
        typer.Option("--ranking", help="Frequency table or subset that static vocabularies are cut from."),
    ] = None
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="R,...", help="Sizes of the static vocabularies that are cut."),
    ] = None
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head", help="Draft head (ranker, low-rank, router), as DIR or LABEL=DIR. Repeatable."
        ),
    ] = None
    shortlist: Annotated[
        str | None,
        typer.Option("--shortlist", metavar="K,...", help="Candidates of the rankers [default: as saved]."),
    ] = None
    router_budget: Annotated[
        str | None,
        typer.Option(
            "--router-budget",
            metavar="K,...",
            help="Clusters that the routers open, K or LAW:MAX:MIN [default: as saved].",
        ),
    ] = None
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic",
            metavar="SOURCE[:SIZE]",
            help="Beside every static vocabulary also draft with the text's tokens (`context`), or a ranker's best "
            "(`ranker`). Repeatable.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class TreeSpaceOptions:
    """The draft trees that are tried."""

    chain: Annotated[
        str, typer.Option("--chain", metavar="N,...", help="Draft tokens of chains; empty: none.")
    ] = "1,2,3,4,6"
    levels: Annotated[
        str, typer.Option("--levels", metavar="N,...", help="Levels of dynamic trees (depth + 1).")
    ] = "2,4,6"
    topk: Annotated[
        str, typer.Option("--topk", metavar="N,...", help="Children of a node of dynamic trees.")
    ] = "2,4,8"
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N,...", help="Nodes that a verification checks, root included.")
    ] = "8,16,32,60"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """What is measured of every way, and for how long."""

    batch: Annotated[
        str,
        typer.Option(
            "--batch", metavar="N,...", help="Requests side by side; something is recommended for each."
        ),
    ] = "1"
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=2, help="Limit of an answer.")] = 128
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=4, help="Questions used, both halves together [default: all]."),
    ] = None
    prompt_format: PromptFormatOption = "auto"
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            min=0,
            help="Seconds for measuring: a tenth for latency, the rest for acceptance. What was not reached is "
            "reported; the same command with a longer budget continues. inf measures everything.",
        ),
    ] = 600.0


@dataclass(frozen=True, kw_only=True)
class LatencyOptions:
    """Where latency comes from, and whether the predictions are checked."""

    what_if: Annotated[
        Path | None,
        typer.Option(
            "--what-if",
            help="Latency file of another machine (--measure-only writes it there): no time is measured here.",
        ),
    ] = None
    measure_only: Annotated[
        bool,
        typer.Option(
            "--measure-only",
            help="Only measure latency, also of draft heads of usual sizes, and write latency.json, for --what-if.",
        ),
    ] = False
    check: Annotated[
        int,
        typer.Option(
            "--check",
            min=0,
            help="Evaluate so many ways, from the best to the worst, on the questions that were not used, and compare "
            "with the predictions. 8 show whether they hold.",
        ),
    ] = 0


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """What target and drafter run on."""

    tokenizer: TokenizerOption = None
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of target and drafter.")] = Dtype.float32
    device: DeviceOption = None


def tune_inputs(
    models: ModelOptions, heads: HeadSpaceOptions, latency: LatencyOptions, machine: MachineOptions
) -> TuneInputs:
    """What is tuned, as the search takes it.

    Raises:
        UsageError: a list that cannot be read, or sizes without a ranking.
    """
    from ...tune.options import TuneInputs
    from ...tune.search.proposers import HeadInputs

    return TuneInputs(
        target=models.target,
        drafter=models.drafter,
        prompts=models.prompts,
        tokenizer=machine.tokenizer,
        heads=HeadInputs(
            vocabs=tuple(map(labelled, heads.vocab or ())),
            heads=tuple(map(labelled, heads.head or ())),
            shortlists=sizes_in("--shortlist", heads.shortlist),
            budgets=words_in(heads.router_budget),
            dynamic=tuple(heads.dynamic or ()),
        ),
        ranking=heads.ranking,
        sizes=sizes_in("--size", heads.size),
        what_if=latency.what_if,
    )


def tune_options(
    trees: TreeSpaceOptions, search: SearchOptions, latency: LatencyOptions, machine: MachineOptions
) -> TuneOptions:
    """How the search goes, as it takes it.

    Raises:
        UsageError: a list that cannot be read, or a value out of its range.
    """
    from ...tune.options import TuneOptions
    from ...tune.search.space import TreeGrid

    return TuneOptions(
        grid=TreeGrid(
            chains=sizes_in("--chain", trees.chain),
            levels=sizes_in("--levels", trees.levels),
            topk=sizes_in("--topk", trees.topk),
            nodes=sizes_in("--nodes", trees.nodes),
        ),
        batches=sizes_in("--batch", search.batch),
        new_tokens=search.max_new_tokens,
        limit=search.limit,
        form=search.prompt_format,
        budget=search.budget,
        check=latency.check,
        device=machine.device,
        dtype=machine.dtype.value,
    )
