"""``vocabforge merge-freq``: add frequency tables, or mix them by weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.config import StrictModel
from ...core.console import DataTable
from ...core.errors import UsageError
from ...core.values import labelled
from ..app import ResultOptions, print_json, print_line, stdout_console
from ..options.groups import option
from ..options.tables import load_part, split_weight


class MergeRequest(StrictModel):
    """The tables, and how they are joined."""

    tables: tuple[str, ...] = option(
        (),
        "Frequency tables made by count-freq with one tokenizer; named after their folder, or NAME.",
        "[NAME=]DIR …",
        positional=True,
    )
    output: Path = option(..., "Folder of the frequency table to write.", "DIR")
    weight: tuple[str, ...] = option(
        (),
        "Mix instead of adding: the weight of a table, by its name or its folder; once for each. Without positional "
        "tables, `--weight DIR=W` names the table too.",
        "NAME=W",
        many=True,
    )
    domains: bool = option(
        False,
        "Each table becomes a domain of the result, under its name, so that coverage can be told apart.",
    )
    allow_repeats: bool = option(False, "Allow one text in two tables; its tokens count twice.")


def merge_freq(asked: MergeRequest, ending: ResultOptions) -> None:
    """Join frequency tables of one tokenizer: add their counts, or mix their frequencies by weight.

    Adding lets a table weigh as much as it has tokens. Mixing first brings each table to the same total, so that
    a small corpus can weigh as much as a large one: `sum of w * count / tokens`, stored as whole numbers.

    Examples: `vocabforge merge-freq en/ code/ --domains --output both/`
    and `vocabforge merge-freq --weight en/=0.7 --weight code/=0.3 --output mixed/`
    """
    from ...core.artifact import check_output
    from ...vocab.counts.mixtures import merge_tables, mix_tables
    from ...vocab.counts.table import save_counts

    output = asked.output
    named, weights = _parse(asked.tables, asked.weight)
    check_output(output, overwrite=ending.overwrite)
    parts = [load_part(name, path, weights.get(name, 1.0)) for name, path in named]
    if weights:
        table = mix_tables(parts, as_domains=asked.domains)
    else:
        table = merge_tables(parts, as_domains=asked.domains, allow_repeats=asked.allow_repeats)
    parents = {f"counts {number}": str(part.content_hash) for number, part in enumerate(parts, start=1)}
    save_counts(table, output, parents=parents, overwrite=ending.overwrite)
    joined = table.origin["parts"]
    if ending.as_json:
        print_json(
            {
                "output": str(output),
                "mode": table.mode,
                "parts": list(joined),
                "documents": table.documents,
                "bytes": table.bytes,
                "tokens": table.tokens,
                "vocab_size": table.vocab_size,
                "ids_with_count": table.seen,
                "domains": {name: part.tokens for name, part in table.domains.items()},
                "fingerprint": table.fingerprint,
            }
        )
        return
    mixed = table.mode == "mixture"
    shares = [one["weight"] if mixed else one["tokens"] / max(table.tokens, 1) for one in joined]
    rows = [[one["name"], one["tokens"], f"{share:.1%}"] for one, share in zip(joined, shares, strict=True)]
    title = "Mixed frequency tables" if mixed else "Added frequency tables"
    stdout_console().print(DataTable(title, ["table<", "tokens", "weight" if mixed else "share"], rows))
    print_line(
        f"{table.seen:,} of {table.vocab_size:,} ids have a count ({table.seen / table.vocab_size:.1%}). "
        f"Written to {output}"
    )


def _parse(tables: Sequence[str], weight: Sequence[str]) -> tuple[list[tuple[str, Path]], dict[str, float]]:
    """(name, folder) of each table, and weights by name (empty: add).

    Raises:
        UsageError: no table, two of one name, a weight for no table or for some tables only.
    """
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
