"""``vocabforge count-freq``: count how often each token occurs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.config import ResultOptions
from ...core.console import DataTable
from ...vocab.counts.request import CountRequest
from ..app import echo, print_json, stdout_console

if TYPE_CHECKING:
    from ...vocab.counts.run import CountRun


def count_freq(asked: CountRequest, ending: ResultOptions) -> None:
    """Count how often each token of a tokenizer occurs in text or in conversations.

    One table serves draft vocabularies of every size: see **select-vocab**. Token ids are identical to those
    of the tokenizers library. The same command resumes an interrupted run. To count on several machines, use
    --ray, or give each a part and add the tables with **merge-freq**.
    Lines that are not UTF-8 or not JSON are skipped, counted, and the first few named on stderr. Files that
    are binary or in another encoding are skipped as a whole.

    Example: `vocabforge count-freq --tokenizer model/ --input corpus/ more.jsonl.gz --output counts/`
    """
    from ...vocab.counts.run import run_count

    _report(run_count(asked, overwrite=ending.overwrite), asked.output, as_json=ending.as_json)


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
