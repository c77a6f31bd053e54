"""``vocabforge coverage``: the share of each text that a draft vocabulary covers, by size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...core.config import ResultOptions, StrictModel, option
from ...core.errors import UsageError
from ...core.values import labelled, sizes_in
from ..app import print_json, print_line, stdout_console

if TYPE_CHECKING:
    from ...vocab.subset.subset import VocabSubset


class CoverageRequest(StrictModel):
    """The texts and vocabularies to measure, and the output."""

    counts: Path = option(..., "Frequency table for the ranking, reported by domain.", "DIR")
    output: Path = option(..., "Output folder for coverage.json and coverage.png.", "DIR")
    heldout: tuple[str, ...] = option((), "Frequency table of held-out text.", "[NAME=]DIR", many=True)
    vocab: tuple[str, ...] = option((), "Draft vocabulary to compare.", "[NAME=]DIR", many=True)
    size: tuple[str, ...] = option(
        (),
        "Size to print: 16384, 16k or a list [default: powers of two, the sizes half way between, and the whole "
        "vocabulary].",
        "N,...",
        many=True,
    )


def coverage(asked: CoverageRequest, ending: ResultOptions) -> None:
    """Measure coverage against size, by domain, on counted and on held-out text.

    Example: `vocabforge coverage --counts counts/ --heldout test/ --vocab subsets/r32768 --output coverage/`
    """
    from ...core.artifact import check_output
    from ...evaluate.reports.coverage import coverage_tables, summary_lines, write_coverage
    from ...evaluate.reports.coverage_data import measure_coverage
    from ...vocab.counts.mixtures import TablePart

    check_output(asked.output, overwrite=ending.overwrite)
    parts = [TablePart.load(*labelled(item)) for item in (str(asked.counts), *asked.heldout)]
    vocabs, parents = _vocabs(asked.vocab)
    results = measure_coverage(parts[0], parts[1:], vocabs, sizes=sizes_in("--size", asked.size, least=1))
    parents |= {f"heldout {part.name}": str(part.content_hash) for part in parts[1:]}
    parents["counts"] = str(parts[0].content_hash)
    write_coverage(results, asked.output, parents, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(results)
        return
    for table in coverage_tables(results):
        stdout_console().print(table)
    for line in summary_lines(results):
        print_line(line)
    print_line(f"Plot: {asked.output / 'coverage.png'}")


def _vocabs(given: tuple[str, ...]) -> tuple[dict[str, VocabSubset], dict[str, str]]:
    from ...core.artifact import open_artifact
    from ...vocab.subset.subset import load_subset

    vocabs: dict[str, VocabSubset] = {}
    parents = {}
    for name, path in map(labelled, given):
        if name in vocabs:
            raise UsageError(
                "two draft vocabularies have one name", got=name, remedy="name them: --vocab NAME=DIR"
            )
        vocabs[name] = load_subset(path)
        parents[f"vocabulary {name}"] = open_artifact(path, verify=False).content_hash
    return vocabs, parents
