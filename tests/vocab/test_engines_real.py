"""Engines and cuts on published tokenizers: golden encodings and the whole corpus."""

from __future__ import annotations

import io
import json
import lzma
import os
import zipfile

import numpy as np
import pytest

from tests.shares import by_default
from tests.vocab.real_tokenizers import REAL, real, real_engines
from tests.vocab.test_engines import in_parts
from tests.worlds import DATA, needs_data
from vocabforge.corpus.tokenizer.cuts import CutRule
from vocabforge.vocab.counts.engines import PlainEngine


@needs_data
@pytest.mark.parametrize("name", by_default(REAL, lambda name: name != "o200k"))
def test_golden_encodings(name: str) -> None:
    rows = [
        json.loads(line)
        for line in (DATA / "tokenizers/golden_encodings.jsonl").read_text("utf-8").splitlines()
    ]
    texts = [row["text"] for row in rows]
    tokenizer = real(name)
    right = [row[name] for row in rows]
    assert tokenizer.encode_batch(texts) == right
    for engine in real_engines(name)[1]:
        assert engine.rows(texts, [True] * len(texts)) == right, engine.name


def corpus_texts(limit: int | None) -> list[str]:
    """The corpus files' texts, of each file the first ``limit`` characters."""
    texts = []
    for file in sorted((DATA / "corpus").iterdir()):
        if file.suffix == ".xz":
            with lzma.open(file) as packed, io.TextIOWrapper(packed, "utf-8", newline="") as stream:
                texts.append(stream.read() if limit is None else stream.read(limit))
        elif file.suffix == ".zip":
            with zipfile.ZipFile(file) as packed_files:
                members = [
                    packed_files.read(name) for name in packed_files.namelist() if name.endswith(".txt")
                ]
            joined = [member.decode("utf-8", "replace") for member in members]
            texts.append("\n".join(joined) if limit is None else "\n".join(joined)[:limit])
    return texts


FULL = bool(os.environ.get("VOCABFORGE_FULL"))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", by_default(REAL, lambda name: name != "o200k"))
def test_engines_on_the_corpus(name: str) -> None:
    """All texts with VOCABFORGE_FULL=1, else the beginning of each."""
    tokenizer = real(name)
    rule, made = real_engines(name)
    assert isinstance(rule, CutRule)
    texts = corpus_texts(None if FULL else 20_000)
    assert len(texts) > 10
    assert len(made) >= 2 or name in ("tok512", "tok105")  # too small for a faster engine to be proved
    for text in texts:
        rows = tokenizer.encode_batch([text])
        right = np.bincount(np.asarray(rows[0], np.int64), minlength=tokenizer.vocab_size)
        parts, begins = in_parts(rule, [text], 5_000)
        for engine in made:
            for some, flags in (([text], [True]), (parts, begins)):
                np.testing.assert_array_equal(
                    engine.count(some, flags), right, err_msg=f"{engine.name} {text[:40]!r}"
                )
        joined = [i for ids in PlainEngine(tokenizer, rule).rows(parts, begins) for i in ids]
        assert joined == rows[0], text[:40]
