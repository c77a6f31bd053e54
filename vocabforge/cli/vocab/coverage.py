"""``vocabforge coverage``: the share of each text that a draft vocabulary covers, by size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from ...evaluate.reports.coverage_data import measure_coverage
    from ...vocab.counts.mixtures import TablePart

    check_output(asked.output, overwrite=ending.overwrite)
    parts = [TablePart.load(*labelled(item)) for item in (str(asked.counts), *asked.heldout)]
    vocabs, parents = _vocabs(asked.vocab)
    results = measure_coverage(parts[0], parts[1:], vocabs, sizes=sizes_in("--size", asked.size, least=1))
    parents |= {f"heldout {part.name}": str(part.content_hash) for part in parts[1:]}
    parents["counts"] = str(parts[0].content_hash)
    _write(results, asked.output, parents, overwrite=ending.overwrite)
    if ending.as_json:
        print_json(results)
    else:
        _print(results, asked.output)


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


def _write(results: dict[str, Any], output: Path, parents: Mapping[str, str], *, overwrite: bool) -> None:
    import shlex
    import time

    from ...core.artifact import write_artifact
    from ...core.files import atomic_write, atomic_write_json
    from ...core.provenance import command_line
    from ...evaluate.reports.coverage import render_coverage

    results["created"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    results["command"] = shlex.join(command_line())
    results["facts"] = {f"{role} hash": digest[:16] for role, digest in parents.items()} | {
        "tokenizer fingerprint": results["fingerprint"][:16],
        "forced ids first": ", ".join(map(str, results["forced"])) or "none",
        "measured": results["created"],
    }
    meta = {
        "vocab_size": results["vocab_size"],
        "fingerprint": results["fingerprint"],
        "texts": [one["name"] for one in results["texts"]],
        "sizes": results["sizes"],
    }
    with write_artifact(output, "coverage", meta, parents=parents, overwrite=overwrite) as folder:
        atomic_write_json(folder / "coverage.json", results)
        atomic_write(folder / "coverage.png", render_coverage(results))


def _print(results: Mapping[str, Any], output: Path) -> None:
    from ...evaluate.reports.coverage import coverage_tables, summary_lines

    for table in coverage_tables(results):
        stdout_console().print(table)
    for line in summary_lines(results):
        print_line(line)
    print_line(f"Plot: {output / 'coverage.png'}")
