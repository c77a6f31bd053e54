"""What ``select-vocab`` does with its options: draft vocabularies are made, written, and reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...core.artifact import MANIFEST, check_output, open_artifact
from ...core.console import DataTable, say
from ...core.errors import UsageError
from ...core.files import sha256_file
from ...corpus.tokenizer.tokenizer import TextTokenizer, check_fingerprint, load_tokenizer
from ...vocab.subset.forced import ForceOptions, forced_ids, target_rows
from ...vocab.subset.maps import ExportInputs, exporters, read_counts_text, read_fr_spec, subset_from_list
from ...vocab.subset.subset import VocabSubset, make_subset, save_subset
from ..app import stdout_console
from ..options.tables import TableInput, load_table
from .select_vocab import Forcing, Output, SelectInputs, SizeOptions


@dataclass(frozen=True, eq=False)
class WrittenSubset:
    """One artefact that was written."""

    place: Path
    asked: str
    subset: VocabSubset
    export: ExportInputs


@dataclass(frozen=True, eq=False)
class Result:
    """All artefacts, and what the reports need beside them."""

    given: list[dict[str, Any]]
    made: list[WrittenSubset]
    rows: int | None = None
    missing_eos: list[int] = field(default_factory=list)

    @cached_property
    def padded(self) -> int | None:
        """Rows of the target's head that stand for no token."""
        return None if self.rows is None else self.rows - self.made[0].subset.vocab_size

    def facts(self) -> dict[str, Any]:
        """The result for ``--json``."""
        return {
            "counts": self.given,
            "target_rows": self.rows,
            "padded_rows": self.padded,
            "missing_eos": self.missing_eos,
            "subsets": [_facts(one) for one in self.made],
        }

    def print(self) -> None:
        """The result for people."""

        out = stdout_console()
        columns = ["size", "of vocabulary", "coverage", "forced ids", "filled"]
        out.print(DataTable("Draft vocabularies", columns, [_cells(one.subset) for one in self.made]))
        if any(one.subset.coverage is not None for one in self.made):
            out.print("coverage: share of the counted tokens that the draft vocabulary holds.", style="dim")
        for one in self.made:
            out.print(f"Written to {one.place}", markup=False, soft_wrap=True)
        for one in self.made:
            if one.subset.schedule:
                out.print("schedule B(0), B(1), …: " + ", ".join(f"{size:,}" for size in one.subset.schedule))
        if self.padded:
            out.print(f"{self.padded:,} padded rows: the target's head has {self.rows:,} rows.")


def run(inputs: SelectInputs, choice: SizeOptions, forcing: Forcing, output: Output) -> Result:
    """Make and write the draft vocabularies.

    Raises:
        VocabForgeError: whatever the options or the files cannot give.
    """
    options = forcing.options()
    if inputs.tokenizer is None and not inputs.counts and _has_tokenizer(options.target):
        inputs = replace(inputs, tokenizer=options.target)
    inputs.check()
    choice.check(inputs)
    tokenizer = load_tokenizer(inputs.tokenizer) if inputs.tokenizer is not None else None
    if inputs.from_list is not None and tokenizer is not None:
        return _import_list(inputs.from_list, tokenizer, options, output)
    schedule = choice.schedule()
    source = _table(inputs, tokenizer)
    table = source.table
    forced = forced_ids(table, options)
    plan = choice.plan(table.counts, forced)
    places = [output.path] if len(plan) == 1 else [output.path / f"r{size}" for size, _ in plan]
    _check_places(output, places)
    if tokenizer is not None:
        check_fingerprint(
            table.fingerprint,
            tokenizer.fingerprint,
            expected_from="the frequency table",
            got_from=tokenizer.source,
        )
    rows = _rows(options.target, table.vocab_size)
    made: dict[Path, WrittenSubset] = {}
    for place, (size, asked) in zip(places, plan):
        if place in made:  # a coverage that gives a size asked for already
            made[place] = replace(made[place], asked=f"{made[place].asked}, {asked}")
            continue
        subset = make_subset(
            table.counts,
            size,
            forced,
            fingerprint=table.fingerprint,
            fill=forcing.fill.value,
            schedule=schedule,
        )
        made[place] = WrittenSubset(place, asked, subset, ExportInputs(subset, table.counts, rows))
    _save(made.values(), source.parents, output)
    return Result(source.given, list(made.values()), rows)


