"""``vocabforge tune``: what to draft with on this machine."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import JsonOption, echo, print_json

if TYPE_CHECKING:
    from ..tune.outcome import TuneResults
    from ..tune.table import LatencyTable


class Dtype(str, Enum):
    """Of target and drafter."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def tune(
    target: Annotated[Path, typer.Option("--target", help="Folder of the target model (safetensors).")],
    drafter: Annotated[Path, typer.Option("--drafter", help="Trained drafter, native or in another layout.")],
    prompts: Annotated[
        str,
        typer.Option(
            "--prompts",
            help="Question file of any format that eval reads, or the name of a benchmark: acceptance is measured on "
            "every other question, --check uses the rest.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", help="Folder of the run; an interrupted one goes on where it stopped."),
    ],
    vocab: Annotated[
        list[str] | None,
        typer.Option(
            "--vocab", help="Subset artefact, as DIR or LABEL=DIR: a static draft vocabulary. Repeatable."
        ),
    ] = None,
    ranking: Annotated[
        Path | None,
        typer.Option("--ranking", help="Frequency table or subset that static vocabularies are cut from."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="R,...", help="Sizes of the static vocabularies that are cut."),
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head", help="Draft head (ranker, low-rank, router), as DIR or LABEL=DIR. Repeatable."
        ),
    ] = None,
    shortlist: Annotated[
        str | None,
        typer.Option("--shortlist", metavar="K,...", help="Candidates of the rankers [default: as saved]."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--router-budget",
            metavar="K,...",
            help="Clusters that the routers open, K or LAW:MAX:MIN [default: as saved].",
        ),
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            "--dynamic",
            metavar="SOURCE[:SIZE]",
            help="Beside every static vocabulary also draft with the text's tokens (`context`), or a ranker's best "
            "(`ranker`). Repeatable.",
        ),
    ] = None,
    chain: Annotated[
        str, typer.Option("--chain", metavar="N,...", help="Draft tokens of chains; empty: none.")
    ] = "1,2,3,4,6",
    levels: Annotated[
        str, typer.Option("--levels", metavar="N,...", help="Levels of dynamic trees (depth + 1).")
    ] = "2,4,6",
    topk: Annotated[
        str, typer.Option("--topk", metavar="N,...", help="Children of a node of dynamic trees.")
    ] = "2,4,8",
    nodes: Annotated[
        str, typer.Option("--nodes", metavar="N,...", help="Nodes that a verification checks, root included.")
    ] = "8,16,32,60",
    batch: Annotated[
        str,
        typer.Option(
            "--batch", metavar="N,...", help="Requests side by side; something is recommended for each."
        ),
    ] = "1",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=2, help="Limit of an answer.")] = 128,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=4, help="Questions used, both halves together [default: all]."),
    ] = None,
    prompt_format: Annotated[
        str,
        typer.Option(
            "--prompt-format", help="auto, chat or raw; auto uses the chat template where there is one."
        ),
    ] = "auto",
    seconds: Annotated[
        float | None,
        typer.Option(
            "--budget", min=0, help="Seconds for measuring acceptance [default: until all is known]."
        ),
    ] = None,
    measure_seconds: Annotated[
        float | None,
        typer.Option("--measure-budget", min=1, help="Seconds for measuring latency [default: 60]."),
    ] = None,
    what_if: Annotated[
        Path | None,
        typer.Option(
            "--what-if",
            help="Latency file of another machine (--measure-only writes it there): no time is measured here.",
        ),
    ] = None,
    measure_only: Annotated[
        bool,
        typer.Option(
            "--measure-only",
            help="Only measure latency, also of draft heads of usual sizes, and write latency.json, for --what-if.",
        ),
    ] = False,
    check: Annotated[
        int,
        typer.Option(
            "--check",
            min=0,
            help="Evaluate so many ways, from the best to the worst, on the questions that were not used, and compare "
            "with the predictions. 8 show whether they hold.",
        ),
    ] = 0,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Tokenizer folder [default: the target's].")
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of target and drafter.")] = Dtype.float32,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1 … [default: cuda where there is one].")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure latency anew where it is known for the same space.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose draft head, draft tree and batch size by measurement: what gives the most tokens a second here.

    Measures how long every part of a cycle takes on this machine and how much of every way's drafts is accepted, joins
    the two, and recommends. Writes `recipe.yaml` (for `eval --recipe`), `tune.json` with every figure, and a
    self-contained `report.html`. The same command again goes on where it stopped.

    Examples: `vocabforge tune --target model/ --drafter run/drafter --prompts heldout.jsonl --output tuned/` and
    `vocabforge tune ... --ranking counts/ --size 8192,16384,32768 --head ranker/ --shortlist 512,2048 --check 8`
    """
    from ..decode.build import labelled
    from ..tune.options import TuneInputs, TuneOptions
    from ..tune.proposing import HeadInputs
    from ..tune.run import measure_only as write_latency
    from ..tune.run import tune as run
    from ..tune.space import TreeGrid
    from .decode_options import wrap_for

    heads = HeadInputs(
        tuple(map(labelled, vocab or ())),
        tuple(map(labelled, head or ())),
        _numbers("--shortlist", shortlist),
        _texts(budget),
        tuple(dynamic or ()),
    )
    inputs = TuneInputs(
        target, drafter, prompts, tokenizer, heads, ranking, _numbers("--size", size), what_if
    )
    options = TuneOptions(
        TreeGrid(
            _numbers("--chain", chain),
            _numbers("--levels", levels),
            _numbers("--topk", topk),
            _numbers("--nodes", nodes),
        ),
        _numbers("--batch", batch),
        max_new_tokens,
        limit,
        prompt_format,
        budget=seconds,
        measure_budget=measure_seconds,
        check=check,
        device=device,
        dtype=dtype.value,
    )
    if measure_only:
        table = write_latency(output, inputs, options)
        _print_latency(table, output, as_json)
        return
    results = run(output, inputs, options, wrap=wrap_for(False, None, device), fresh=fresh)
    if as_json:
        print_json(results.model_dump(mode="json"))
    else:
        _print(results, output)


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """``1,2,3`` of an option; nothing gives nothing."""
    from ..core.errors import UsageError

    parts = _texts(text)
    if not all(part.isdecimal() for part in parts):
        raise UsageError("the list of numbers cannot be read", got=text, expected="1,2,3", source=option)
    return tuple(map(int, parts))


def _texts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _print_latency(table: LatencyTable, output: Path, as_json: bool) -> None:
    from ..tune.table import LATENCY

    if as_json:
        print_json(table.model_dump(mode="json"))
        return
    echo(f"Latency: {output / LATENCY}, typical error of cycles {table.error:.1%}, {table.rounds} rounds")
    echo(f"There: vocabforge tune ... --what-if {output / LATENCY}")


def _print(results: TuneResults, output: Path) -> None:
    """Recommendations, the best ways, the check."""
    from ..core.console import open_console
    from ..tune.outcome import RECIPE, REPORT
    from ..tune.terminal import check_table, headline, others_table, ways_table

    out = open_console()
    for one in results.recommendations:
        out.print(ways_table(results, one.batch))
        out.print(others_table(one))
    if results.check is not None:
        out.print(check_table(results.check))
    for remark in results.remarks:
        out.print(remark, style="yellow", soft_wrap=True, markup=False)
    for one in results.recommendations:
        out.print(headline(results, one), style="bold", soft_wrap=True, markup=False)
    target = output / RECIPE
    out.print(f"Recipe: {target} (vocabforge eval --recipe {target} ...)", soft_wrap=True, markup=False)
    out.print(f"Report: {output / REPORT}", soft_wrap=True, markup=False)
