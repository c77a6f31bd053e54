"""A counting run gives one table, however it is divided, interrupted and resumed."""

from __future__ import annotations

import json
import os
import random
import re

import numpy as np
import pytest

from tests.worlds import byte_tokenizer
from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.corpus.sources.sources import SourceOptions
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts.run import count_corpus
from vocabforge.vocab.counts.tally import CountOptions

WORDS = ["alpha", "beta", "gamma", "déjà", "漢字", "naïve", "  ", "\n", "omega's", "x1"]


def text_of(seed: int, words: int) -> str:
    pick = random.Random(seed)
    return " ".join(pick.choice(WORDS) for _ in range(words))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer ``t`` and a corpus ``in`` of text, JSON lines and a packed file."""
    import gzip

    base = tmp_path_factory.mktemp("run")
    byte_tokenizer(base / "t")
    (base / "in" / "de").mkdir(parents=True)
    (base / "in" / "long.txt").write_text(text_of(0, 9000), "utf-8")
    (base / "in" / "de" / "short.txt").write_text(text_of(1, 300), "utf-8")
    rows = [json.dumps({"text": text_of(seed, 40)}) for seed in range(2, 200)] + ["nonsense"]
    (base / "in" / "rows.jsonl").write_text("\n".join(rows), "utf-8")
    with gzip.open(base / "in" / "more.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rows[:50]))
    return base


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder / "t")


@pytest.fixture(scope="module")
def whole(folder, tokenizer):
    return count_corpus(tokenizer, [folder / "in"], CountOptions(), folder / "p0")


def equal(one, other) -> bool:
    return bool(
        np.array_equal(one.counts, other.counts)
        and (one.documents, one.bytes, dict(one.sources))
        == (other.documents, other.bytes, dict(other.sources))
    )


def test_the_table_is_the_plain_sum(folder, tokenizer, whole):
    texts = [(folder / "in" / name).read_text("utf-8") for name in ("long.txt", "de/short.txt")]
    rows = (folder / "in" / "rows.jsonl").read_text("utf-8").splitlines()[:-1]
    texts += [json.loads(row)["text"] for row in (*rows, *rows[:50])]
    expected = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    for text in texts:
        expected += np.bincount(np.array(tokenizer.encode(text), dtype=np.int64), minlength=len(expected))
    np.testing.assert_array_equal(whole.table.counts, expected)
    assert whole.table.documents == len(texts)
    assert whole.table.bytes == sum(len(text.encode()) for text in texts)
    assert sum(whole.problems.values()) == 1


@pytest.mark.parametrize(("shard_bytes", "workers"), [(1000, 1), (4096, 2), (1 << 20, 2)])
def test_shards_and_workers_change_nothing(folder, tokenizer, whole, tmp_path, shard_bytes, workers):
    run = count_corpus(
        tokenizer, [folder / "in"], CountOptions(shard_bytes=shard_bytes, workers=workers), tmp_path / "p"
    )
    np.testing.assert_array_equal(run.table.counts, whole.table.counts)
    assert (run.table.documents, run.table.bytes) == (whole.table.documents, whole.table.bytes)
    assert dict(run.problems) == dict(whole.problems)
    assert run.units > 4 or shard_bytes == 1 << 20


def test_domains_are_counted_apart_in_one_pass(folder, tokenizer, whole, tmp_path):
    domains = {"german": [f"{folder}/in/de/*.txt"], "rows": [f"{folder}/in/*.jsonl", f"{folder}/in/*.gz"]}
    run = count_corpus(tokenizer, [folder / "in"], CountOptions(), tmp_path / "p", domains=domains)
    np.testing.assert_array_equal(run.table.counts, whole.table.counts)
    assert set(run.table.domains) == {"other", "german", "rows"}
    np.testing.assert_array_equal(sum(part.counts for part in run.table.domains.values()), whole.table.counts)
    alone = count_corpus(tokenizer, [folder / "in" / "de"], CountOptions(), tmp_path / "q")
    np.testing.assert_array_equal(run.table.domains["german"].counts, alone.table.counts)
    assert run.table.domains["german"].documents == 1


def test_a_resumed_run_takes_finished_shards_over(folder, tokenizer, whole, tmp_path, capsys):
    options = CountOptions(shard_bytes=4000)
    first = count_corpus(tokenizer, [folder / "in"], options, tmp_path / "p")
    files = sorted((tmp_path / "p").iterdir())
    assert len(files) == first.units
    files[0].unlink()
    data = bytearray(files[1].read_bytes())
    data[-3] ^= 4
    files[1].write_bytes(data)
    files[2].write_bytes(files[2].read_bytes()[:50])
    said = re.search(rb'documents\\": (\d)', data := files[3].read_bytes())
    digit = said.start(1)
    files[3].write_bytes(data[:digit] + b"%d" % ((int(data[digit : digit + 1]) + 1) % 10) + data[digit + 1 :])
    again = count_corpus(tokenizer, [folder / "in"], options, tmp_path / "p")
    assert equal(again.table, first.table)
    assert again.resumed == first.units - 1
    assert capsys.readouterr().err.count("is damaged") == 3


def test_partial_results_of_other_input_or_options_are_not_taken(folder, tokenizer, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("aaaa bbbb cccc")
    options = CountOptions()
    count_corpus(tokenizer, [tmp_path / "a.txt"], options, tmp_path / "p")
    (tmp_path / "a.txt").write_text("aaaa bbbb dddd")
    run = count_corpus(tokenizer, [tmp_path / "a.txt"], options, tmp_path / "p")
    assert "changed since it was counted" in capsys.readouterr().err
    assert run.table.counts[tokenizer.encode("d")[0]] == 4
    other = CountOptions(sources=SourceOptions(text_unit="line"))
    assert count_corpus(tokenizer, [tmp_path / "a.txt"], other, tmp_path / "p").resumed == 0


def test_a_sample_does_not_depend_on_shards(folder, tokenizer, tmp_path):
    tables = []
    for shard_bytes in (2000, 1 << 20):
        options = CountOptions(sources=SourceOptions(sample=0.5, seed=7), shard_bytes=shard_bytes)
        run = count_corpus(tokenizer, [folder / "in" / "rows.jsonl"], options, tmp_path / str(shard_bytes))
        tables.append(run.table)
    np.testing.assert_array_equal(tables[0].counts, tables[1].counts)
    assert 60 < tables[0].documents < 140
    other = CountOptions(sources=SourceOptions(sample=0.5, seed=8))
    run = count_corpus(tokenizer, [folder / "in" / "rows.jsonl"], other, tmp_path / "o")
    assert not np.array_equal(run.table.counts, tables[0].counts)


def test_nothing_to_count(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(DataError, match="no document"):
        count_corpus(tokenizer, [tmp_path / "a.txt"], CountOptions(), tmp_path / "p")
    (tmp_path / "b.jsonl").write_text("{\n{\n")
    with pytest.raises(DataError, match=r"no document(.|\n)*2 x the line is not valid JSON"):
        count_corpus(tokenizer, [tmp_path / "b.jsonl"], CountOptions(), tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_worker_that_dies_is_reported(folder, tokenizer, tmp_path, monkeypatch):
    import concurrent.futures

    class Dying(concurrent.futures.ProcessPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            return super().submit(os._exit, 9)

    monkeypatch.setattr("vocabforge.vocab.counts.shards.futures.ProcessPoolExecutor", Dying)
    with pytest.raises(VocabForgeError, match="finished shards are kept"):
        count_corpus(tokenizer, [folder / "in"], CountOptions(workers=2), tmp_path / "p")
