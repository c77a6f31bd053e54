"""Counting: against a naive loop, in both modes, and the artefact."""

from __future__ import annotations

import json
import lzma
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.worlds import DATA, byte_tokenizer, needs_data
from vocabforge.core.errors import ArtifactError, DataError, UsageError
from vocabforge.corpus.sources.sources import SourceOptions
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.run import count_corpus
from vocabforge.vocab.counts.table import load_counts, save_counts
from vocabforge.vocab.counts.tally import CountOptions, prefetched


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(byte_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def count_files(tokenizer, paths, sources, *, mode="corpus"):
    with tempfile.TemporaryDirectory() as folder:
        return count_corpus(tokenizer, paths, CountOptions(mode, sources), Path(folder) / "p").table


@needs_data
def test_counts_equal_a_naive_loop_over_transformers(tmp_path):
    from transformers import PreTrainedTokenizerFast

    source = DATA / "models" / "tok512" / "tokenizer.json"
    text = lzma.decompress((DATA / "corpus/tinystories_train_head_2MiB.txt.xz").read_bytes()).decode()[
        :60_000
    ]
    (tmp_path / "a.txt").write_text(text, "utf-8")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(source))
    expected = np.zeros(512, dtype=np.int64)
    documents = [piece.strip("\r\n") for piece in text.split("<|endoftext|>")]
    for document in filter(str.strip, documents):
        for token in theirs(document, add_special_tokens=False)["input_ids"]:
            expected[token] += 1
    options = SourceOptions(separator="<|endoftext|>")
    table = count_files(load_tokenizer(source), [tmp_path / "a.txt"], options)
    np.testing.assert_array_equal(table.counts, expected)
    assert table.tokens == expected.sum()
    assert table.documents == sum(bool(document.strip()) for document in documents)
    assert table.bytes == sum(len(document.encode()) for document in documents if document.strip())


def test_assistant_mode_counts_only_the_answers(tokenizer, tmp_path, capsys):
    rows = [{"prompt": "zzz", "response": "ab"}, {"prompt": "zz", "response": "b"}, {"text": "zzzz"}]
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    table = count_files(tokenizer, [file], SourceOptions(), mode="assistant")
    a, b, z, end = (tokenizer.encode(text)[0] for text in ("a", "b", "z", "<|end|>"))
    assert {int(at): int(table.counts[at]) for at in np.flatnonzero(table.counts)} == {a: 1, b: 2, end: 2}
    assert (table.documents, table.bytes, table.counts[z]) == (2, 3, 0)
    assert "plain text has no assistant's turns" in capsys.readouterr().err
    corpus = count_files(tokenizer, [file], SourceOptions())
    assert corpus.counts[z] == 9
    assert corpus.counts[end] == 0


def test_assistant_mode_needs_a_template(tmp_path):
    bare = load_tokenizer(byte_tokenizer(tmp_path / "t", template=None))
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "response": "b"}')
    with pytest.raises(DataError, match="no chat template"):
        count_files(bare, [tmp_path / "a.jsonl"], SourceOptions(), mode="assistant")


def test_table_round_trip(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("héllo")
    table = count_files(tokenizer, [tmp_path / "a.txt"], SourceOptions())
    save_counts(table, tmp_path / "counts")
    again = load_counts(tmp_path / "counts")
    np.testing.assert_array_equal(again.counts, table.counts)
    for name in (
        "documents",
        "bytes",
        "tokens",
        "mode",
        "fingerprint",
        "sources",
        "special",
        "seen",
        "vocab_size",
    ):
        assert getattr(again, name) == getattr(table, name)
    assert again.special.eos == (257,)
    with pytest.raises(UsageError, match="exists already"):
        save_counts(table, tmp_path / "counts")


def test_damaged_tables_are_refused(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    save_counts(count_files(tokenizer, [tmp_path / "a.txt"], SourceOptions()), tmp_path / "counts")
    with pytest.raises(ArtifactError, match="not a VocabForge artefact"):
        load_counts(tmp_path)
    file = tmp_path / "counts" / "counts.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ArtifactError, match="differs in content"):
        load_counts(tmp_path / "counts")


def test_batches_are_read_one_ahead_in_order_and_the_thread_ends():
    made: list[int] = []

    def items(number):
        for at in range(number):
            made.append(at)
            yield at
        raise ValueError("here")

    def threads() -> int:
        return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())

    assert list(prefetched([None, 0, False])) == [None, 0, False]
    source = prefetched(items(2))
    assert (next(source), next(source)) == (0, 1)
    with pytest.raises(ValueError, match="here"):
        next(source)
    made.clear()
    source = prefetched(items(1000))
    assert next(source) == 0
    source.close()
    assert len(made) <= 2
    assert threads() == 0
