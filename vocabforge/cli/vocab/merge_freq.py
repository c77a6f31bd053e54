"""``vocabforge merge-freq``: add frequency tables, or mix them by weight."""

from __future__ import annotations

from pathlib import Path

from ...core.config import ResultOptions, StrictModel, option
from ...core.console import DataTable
from ...core.errors import UsageError
from ...core.values import labelled, split_weight
from ..app import print_json, print_line, stdout_console


class MergeRequest(StrictModel):
    """The tables, and how they are merged."""

    tables: tuple[str, ...] = option(
        (),
        "Frequency tables made by count-freq with one tokenizer; named after their folder, or NAME.",
        "[NAME=]DIR …",
        positional=True,
    )
    output: Path = option(..., "Folder of the frequency table to write.", "DIR")
    weight: tuple[str, ...] = option(
        (), "Mix instead of add: a table and its weight.", "[NAME=]DIR=W", many=True
    )
    domains: bool = option(False, "Make each table a named domain of the result, for coverage by domain.")
    allow_repeats: bool = option(False, "Allow the same text in two tables. Its tokens count twice.")


def merge_freq(asked: MergeRequest, ending: ResultOptions) -> None:
    """Merge frequency tables of one tokenizer: add counts, or mix frequencies by weight.

    Adding weights a table by its number of tokens. Mixing first normalises each table to the same total, so
    a small corpus can count as much as a large one: `sum of w * count / tokens`, stored as whole numbers.

    Examples: `vocabforge merge-freq en/ code/ --domains --output both/`
    and `vocabforge merge-freq --weight en/=0.7 --weight code/=0.3 --output mixed/`
    """
    from ...core.artifact import check_output
    from ...vocab.counts.mixtures import TablePart, merge_tables, mix_tables
    from ...vocab.counts.table import save_counts

    output = asked.output
    given = _given(asked)
    check_output(output, overwrite=ending.overwrite)
    parts = [TablePart.load(name, path, weight) for name, path, weight in given]
    if asked.weight:
        table = mix_tables(parts)
    else:
        table = merge_tables(parts, as_domains=asked.domains, allow_repeats=asked.allow_repeats)
    parents = {f"counts {number}": str(part.content_hash) for number, part in enumerate(parts, start=1)}
    save_counts(table, output, parents=parents, overwrite=ending.overwrite)
    joined = table.origin["parts"]
    if ending.as_json:
        print_json(
            {
                "output": str(output),
                "parts": list(joined),
                **table.totals(),
                "domains": {name: part.tokens for name, part in table.domains.items()},
            }
        )
        return
    mixed = table.mode == "mixture"
    shares = [source["weight"] if mixed else source["tokens"] / max(table.tokens, 1) for source in joined]
    rows = [
        [source["name"], source["tokens"], f"{share:.1%}"]
        for source, share in zip(joined, shares, strict=True)
    ]
    title = "Mixed frequency tables" if mixed else "Added frequency tables"
    stdout_console().print(DataTable(title, ["table<", "tokens", "weight" if mixed else "share"], rows))
    print_line(
        f"{table.seen:,} of {table.vocab_size:,} ids have a count ({table.seen / table.vocab_size:.1%}). "
        f"Written to {output}"
    )


def _given(asked: MergeRequest) -> list[tuple[str, Path, float]]:
    if bool(asked.tables) == bool(asked.weight):
        raise UsageError(
            "give the tables once: alone to add them, with weights to mix them",
            got="both" if asked.tables else "no table",
            expected="merge-freq A B, or merge-freq --weight A=0.7 --weight B=0.3",
        )
    if asked.weight and asked.domains:
        raise UsageError(
            "a mixture has no domains",
            got="--domains with --weight",
            remedy="leave --domains out; `coverage --heldout NAME=DIR` compares the tables",
        )
    weighted = []
    for text, weight in [split_weight(word, "--weight") for word in asked.weight]:
        if weight is None:
            raise UsageError("a table has no weight", got=text, expected=f"--weight {text}=0.7")
        weighted.append((*labelled(text), weight))
    weighted += [(*labelled(text), 1.0) for text in asked.tables]
    names = [name for name, *_ in weighted]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError("two tables have one name", got=", ".join(twice), remedy="name them: NAME=DIR")
    return weighted
