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
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from command import parser, present, speed_up, spread_text, take_turns

from vocabforge.core.console import DataTable
from vocabforge.core.errors import VocabForgeError
from vocabforge.corpus.sources.sources import SourceOptions, iter_documents
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.run import count_corpus
from vocabforge.vocab.counts.tally import CountOptions

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
        ``mb_per_s`` (UTF-8 MB/s in ``seconds``), ``ratio`` (the baseline's seconds over the method's, with the
        lowest and highest), ``engine``.

    Raises:
        VocabForgeError: a method failed, or two methods counted differently.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    job = {"tokenizer": str(tokenizer), "inputs": list(inputs), "workers": workers, "text_unit": text_unit}
    rows: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}

    def measure(method: str) -> float:
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            rows[method].append(fresh.submit(_measure, job | {"method": method}).result())
        return float(rows[method][-1]["seconds"])

    seconds = take_turns("benchmark", {method: partial(measure, method) for method in METHODS}, repeats)
    if len({row["table"] for some in rows.values() for row in some}) > 1:
        raise VocabForgeError(
            "the methods counted differently",
            got={method: some[0]["table"][:12] for method, some in rows.items()},
            remedy="this is a fault of VocabForge: please report it with the input",
        )
    size = rows[BASELINE][0]["bytes"]
    methods = {
        method: {
            "seconds": statistics.median(seconds[method]),
            "mb_per_s": size / statistics.median(seconds[method]) / 1e6,
            "ratio": speed_up(seconds[method], seconds[BASELINE]),
            "engine": some[0].get("engine", ""),
            "start_s": statistics.median(row["start_s"] for row in some),
        }
        for method, some in rows.items()
    }
    return {"bytes": size, "tokens": rows[BASELINE][0]["tokens"], "methods": methods}


def _measure(job: Mapping[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    tokenizer = load_tokenizer(Path(job["tokenizer"]))
    start_s = time.perf_counter() - start
    start = time.perf_counter()
    counted = (_ours if job["method"] == "vocabforge" else _theirs)(tokenizer, job)
    seconds = counted.pop("seconds", time.perf_counter() - start)
    counts = counted.pop("counts")
    return counted | {
        "seconds": seconds,
        "start_s": start_s + counted.get("start_s", 0.0),
        "tokens": int(counts.sum()),
        "table": hashlib.sha256(counts.tobytes()).hexdigest(),
    }


def _theirs(tokenizer: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the baseline: read, ``encode_batch``, ``bincount``."""
    encode = getattr(tokenizer.backend, job["method"])
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    waiting: list[str] = []
    size = total = 0

    def flush() -> None:
        nonlocal size
        for row in encode(waiting, add_special_tokens=False):
            counts[:] += np.bincount(np.asarray(row.ids, dtype=np.int64), minlength=len(counts))
        waiting.clear()
        size = 0

    for document in iter_documents(
        [Path(name) for name in job["inputs"]], SourceOptions(text_unit=job["text_unit"])
    ):
        text = document.plain_text()
        total += len(text.encode("utf-8", "surrogatepass"))
        waiting.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            flush()
    flush()
    return {"counts": counts, "bytes": total}


def _ours(tokenizer: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    options = CountOptions(sources=SourceOptions(text_unit=job["text_unit"]), workers=job["workers"])
    with tempfile.TemporaryDirectory() as folder:
        run = count_corpus(tokenizer, job["inputs"], options, Path(folder) / "partial")
    own = {"engine": run.engine, "seconds": run.seconds, "start_s": run.start_s}
    return {"counts": run.table.counts, "bytes": run.table.bytes, **own}


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
    words.add_argument("--workers", type=int, default=1, help="counting processes of VocabForge")
    words.add_argument("--text-unit", default="file", help="unit that forms one document of a text file")
    asked = vars(words.parse_args())
    output, tokenizer, inputs = asked.pop("output"), asked.pop("tokenizer"), asked.pop("input")
    present(lambda: bench_counting(tokenizer, inputs, **asked), shown, output)


if __name__ == "__main__":
    main()
