"""Compare the speed of ``count-freq`` with batch encoding of the tokenizers library, on the same files.

Every measurement runs cold in a new process, and the methods alternate to reduce the effect of machine noise.
The benchmark fails unless all tables are identical.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from command import parser, present, speed_up, spread_text, take_turns

from vocabforge.core.console import DataTable
from vocabforge.core.errors import VocabForgeError
from vocabforge.corpus.sources.document import SourceOptions
from vocabforge.corpus.sources.sources import iter_documents
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.run import count_corpus
from vocabforge.vocab.counts.tally import CountOptions

BASELINE = "encode_batch"
METHODS = (BASELINE, "encode_batch_fast", "vocabforge")
_SOURCES = SourceOptions(text_unit="file")
_BATCH_CHARACTERS = 8 << 20


def bench_counting(tokenizer: Path, inputs: Sequence[str], repeats: int) -> dict[str, Any]:
    """Time all methods on the same files.

    Returns:
        Plain JSON: ``bytes``, ``tokens``, and for each of ``methods`` medians over the rounds: ``seconds``
        (reading, tokenizing, counting), ``start_s`` (loading the tokenizer, loading and checking the engine),
        ``mb_per_s`` (UTF-8 MB/s in ``seconds``), ``ratio`` (the baseline's seconds over the method's, with the
        lowest and highest), ``engine``.

    Raises:
        VocabForgeError: a method failed, or two methods counted differently.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}

    def measure(method: str) -> float:
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            rows[method].append(fresh.submit(_measure, method, tokenizer, inputs).result())
        return float(rows[method][-1]["seconds"])

    seconds = take_turns("benchmark", {method: partial(measure, method) for method in METHODS}, repeats)
    if len({row["table"] for some in rows.values() for row in some}) > 1:
        raise VocabForgeError(
            "the methods counted differently",
            got={method: some[0]["table"][:12] for method, some in rows.items()},
            remedy="this is a fault of VocabForge: please report it with the input",
        )
    first = rows[BASELINE][0]
    methods = {
        method: {
            "seconds": statistics.median(seconds[method]),
            "mb_per_s": first["bytes"] / statistics.median(seconds[method]) / 1e6,
            "ratio": speed_up(seconds[method], seconds[BASELINE]),
            "engine": some[0]["engine"],
            "start_s": statistics.median(row["start_s"] for row in some),
        }
        for method, some in rows.items()
    }
    return {"bytes": first["bytes"], "tokens": first["tokens"], "methods": methods}


def _measure(method: str, folder: Path, inputs: Sequence[str]) -> dict[str, Any]:
    start = time.perf_counter()
    tokenizer = load_tokenizer(folder)
    loaded = time.perf_counter()
    if method == "vocabforge":
        with tempfile.TemporaryDirectory() as place:
            run = count_corpus(tokenizer, inputs, CountOptions(sources=_SOURCES), Path(place) / "partial")
        counts, size = run.table.counts, run.table.bytes
        engine, seconds, start_s = run.engine, run.seconds, run.start_s
    else:
        counts, size, encode = np.zeros(tokenizer.vocab_size, np.int64), 0, getattr(tokenizer.backend, method)
        for texts in _batches(inputs):
            size += sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
            for row in encode(texts, add_special_tokens=False):
                counts += np.bincount(np.asarray(row.ids, np.int64), minlength=len(counts))
        engine, seconds, start_s = "", time.perf_counter() - loaded, 0.0
    return {
        "seconds": seconds,
        "start_s": loaded - start + start_s,
        "engine": engine,
        "bytes": size,
        "tokens": int(counts.sum()),
        "table": hashlib.sha256(counts.tobytes()).hexdigest(),
    }


def _batches(inputs: Sequence[str]) -> Iterator[list[str]]:
    """Yield the documents' texts, about as many characters at a time."""
    batch: list[str] = []
    size = 0
    for document in iter_documents([Path(name) for name in inputs], _SOURCES):
        batch.append(document.plain_text())
        size += len(batch[-1])
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch


def shown(result: dict[str, Any]) -> list[DataTable | str]:
    rows = []
    for method, row in result["methods"].items():
        label = f"{method} ({row['engine']})" if row["engine"] else method
        seconds = [f"{row['seconds']:.2f}", f"{row['start_s']:.1f}"]
        rows.append([label, f"{row['mb_per_s']:,.1f}", spread_text(row["ratio"], 1), *seconds])
    title = f"{result['bytes'] / 1e6:,.1f} MB of text, {result['tokens']:,} tokens"
    return [
        DataTable(title, ("method<", "MB/s", "ratio", "seconds", "start, s"), rows),
        "ratio: to encode_batch, median of the rounds. seconds: reading, tokenizing, counting. start: loading the "
        "tokenizer, choosing and checking the engine.",
    ]


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--tokenizer", type=Path, required=True, help="tokenizer folder or tokenizer.json")
    words.add_argument(
        "--input", action="append", required=True, help="text or JSON file; repeat for several"
    )
    asked = words.parse_args()
    present(lambda: bench_counting(asked.tokenizer, asked.input, asked.repeats), shown, asked.output)


if __name__ == "__main__":
    main()