def _import_list(file: Path, tokenizer: TextTokenizer, options: ForceOptions, output: Output) -> Result:
    """The ids of a finished list as they are; faults that a list can have are said."""
    if options != ForceOptions(target=options.target):
        raise UsageError(
            "an imported list is taken as it is, so nothing can be forced into it",
            remedy="select from a frequency table instead",
        )
    _check_places(output, [output.path])
    subset, missing = subset_from_list(read_fr_spec(file), tokenizer, source=file)
    rows = _rows(options.target, subset.vocab_size)
    if missing:
        say(
            f"Warning: the list lacks the end tokens {', '.join(map(str, missing))}: a drafter with it never drafts "
            "an end of turn. Select from a frequency table to have them inside."
        )
    digest = sha256_file(file)
    made = WrittenSubset(output.path, f"list {file}", subset, ExportInputs(subset, None, rows))
    _save([made], {"list": digest}, output)
    return Result([{"path": str(file), "sha256": digest}], [made], rows, missing)


def _table(inputs: SelectInputs, tokenizer: TextTokenizer | None) -> TableInput:
    if inputs.counts_text is not None and tokenizer is not None:
        table = read_counts_text(inputs.counts_text, tokenizer)
        (digest,) = table.sources.values()
        return TableInput(table, {"counts text": digest}, [{"path": str(inputs.counts_text), "weight": None}])
    return load_table(inputs.counts or (), inputs.domains or ())


def _check_places(output: Output, places: Sequence[Path]) -> None:
    if places != [output.path] and (output.path / MANIFEST).exists():
        raise UsageError(
            "the output is an artefact, so the folders of several sizes cannot stand in it",
            got=output.path,
            remedy="choose another --output",
        )
    for place in places:
        check_output(place, overwrite=output.result.overwrite)


def _has_tokenizer(target: Path | None) -> bool:
    return target is not None and (target / "tokenizer.json").is_file()


def _rows(target: Path | None, vocab_size: int) -> int | None:
    return target_rows(target, vocab_size) if target is not None else None


def _save(made: Iterable[WrittenSubset], parents: Mapping[str, str], output: Output) -> None:
    ready = [
        (one, exporters(output.exports, one.export)) for one in made
    ]  # says what is missing, before any writes
    for one, writers in ready:
        save_subset(
            one.subset, one.place, parents=parents, overwrite=output.result.overwrite, exports=writers
        )


def _facts(one: WrittenSubset) -> dict[str, Any]:
    subset = one.subset
    files = open_artifact(one.place, "subset", verify=False).manifest["files"]
    return {
        "output": str(one.place),
        "asked": one.asked,
        "size": len(subset),
        "vocab_size": subset.vocab_size,
        "share": len(subset) / subset.vocab_size,
        "coverage": subset.coverage,
        "forced": list(subset.forced),
        "filled": subset.filled,
        "schedule": list(subset.schedule),
        "files": sorted(files),
        "fingerprint": subset.fingerprint,
    }


def _cells(subset: VocabSubset) -> list[str]:
    few = ", ".join(map(str, subset.forced[:4])) + (", …" if len(subset.forced) > 4 else "")
    return [
        f"{len(subset):,}",
        f"{len(subset) / subset.vocab_size:.1%}",
        "-" if subset.coverage is None else f"{subset.coverage:.2%}",
        f"{len(subset.forced)} ({few})" if subset.forced else "0",
        f"{subset.filled:,}",
    ]
