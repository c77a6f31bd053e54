"""``vocabforge merge-freq``: add frequency tables, or mix them by weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..app import JsonOption, OverwriteOption, print_json, stdout_console

if TYPE_CHECKING:
    from ...vocab.counts.table import FrequencyTable

TablesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=]DIR …",
        help="Frequency tables made by count-freq with one tokenizer; named after their folder, or NAME.",
        show_default=False,
    ),
]
WeightOption = Annotated[
    list[str] | None,
    typer.Option(
        "--weight",
        metavar="NAME=W",
        help="Mix instead of adding: the weight of a table, by its name or its folder; once for each. "
        "Without positional tables, `--weight DIR=W` names the table too.",
    ),
]
DomainsOption = Annotated[
    bool,
    typer.Option(
        "--domains",
        help="Each table becomes a domain of the result, under its name, so that coverage can be told apart.",
    ),
]
RepeatsOption = Annotated[
    bool, typer.Option("--allow-repeats", help="Allow one text in two tables; its tokens count twice.")
]
OutputOption = Annotated[
    Path, typer.Option("--output", metavar="DIR", help="Folder of the frequency table to write.")
]


def merge_freq(
    output: OutputOption,
    tables: TablesArgument = None,
    weight: WeightOption = None,
    domains: DomainsOption = False,
    allow_repeats: RepeatsOption = False,
    as_json: JsonOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Join frequency tables of one tokenizer: add their counts, or mix their frequencies by weight.

    Adding lets a table weigh as much as it has tokens. Mixing first brings each table to the same total, so that
    a small corpus can weigh as much as a large one: `sum of w * count / tokens`, stored as whole numbers.

    Examples: `vocabforge merge-freq en/ code/ --domains --output both/`
    and `vocabforge merge-freq --weight en/=0.7 --weight code/=0.3 --output mixed/`
    """
    from ...core.artifact import check_output
    from ...vocab.counts.mixtures import merge_tables, mix_tables
    from ...vocab.counts.table import save_counts
    from ..options.tables import load_part

    named, weights = _parse(tables or [], weight or [])
    check_output(output, overwrite=overwrite)
    parts = [load_part(name, path, weights.get(name, 1.0)) for name, path in named]
    if weights:
        table = mix_tables(parts, as_domains=domains)
    else:
        table = merge_tables(parts, as_domains=domains, allow_repeats=allow_repeats)
    parents = {f"counts {number}": str(part.content_hash) for number, part in enumerate(parts, start=1)}
    save_counts(table, output, parents=parents, overwrite=overwrite)
    if as_json:
        print_json(_facts(table, output))
    else:
        _print(table, output)


def _parse(tables: Sequence[str], weight: Sequence[str]) -> tuple[list[tuple[str, Path]], dict[str, float]]:
    """(name, folder) of each table, and weights by name (empty: add).

    Raises:
        UsageError: no table, two of one name, a weight for no table or for some tables only.
    """
    from ...core.errors import UsageError
    from ...core.values import labelled
    from ..options.tables import split_weight

    weighed = [split_weight(text, "--weight") for text in weight]
    named = [labelled(text) for text in tables or [name for name, _ in weighed]]
    if not named:
        raise UsageError("no frequency table was given", expected="vocabforge merge-freq A B --output C")
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError("two tables have one name", got=", ".join(twice), remedy="name them: NAME=DIR")
    by_name = {name: name for name in names}
    by_name |= {str(path): name for name, path in named} | dict(zip(tables or [w for w, _ in weighed], names))
    weights: dict[str, float] = {}
    for text, value in weighed:
        if value is None or text not in by_name:
            raise UsageError(
                "a weight names no table" if value is not None else "a table of --weight has no weight",
                got=text if value is None else f"{text}={value:g}",
                expected=" or ".join(f"{name}=NUMBER" for name in names),
            )
        weights[by_name[text]] = value
    if weights and len(weights) < len(names):
        lacking = [name for name in names if name not in weights]
        raise UsageError(
            "some tables have a weight and some have none",
            got=f"no weight for {', '.join(lacking)}",
            expected="a weight for each, or for none",
        )
    return named, weights


def _facts(table: FrequencyTable, output: Path) -> dict[str, Any]:
    return {
        "output": str(output),
        "mode": table.mode,
        "parts": list(table.origin["parts"]),
        "documents": table.documents,
        "bytes": table.bytes,
        "tokens": table.tokens,
        "vocab_size": table.vocab_size,
        "ids_with_count": table.seen,
        "domains": {name: part.tokens for name, part in table.domains.items()},
        "fingerprint": table.fingerprint,
    }


def _print(table: FrequencyTable, output: Path) -> None:
    from ...core.console import DataTable

    out = stdout_console()
    mixed = table.mode == "mixture"
    rows = []
    for part in table.origin["parts"]:
        share = part["weight"] if mixed else part["tokens"] / max(table.tokens, 1)
        rows.append([part["name"], part["tokens"], f"{share:.1%}"])
    title = "Mixed frequency tables" if mixed else "Added frequency tables"
    out.print(DataTable(title, ["table<", "tokens", "weight" if mixed else "share"], rows))
    out.print(
        f"{table.seen:,} of {table.vocab_size:,} ids have a count ({table.seen / table.vocab_size:.1%}). "
        f"Written to {output}",
        soft_wrap=True,
        markup=False,
    )
