"""``vocabforge select-vocab``: choose draft vocabularies from a frequency table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...core.errors import UsageError
from ...core.values import sizes_in
from ..app import ResultOptions, print_json
from ..options.groups import one_size

if TYPE_CHECKING:
    from ...vocab.subset.forced import ForceOptions
    from ...vocab.subset.select import Ids


class Fill(str, Enum):
    """What to do when too few ids have a count."""

    error = "error"
    lowest_id = "lowest-id"


@dataclass(frozen=True, kw_only=True)
class SelectInputs:
    """Where the ids come from: frequency tables, a text of counts, or a finished list."""

    counts: Annotated[
        list[str] | None,
        typer.Option(
            "--counts",
            metavar="DIR",
            help="Frequency table made by count-freq. Several, as DIR=WEIGHT each, are mixed by weight.",
        ),
    ] = None
    counts_text: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead: a text file with one count a line for each token id. Needs --tokenizer.",
        ),
    ] = None
    from_list: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead: import an FR-Spec list (.pt) as it is. Needs --tokenizer."
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Tokenizer of an imported file."),
    ] = None
    domains: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            metavar="NAME",
            help="Count only this domain of the table; may be repeated. NAME=WEIGHT mixes domains by weight.",
        ),
    ] = None

    def check(self) -> None:
        """Exactly one source, with the tokenizer that it needs.

        Raises:
            UsageError: none, or several that exclude each other.
        """
        sources = {"--counts": self.counts, "--counts-text": self.counts_text, "--from-list": self.from_list}
        given = [option for option, value in sources.items() if value]
        if len(given) != 1:
            raise UsageError(
                "a draft vocabulary is made from one source",
                got=" and ".join(given) or "none",
                expected=" or ".join(sources),
            )
        if self.domains and not self.counts:
            raise UsageError(
                f"{given[0]} has no domains",
                got=f"--domain {self.domains[0]}",
                expected="--domain beside --counts",
                remedy="leave --domain out",
            )
        if not self.counts and self.tokenizer is None:
            raise UsageError(
                f"{given[0]} needs the tokenizer of its ids",
                expected="--tokenizer PATH, or --target with a tokenizer.json in it",
            )


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """Which sizes are asked for."""

    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="N,...",
            help="Ids of the draft vocabulary: 16384, 16k or a list; may be repeated.",
        ),
    ] = None
    coverages: Annotated[
        list[float] | None,
        typer.Option(
            "--coverage",
            metavar="SHARE",
            help="Instead of a size: the smallest one that holds this share of the counted tokens (0.95); may be "
            "repeated.",
        ),
    ] = None
    law: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="LAW",
            help="PA-FR: `constant`, `linear`, `geometric` or `decay`; draft step t uses the first B(t) ids in rank "
            "order.",
        ),
    ] = None
    k_max: Annotated[
        int | None,
        typer.Option(
            parser=one_size, metavar="N", help="Schedule: size at draft steps 0 and 1, and of the artefact."
        ),
    ] = None
    k_min: Annotated[
        int | None,
        typer.Option(parser=one_size, metavar="N", help="Schedule: size that it never falls below."),
    ] = None
    steps: Annotated[int, typer.Option(min=1, metavar="K", help="Schedule: number of draft steps.")] = 7

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that were asked for."""
        return sizes_in("--size", self.size, least=1)

    def check(self, inputs: SelectInputs) -> None:
        """Sizes, coverages, or a schedule; nothing with a finished list.

        Raises:
            UsageError: none of them, or some that exclude each other.
        """
        asked = [
            option
            for option, value in (
                ("--size", self.sizes),
                ("--coverage", self.coverages),
                ("--schedule", self.law),
                ("--k-max", self.k_max),
                ("--k-min", self.k_min),
            )
            if value
        ]
        if inputs.from_list is not None:
            if asked:
                raise UsageError(
                    "an imported list has its size already",
                    got=", ".join(asked),
                    expected="--from-list without them",
                    remedy="leave them out",
                )
        elif not asked:
            raise UsageError(
                "the size of the draft vocabulary is missing",
                expected="--size N, --coverage SHARE, or --schedule LAW --k-max N",
            )
        elif (self.law is None) != (self.k_max is None) or (self.k_min is not None and self.law is None):
            raise UsageError(
                "a schedule needs its law and its largest size",
                got=", ".join(asked),
                expected="--schedule LAW --k-max N",
            )
        elif self.law is not None and (self.sizes or self.coverages):
            raise UsageError(
                "a schedule makes one artefact, of size --k-max",
                got=", ".join(asked),
                remedy="leave the others out",
            )

    def schedule(self) -> tuple[int, ...]:
        """B(0), B(1), ..., empty without a schedule.

        Raises:
            UsageError: an unknown law, or sizes out of order.
        """
        from ...vocab.subset.schedule import schedule_sizes

        if self.law is None or self.k_max is None:
            return ()
        return schedule_sizes(self.law, self.k_max, self.k_min, self.steps)

    def plan(self, counts: Ids, forced: Sequence[int]) -> list[tuple[int, str]]:
        """(size, what was asked for), in order."""
        from ...vocab.subset.coverage import size_for_coverage

        if self.law is not None and self.k_max is not None:
            return [(self.k_max, f"schedule {self.law}")]
        plan = [(size, f"size {size}") for size in dict.fromkeys(self.sizes)]
        shares = dict.fromkeys(self.coverages or ())
        return plan + [(size_for_coverage(counts, share, forced), f"coverage {share:g}") for share in shares]


