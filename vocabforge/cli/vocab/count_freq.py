"""``vocabforge count-freq``: count how often each token occurs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...core.config import CONTENT_FORMAT, STRICT, Positive, StrictModel, TokenizerPath
from ...core.console import DataTable
from ..app import ResultOptions, echo, print_json, stdout_console
from ..options.groups import option
from ..options.texts import TextUnit, check_parting

if TYPE_CHECKING:
    from ...vocab.counts.run import CountRun
    from ...vocab.counts.tally import CountOptions


class CountRequest(StrictModel):
    """The tokenizer, the inputs, and how they are counted."""

    tokenizer: TokenizerPath = option(..., "A tokenizer.json, or the folder that contains one.", "PATH")
    output: Path = option(..., "Folder of the frequency table to write.", "DIR")
    input: tuple[str, ...] = option(
        (),
        "Files, folders (searched through), globs in quotes, data sets (`ultrachat`, `hub:NAME[:CONFIG[:SPLIT]]`): "
        ".txt, .jsonl, .ndjson, .json, each also with .gz, .xz or .zst, and .parquet. Several may follow one --input.",
        "PATH …",
        many=True,
    )
    more_inputs: tuple[str, ...] = option((), "Further paths of --input.", "PATH", positional=True)
    domain: tuple[str, ...] = option(
        (),
        "Count this input separately, under NAME. Repeat a NAME to add to it.",
        "NAME=PATH",
        many=True,
    )
    mode: Literal["corpus", "assistant"] = option(
        "corpus",
        "**corpus**: every token of raw text, no BOS or EOS added. **assistant**: only what the assistant writes "
        "in conversations rendered by the chat template.",
    )
    text_field: str | None = option(
        None, "Field with the text or conversation of a row; by default the usual names.", "NAME"
    )
    text_unit: TextUnit = option("file", "What one document of a text file is.")
    separator: str | None = option(
        None, "Literal that separates the documents of a text file, such as '<|endoftext|>'.", "TEXT"
    )
    sample: float | None = option(
        None, "Count each document with this probability, decided by --seed.", "SHARE"
    )
    seed: int = option(0, "Seed of --sample.")
    workers: Positive = option(1, "Number of counting processes.", "N")
    engine: str | None = option(
        None,
        "fast, kitoken or plain; by default the fastest one with proved identical results.",
        "NAME",
    )
    shard_mb: Positive = option(256, "Shard size in MB. An interrupted run loses at most one shard.", "N")
    content_format: Literal["auto", "text", "parts"] = option("auto", CONTENT_FORMAT)
    strict: bool = option(False, STRICT)

    def options(self) -> CountOptions:
        """Return the options of the counting."""
        from ...corpus.sources.sources import SourceOptions
        from ...vocab.counts.tally import CountOptions

        check_parting(self.separator, self.text_unit)
        return CountOptions(
            mode=self.mode,
            sources=SourceOptions(**{one.name: getattr(self, one.name) for one in fields(SourceOptions)}),
            engine=self.engine,
            workers=self.workers,
            content_format=self.content_format,
            shard_bytes=self.shard_mb << 20,
        )


def count_freq(asked: CountRequest, ending: ResultOptions) -> None:
    """Count how often each token of a tokenizer occurs in text or in conversations.

    One table serves draft vocabularies of every size: see **select-vocab**. Token ids are identical to those
    of the tokenizers library. The same command resumes an interrupted run. To count on several machines,
    give each a part and add the tables with **merge-freq**.
    Lines that are not UTF-8 or not JSON are skipped, counted, and the first few named on stderr. Files that
    are binary or in another encoding are skipped as a whole.

    Example: `vocabforge count-freq --tokenizer model/ --input corpus/ more.jsonl.gz --output counts/`
    """
    _report(run_count(asked, overwrite=ending.overwrite), asked.output, as_json=ending.as_json)


def run_count(asked: CountRequest, *, overwrite: bool) -> CountRun:
    """Count the inputs and save the table."""
    from ...core.artifact import check_output
    from ...core.errors import UsageError
    from ...corpus.tokenizer.tokenizer import load_tokenizer
    from ...vocab.counts.run import count_corpus, partial_folder
    from ...vocab.counts.table import save_counts

    paths, output = [*asked.input, *asked.more_inputs], asked.output
    domains = _domains(asked.domain)
    if not paths and not domains:
        raise UsageError("no input was given", expected="--input PATH …, or --domain NAME=PATH")
    options = asked.options()
    check_output(output, overwrite=overwrite)
    return count_corpus(
        load_tokenizer(asked.tokenizer, asked.content_format),
        paths,
        options,
        partial_folder(output),
        domains=domains,
        keep=lambda done: save_counts(done.table, output, overwrite=overwrite),
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
        "files": len(table.sources),
        **table.totals(),
        "bytes_per_token": round(table.bytes / table.tokens, 3),
        "domains": {
            name: {"documents": part.documents, "bytes": part.bytes, "tokens": part.tokens}
            for name, part in table.domains.items()
        },
        "skipped": dict(run.problems),
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
        columns = ["domain<", "documents", "MB", "tokens", "bytes a token", "ids that occur"]
        rows = []
        for name, part in table.domains.items():
            ratio = f"{part.bytes / part.tokens:.2f}" if part.tokens else None
            seen = int((part.counts > 0).sum())
            rows.append([name, part.documents, f"{part.bytes / 1e6:,.1f}", part.tokens, ratio, seen])
        stdout_console(highlight=True).print(DataTable("Domains", columns, rows))
