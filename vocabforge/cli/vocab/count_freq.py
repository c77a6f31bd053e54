"""``vocabforge count-freq``: count how often each token occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..app import ResultOptions, echo, print_json, stdout_console
from ..options.texts import DocumentOptions, MoreInputsArgument, StrictOption

if TYPE_CHECKING:
    from ...vocab.counts.run import CountRun
    from ...vocab.counts.tally import CountOptions


class CountedText(str, Enum):
    """What is counted."""

    corpus = "corpus"
    assistant = "assistant"


@dataclass(frozen=True, kw_only=True)
class CountInputOptions:
    """What is counted, and how it is cut into documents."""

    first_inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="PATH …",
            help="Files, folders (searched through), globs in quotes, or `hub:NAME[:CONFIG[:SPLIT]]` data sets: "
            ".txt, .jsonl, .ndjson, .json, each also with .gz, .xz or .zst, and .parquet. "
            "Several may follow one --input, and it may be repeated.",
        ),
    ] = None
    more_inputs: MoreInputsArgument = None
    domain: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            metavar="NAME=PATH",
            help="Count this input (as in --input) apart, under a name; may be repeated, also for one name.",
        ),
    ] = None
    mode: Annotated[
        CountedText,
        typer.Option(
            help="**corpus**: every token of raw text, no BOS or EOS added. "
            "**assistant**: only what the assistant writes in conversations rendered by the chat template."
        ),
    ] = CountedText.corpus
    documents: DocumentOptions


@dataclass(frozen=True, kw_only=True)
class ExtentOptions:
    """How much is counted."""

    sample: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Count each document with this probability, decided by --seed."),
    ] = None
    seed: Annotated[int, typer.Option(help="Seed of --sample.")] = 0


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What counts, and what stops it."""

    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Counting processes on this machine.")] = 1
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="fast, pieces or plain; by default the fastest that is proved equal to the tokenizers library.",
        ),
    ] = None
    shard_mb: Annotated[
        int,
        typer.Option(
            "--shard-mb",
            metavar="N",
            min=1,
            help="Stored megabytes of a part: what a killed run loses at most.",
        ),
    ] = 256
    strict: StrictOption = False


def count_freq(
    tokenizer: Annotated[
        Path,
        typer.Option("--tokenizer", metavar="PATH", help="A tokenizer.json, or the folder that holds one."),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Folder of the frequency table to write.")
    ],
    inputs: CountInputOptions,
    extent: ExtentOptions,
    engine: EngineOptions,
    ending: ResultOptions,
) -> None:
    """Count how often each token of a tokenizer occurs in text or in conversations.

    The table at --output serves every size of draft vocabulary: see **select-vocab**. Token ids are exactly
    the tokenizers library's. An interrupted run goes on where it stopped when the same command is given
    again. Under `accelerate launch` the input is divided over all processes.
    Lines that are not UTF-8 or not JSON are skipped, counted, and the first few named on stderr.

    Example: `vocabforge count-freq --tokenizer model/ --input corpus/ more.jsonl.gz --output counts/`
    """
    from ...core.artifact import check_output
    from ...core.distributed import rank
    from ...core.errors import UsageError
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...vocab.counts.run import count_corpus, partial_folder
    from ...vocab.counts.table import save_counts

    paths = [*(inputs.first_inputs or []), *(inputs.more_inputs or [])]
    domains = _domains(inputs.domain or ())
    if not paths and not domains:
        raise UsageError("no input was given", expected="--input PATH …, or --domain NAME=PATH")
    options = _options(inputs, extent, engine)
    if rank() == 0:
        check_output(output, overwrite=ending.overwrite)
    run = count_corpus(
        load_tokenizer(tokenizer),
        paths,
        options,
        partial_folder(output),
        domains=domains,
        keep=lambda done: save_counts(done.table, output, overwrite=ending.overwrite),
    )
    if rank() == 0:
        _report(run, output, as_json=ending.as_json)


def _options(inputs: CountInputOptions, extent: ExtentOptions, engine: EngineOptions) -> CountOptions:
    """The options as the counting takes them.

    Raises:
        UsageError: two ways of parting documents, or a value out of its range.
    """
    from ...corpus.sources.sources import SourceOptions
    from ...vocab.counts.tally import CountOptions

    documents = inputs.documents
    documents.check()
    return CountOptions(
        mode=inputs.mode.value,
        sources=SourceOptions(
            text_field=documents.text_field,
            text_unit=documents.text_unit.value,
            separator=documents.separator,
            strict=engine.strict,
            sample=extent.sample,
            seed=extent.seed,
        ),
        engine=engine.engine,
        workers=engine.workers,
        shard_bytes=engine.shard_mb << 20,
    )


def _domains(given: Sequence[str]) -> dict[str, list[str]]:
    from ...core.errors import UsageError
    from ...core.values import split_pair

    found: dict[str, list[str]] = {}
    for entry in given:
        name, path = split_pair(entry, expected="--domain NAME=PATH", source="--domain")
        if not path:
            raise UsageError("a domain has no input", got=entry, expected="--domain NAME=PATH")
        found.setdefault(name, []).append(path)
    return found


def _facts(run: CountRun, output: Path) -> dict[str, Any]:
    table = run.table
    return {
        "output": str(output),
        "mode": table.mode,
        "files": len(table.sources),
        "documents": table.documents,
        "bytes": table.bytes,
        "tokens": table.tokens,
        "vocab_size": table.vocab_size,
        "ids_with_count": table.seen,
        "bytes_per_token": round(table.bytes / table.tokens, 3),
        "domains": {
            name: {"documents": part.documents, "bytes": part.bytes, "tokens": part.tokens}
            for name, part in table.domains.items()
        },
        "skipped": dict(run.problems),
        "fingerprint": table.fingerprint,
        "engine": run.engine,
        "notes": list(run.reasons),
        "parts": run.units,
        "parts_resumed": run.resumed,
        "start_s": round(run.start_s, 3),
        "seconds": round(run.seconds, 3),
    }


def _report(run: CountRun, output: Path, *, as_json: bool) -> None:
    facts = _facts(run, output)
    if as_json:
        print_json(facts)
        return
    table = run.table
    echo(
        f"{table.tokens:,} tokens in {table.documents:,} documents ({table.bytes / 1e6:,.1f} MB, "
        f"{facts['bytes_per_token']} bytes a token); {table.seen:,} of {table.vocab_size:,} ids occur "
        f"({table.seen / table.vocab_size:.1%}). Written to {output}"
    )
    if table.domains:
        _print_domains(run)


def _print_domains(run: CountRun) -> None:
    from ...core.console import DataTable

    columns = ["domain<", "documents", "MB", "tokens", "bytes a token", "ids that occur"]
    rows = []
    for name, part in run.table.domains.items():
        ratio = f"{part.bytes / part.tokens:.2f}" if part.tokens else None
        seen = int((part.counts > 0).sum())
        rows.append([name, part.documents, f"{part.bytes / 1e6:,.1f}", part.tokens, ratio, seen])
    stdout_console(highlight=True).print(DataTable("Domains", columns, rows))
