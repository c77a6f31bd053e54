"""Compare the speed of ``count-freq`` with batch encoding of the tokenizers library, on the same files.

Every measurement runs cold in a new process, and the methods alternate to reduce the effect of machine noise.
The benchmark fails unless all tables are identical.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from command import parser, present

from vocabforge.core.console import DataTable
from vocabforge.core.errors import VocabForgeError
from vocabforge.core.progress import ProgressBar
from vocabforge.core.provenance import peak_memory
from vocabforge.corpus.sources.sources import SourceOptions, iter_documents
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer

BASELINE = "encode_batch"
METHODS = (BASELINE, "encode_batch_fast", "vocabforge")
_BATCH_CHARACTERS = 8 << 20


def bench_counting(
    tokenizer: Path, inputs: Sequence[str], *, repeats: int = 3, workers: int = 1, text_unit: str = "file"
) -> dict[str, Any]:
    """Time all methods on the same files.

    Returns:
        Plain JSON: ``bytes``, ``tokens``, and for each of ``methods`` medians over the rounds: ``seconds``
        (reading, tokenizing, counting), ``start_s`` (loading the tokenizer, loading and checking the engine),
        ``mb_per_s`` (UTF-8 MB/s in ``seconds``), ``ratio`` (the baseline's seconds over the method's;
        ``ratios`` has each round), ``memory_mb`` (peak resident memory minus that with the tokenizer loaded),
        ``engine``.

    Raises:
        VocabForgeError: a method failed, or two methods counted differently.
    """
    rounds: list[dict[str, dict[str, Any]]] = []
    with ProgressBar("benchmark", repeats * len(METHODS), "runs") as bar:
        for _ in range(repeats):
            done = {}
            for method in METHODS:
                done[method] = _in_a_process(method, tokenizer, inputs, workers, text_unit)
                bar.update(1, note=f"{method}: {done[method]['seconds']:.2f} s")
            rounds.append(done)
    tables = {row["table"] for done in rounds for row in done.values()}
    if len(tables) > 1:
        raise VocabForgeError(
            "the methods counted differently",
            got={method: row["table"][:12] for method, row in rounds[0].items()},
            remedy="this is a fault of VocabForge: please report it with the input",
        )
    first = rounds[0][BASELINE]
    return {
        "bytes": first["bytes"],
        "tokens": first["tokens"],
        "methods": {method: _median(method, rounds) for method in METHODS},
    }


def _median(method: str, rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    rows = [done[method] for done in rounds]
    seconds = statistics.median(row["seconds"] for row in rows)
    ratios = [done[BASELINE]["seconds"] / done[method]["seconds"] for done in rounds]
    medians = {key: statistics.median(row[key] for row in rows) for key in ("start_s", "memory_mb")}
    return {
        "seconds": seconds,
        "mb_per_s": rows[0]["bytes"] / seconds / 1e6,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "engine": str(rows[0].get("engine", "")),
        **medians,
    }


def _in_a_process(
    method: str, tokenizer: Path, inputs: Sequence[str], workers: int, text_unit: str
) -> dict[str, Any]:
    job = {
        "method": method,
        "tokenizer": str(tokenizer),
        "inputs": list(inputs),
        "workers": workers,
        "text_unit": text_unit,
    }
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(
        [sys.executable, __file__, "--job", json.dumps(job)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        lines = re.split(r"\n(?=\S)", done.stderr.strip())  # the last entry is the exception with its details
        raise VocabForgeError(f"{method} failed", got=lines[-1][-2000:])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(job: Mapping[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    tokenizer = load_tokenizer(Path(job["tokenizer"]))
    start_s, memory = time.perf_counter() - start, peak_memory() or 0
    start = time.perf_counter()
    counted = _ours(tokenizer, job) if job["method"] == "vocabforge" else _theirs(tokenizer, job)
    seconds = counted.pop("seconds", time.perf_counter() - start)
    start_s += counted.pop("start_s", 0.0)
    counts = counted.pop("counts")
    return counted | {
        "seconds": seconds,
        "start_s": start_s,
        "memory_mb": ((peak_memory() or 0) - memory) / 1e6,
        "tokens": int(counts.sum()),
        "table": hashlib.sha256(counts.tobytes()).hexdigest(),
    }


def _theirs(tokenizer: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the baseline: read, ``encode_batch``, ``bincount``."""
    encode = getattr(tokenizer.backend, job["method"])
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    held: list[str] = []
    size = total = 0

    def flush() -> None:
        nonlocal size
        for row in encode(held, add_special_tokens=False):
            counts[:] += np.bincount(np.asarray(row.ids, dtype=np.int64), minlength=len(counts))
        held.clear()
        size = 0

    for document in iter_documents(
        [Path(name) for name in job["inputs"]], SourceOptions(text_unit=job["text_unit"])
    ):
        text = document.plain_text()
        total += len(text.encode("utf-8", "surrogatepass"))
        held.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            flush()
    flush()
    return {"counts": counts, "bytes": total}


def _ours(tokenizer: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    from vocabforge.vocab.counts.run import count_corpus
    from vocabforge.vocab.counts.tally import CountOptions

    options = CountOptions(sources=SourceOptions(text_unit=job["text_unit"]), workers=job["workers"])
    with tempfile.TemporaryDirectory() as folder:
        run = count_corpus(tokenizer, job["inputs"], options, Path(folder) / "partial")
    return {
        "counts": run.table.counts,
        "bytes": run.table.bytes,
        "engine": run.engine,
        "seconds": run.seconds,
        "start_s": run.start_s,
    }


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    rows = []
    for method, row in result["methods"].items():
        spread = f"{row['ratio']:.1f}"
        if len(row["ratios"]) > 1:
            spread += f" ({min(row['ratios']):.1f}–{max(row['ratios']):.1f})"
        rates = [f"{row['mb_per_s']:,.1f}", spread, f"{row['seconds']:.2f}", f"{row['start_s']:.1f}"]
        label = f"{method} ({row['engine']})" if row["engine"] else method
        rows.append([label, *rates, f"{row['memory_mb']:,.0f}"])
    title = f"{result['bytes'] / 1e6:,.1f} MB of text, {result['tokens']:,} tokens"
    return [
        DataTable(title, ("method<", "MB/s", "ratio", "seconds", "start, s", "memory, MB"), rows),
        "ratio: to encode_batch, median of the rounds. seconds: reading, tokenizing, counting. start: loading the "
        "tokenizer, choosing and checking the engine. memory: highest resident memory above the loaded "
        "tokenizer's.",
    ]


def main() -> None:
    if sys.argv[1:2] == ["--job"]:  # one measurement, in a fresh process
        print(json.dumps(_measure(json.loads(sys.argv[2]))))
        return
    words = parser(__doc__)
    words.add_argument("--tokenizer", type=Path, required=True, help="tokenizer folder or tokenizer.json")
    words.add_argument(
        "--input", action="append", required=True, help="text or JSON file; repeat for several"
    )
    words.add_argument("--workers", type=int, default=1, help="counting processes of VocabForge")
    words.add_argument("--text-unit", default="file", help="unit that forms one document of a text file")
    asked = words.parse_args()

    def measure() -> dict[str, Any]:
        return bench_counting(
            asked.tokenizer,
            asked.input,
            repeats=asked.repeats,
            workers=asked.workers,
            text_unit=asked.text_unit,
        )

    present(measure, shown, asked.output)


if __name__ == "__main__":
    main()
