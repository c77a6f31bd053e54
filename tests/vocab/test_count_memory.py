"""Memory does not grow with the corpus: no word occurs twice, one document, a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.worlds import ROOT

pytestmark = pytest.mark.long

LIMIT_MB = 1024
MEASURE = """
import json, re, sys
from pathlib import Path
from tests.vocab.engine_tokenizers import built
from vocabforge.vocab.counts.run import count_corpus
from vocabforge.vocab.counts.tally import CountOptions
def peak_memory():
    return 1024 * int(re.search("VmHWM: *(.*) kB", Path("/proc/self/status").read_text())[1])
folder = Path(sys.argv[1])
tokenizer = built({name!r})
before = peak_memory()
run = count_corpus(tokenizer, [folder / "in.txt"], CountOptions(engine={engine!r}), folder / "p")
print(json.dumps({{"mb": (peak_memory() - before) / 1e6, "documents": run.table.documents, "bytes": run.table.bytes}}))
"""


def random_words(megabytes: int) -> bytes:
    """Text of random letters in words of about six: nearly every word is new."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz    ", dtype=np.uint8)
    return letters[np.random.default_rng(0).integers(0, len(letters), megabytes << 20)].tobytes()


@pytest.mark.parametrize(
    ("engine", "name", "sizes"),
    [("fast", "qwen2", (48, 96)), pytest.param("plain", "qwen2", (2, 6), marks=pytest.mark.proof)],
)
def test_memory_is_bounded(tmp_path, engine, name, sizes):
    peaks = []
    for megabytes in sizes:
        (tmp_path / "in.txt").write_bytes(random_words(megabytes))
        code = MEASURE.format(name=name, engine=engine)
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert (result["documents"], result["bytes"]) == (1, megabytes << 20)
        peaks.append(result["mb"])
    assert peaks[1] < LIMIT_MB
    # What a byte of text may add beside buffers that are full by then.
    assert peaks[1] - peaks[0] < 0.5 * (sizes[1] - sizes[0]) + 60, peaks