@dataclass(frozen=True, kw_only=True)
class Forcing:
    """Which ids are inside in any case, and what fills the rest."""

    force: Annotated[
        list[int] | None, typer.Option("--force", metavar="ID", help="Force this token id; may be repeated.")
    ] = None
    force_bytes: Annotated[bool, typer.Option("--force-bytes", help="Force the 256 byte tokens.")] = False
    force_tools: Annotated[
        bool,
        typer.Option("--force-tools", help="Force the chat template's tokens for tool calls and thinking."),
    ] = False
    target: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Target model folder: its end tokens are forced, its tokenizer must be the counted one, and its "
            "padded rows are counted in `t2d`.",
        ),
    ] = None
    fill: Annotated[
        Fill,
        typer.Option(
            help="When too few ids have a count: **error** says how many there are; **lowest-id** takes the "
            "lowest ids without a count and reports how many."
        ),
    ] = Fill.error

    def options(self) -> ForceOptions:
        """The forced ids as the selection takes them."""
        from ...vocab.subset.forced import ForceOptions

        return ForceOptions(tuple(self.force or ()), self.force_bytes, self.force_tools, self.target)


@dataclass(frozen=True, kw_only=True)
class Output:
    """How the artefacts are written."""

    path: Annotated[
        Path,
        typer.Option(
            "--output",
            metavar="DIR",
            help="With one size, the artefact itself; with several, a folder with one artefact `rN` each.",
        ),
    ]
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            metavar="FORMAT",
            help="Also write, inside the artefact: `fr-spec` (freq_SIZE.pt), `d2t` (d2t.safetensors), "
            "`counts-text` (counts.txt, one count a line); may be repeated.",
        ),
    ] = None
    result: ResultOptions

    @property
    def exports(self) -> tuple[str, ...]:
        """Each format once."""
        return tuple(dict.fromkeys(self.export or ()))


def select_vocab(inputs: SelectInputs, choice: SizeOptions, forcing: Forcing, output: Output) -> None:
    """Choose the most frequent tokens as a draft vocabulary (FR-Spec, VocabTrim, EAGLE-3's d2t).

    Exactly N unique ids: first the forced ones (end tokens and the chat template's control tokens, always),
    then by count, ties to the lower id.

    Examples: `vocabforge select-vocab --counts counts/ --size 8192 --size 32768 --output subsets/`
    and `vocabforge select-vocab --counts counts/ --coverage 0.95 --export fr-spec --output subset/`
    """
    from .select_run import run

    result = run(inputs, choice, forcing, output)
    if output.result.as_json:
        print_json(result.facts())
    else:
        result.print()
