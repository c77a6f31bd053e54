"""``count-freq --tokens N`` counts exactly the first documents that hold N tokens, and reads little more."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.cli.cli_support import ok
from tests.worlds import byte_tokenizer
from vocabforge import count_freq as api_count_freq
from vocabforge.cli.app import build_app
from vocabforge.cli.vocab.count_freq import count_freq
from vocabforge.core.errors import DataError
from vocabforge.corpus.sources import sources as reading
from vocabforge.corpus.sources.sources import SourceOptions, iter_documents
from vocabforge.corpus.tokenizer.tokenizer import load_tokenizer
from vocabforge.vocab.counts import shards as counting
from vocabforge.vocab.counts import tally
from vocabforge.vocab.counts.run import count_corpus
from vocabforge.vocab.counts.table import load_counts
from vocabforge.vocab.counts.tally import CountOptions

ALL = 19_845  # tokens of the inputs: bytes, with this tokenizer


def chat(number: int) -> dict:
    turns = [("user", "Q" * 9), ("assistant", "A" * (number % 50 + 1))]
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer ``t``, and in ``in`` small files, rows with a bad one, a packed file and a long text."""
    base = tmp_path_factory.mktemp("tokens")
    byte_tokenizer(base / "t")
    (base / "in").mkdir()
    for number in range(5):
        (base / "in" / f"a{number}.txt").write_text("é" * (50 + number), "utf-8")
    rows = [json.dumps({"text": "x" * (1 + number % 90)}) for number in range(200)]
    (base / "in" / "b.jsonl").write_text("\n".join([*rows[:150], "nonsense", *rows[150:]]), "utf-8")
    with gzip.open(base / "in" / "c.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rows[:70]))
    (base / "in" / "d.txt").write_text("one long text " * 600, "utf-8")
    (base / "in" / "e.txt").write_text("the end " * 5, "utf-8")
    return base


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder / "t")


def ends(folder) -> list[int]:
    """Tokens up to the end of each document."""
    documents = iter_documents([folder / "in"], SourceOptions())
    return [int(end) for end in np.cumsum([len(document.plain_text().encode()) for document in documents])]


def count(tokenizer, folder, place, goal, **options):
    return count_corpus(tokenizer, [folder / "in"], CountOptions(tokens=goal, **options), place)


def assert_is_prefix(run, folder, tokenizer, goal, tmp_path):
    """Compare with the table of a file that holds only the documents of the prefix."""
    documents = []
    for document in iter_documents([folder / "in"], SourceOptions()):
        documents.append(json.dumps({"text": document.plain_text()}))
        if sum(len(json.loads(row)["text"].encode()) for row in documents) >= goal:
            break
    (tmp_path / "prefix.jsonl").write_text("\n".join(documents), "utf-8")
    whole = count_corpus(tokenizer, [tmp_path / "prefix.jsonl"], CountOptions(), tmp_path / "whole").table
    np.testing.assert_array_equal(run.table.counts, whole.counts)
    assert (run.table.documents, run.table.bytes) == (whole.documents, whole.bytes)
    assert run.table.documents == len(documents)


@pytest.mark.parametrize(("shard_bytes", "batch"), [(700, 1), (700, 7), (1 << 20, 8192)])
def test_the_counts_are_those_of_the_first_documents(
    folder, tokenizer, tmp_path, monkeypatch, shard_bytes, batch
):
    monkeypatch.setattr(tally, "_BATCH_DOCUMENTS", batch)
    monkeypatch.setattr(reading, "PIECE_CHARACTERS", 500)  # the long text is counted whole, in 17 pieces
    found = ends(folder)
    assert found[-1] == ALL
    near = (found[2], found[40], found[154], found[-3], found[-2])
    for goal in (1, 77, *(end + by for end in near for by in (-1, 0, 1)), ALL):
        place = tmp_path / f"{goal}"
        run = count(tokenizer, folder, place / "p", goal, shard_bytes=shard_bytes)
        assert_is_prefix(run, folder, tokenizer, goal, place)
        assert run.table.tokens == next(end for end in found if end >= goal)


@pytest.mark.parametrize("goal", [400, 9_000])
def test_neither_processes_nor_an_interruption_change_them(
    folder, tokenizer, tmp_path, monkeypatch, capsys, goal
):
    options = {"shard_bytes": 700}
    alone = count(tokenizer, folder, tmp_path / "1", goal, **options)
    several = count(tokenizer, folder, tmp_path / "2", goal, workers=3, **options)
    honest, counted = counting.UnitCounter.count, []

    def interrupted(self, unit, progress, left):
        counted.append(unit)
        if len(counted) == 2:
            raise KeyboardInterrupt
        return honest(self, unit, progress, left)

    monkeypatch.setattr(counting.UnitCounter, "count", interrupted)
    with pytest.raises(KeyboardInterrupt):
        count(tokenizer, folder, tmp_path / "3", goal, **options)
    resumed = count(tokenizer, folder, tmp_path / "3", goal, **options)
    for run in (several, resumed):
        np.testing.assert_array_equal(run.table.counts, alone.table.counts)
        for name in ("documents", "bytes", "sources", "origin"):
            assert getattr(run.table, name) == getattr(alone.table, name)
        assert run.problems == alone.problems
        assert run.units == alone.units
    assert resumed.resumed == 1
    assert f"{goal:,} of {goal:,} tokens" in capsys.readouterr().err  # the bar


def test_results_of_other_goals_are_reused_exactly(folder, tokenizer, tmp_path):
    for goal in (9_000, 2_000, 15_000, 2_001, None):
        run = count(tokenizer, folder, tmp_path / "p", goal, shard_bytes=700)
        fresh = count(tokenizer, folder, tmp_path / f"{goal}", goal, shard_bytes=700)
        np.testing.assert_array_equal(run.table.counts, fresh.table.counts)
        assert (run.table.documents, run.table.sources) == (fresh.table.documents, fresh.table.sources)
    assert run.resumed


def test_reading_stops(folder, tokenizer, tmp_path, monkeypatch):
    read: dict[str, int] = {}
    honest = counting.read_shard

    def watched(shard, *given, **options):
        for document in honest(shard, *given, **options):
            read[document.source.name] = read.get(document.source.name, 0) + 1
            yield document

    monkeypatch.setattr(counting, "read_shard", watched)
    monkeypatch.setattr(tally, "_BATCH_DOCUMENTS", 10)
    run = count(tokenizer, folder, tmp_path / "p", 1_000, shard_bytes=700)
    assert {path.rpartition("/")[2] for path in run.table.sources} == {
        *(f"a{n}.txt" for n in range(5)),
        "b.jsonl",
    }
    assert "c.jsonl.gz" not in read
    assert read["b.jsonl"] <= run.table.documents + 20 < 60


@pytest.mark.parametrize("workers", [1, 2])
def test_a_streamed_data_set_is_read_up_to_the_goal(tokenizer, tmp_path, monkeypatch, workers):
    pytest.importorskip("datasets")
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "set").mkdir()
    for shard in range(5):
        table = arrow.table({"text": [f"{shard} " * 10] * 30})
        parquet.write_table(table, tmp_path / "set" / f"train-{shard}.parquet")
    begun, honest = [], counting.UnitCounter.count
    if workers == 1:
        watched = lambda self, unit, *given: begun.append(unit[0].start) or honest(self, unit, *given)  # noqa: E731
        monkeypatch.setattr(counting.UnitCounter, "count", watched)
    options = CountOptions(tokens=900, workers=workers)
    run = count_corpus(tokenizer, [f"hub:{tmp_path}/set"], options, tmp_path / "p")
    assert (run.table.tokens, run.table.documents, run.units) == (900, 45, 2)
    assert dict.fromkeys("01", 10) == {
        digit: int(run.table.counts[tokenizer.encode(digit)[0]]) // (30 if digit == "0" else 15)
        for digit in "01"
    }
    assert begun == ([0, 1] if workers == 1 else [])


def test_a_damaged_file_after_the_last_document_is_no_error(folder, tokenizer, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("x" * 100)
    (tmp_path / "in" / "b.jsonl.gz").write_bytes((folder / "in" / "c.jsonl.gz").read_bytes()[:-30])
    for workers in (1, 2):
        run = count(tokenizer, tmp_path, tmp_path / "p", 100, workers=workers)
        assert (run.table.tokens, run.table.documents, len(run.table.sources)) == (100, 1, 1)
        with pytest.raises(DataError, match="damaged"):
            count(tokenizer, tmp_path, tmp_path / "p", 101, workers=workers)


def test_assistant_mode_stops_after_a_whole_conversation(tokenizer, tmp_path):
    rows = [json.dumps(chat(number)) for number in range(300)]
    sizes = np.cumsum([number % 50 + 2 for number in range(300)])  # an answer, and its end
    kept = int(np.argmax(sizes >= 2_000)) + 1
    tables = []
    for number, goal in ((300, 2_000), (kept, None)):
        (tmp_path / f"{number}.jsonl").write_text("\n".join(rows[:number]))
        options = CountOptions("assistant", tokens=goal)
        run = count_corpus(tokenizer, [tmp_path / f"{number}.jsonl"], options, tmp_path / f"{number}")
        tables.append(run.table)
    np.testing.assert_array_equal(tables[0].counts, tables[1].counts)
    assert (tables[0].documents, tables[0].bytes) == (tables[1].documents, tables[1].bytes)
    assert (tables[0].documents, tables[0].tokens) == (kept, sizes[kept - 1])


def test_a_sample_is_drawn_before_it_is_counted(folder, tokenizer, tmp_path):
    sources = SourceOptions(sample=0.5, seed=3)
    run = count(tokenizer, folder, tmp_path / "p", 3_000, sources=sources)
    kept = [len(document.plain_text().encode()) for document in iter_documents([folder / "in"], sources)]
    assert run.table.documents == int(np.argmax(np.cumsum(kept) >= 3_000)) + 1


def test_command_and_function(folder, tmp_path):
    app = build_app({"count-freq": count_freq}, ["count-freq"])
    words = ["count-freq", "--tokenizer", folder / "t", "--input", folder / "in", "--output"]

    def run(*more):
        return CliRunner().invoke(app, [*map(str, words), *map(str, more)])

    done = ok(run(tmp_path / "a", "--tokens", "2k"))
    assert "Stopped at --tokens 2,000: 2,0" in done.output
    table = load_counts(tmp_path / "a")
    assert table.origin["tokens"] == 2000 <= table.tokens < 2100
    assert not (tmp_path / "a.partial").exists()
    for goal in (2000, 2e3, "2_000"):
        api = api_count_freq(folder / "t", folder / "in", tmp_path / "b", tokens=goal, overwrite=True)
        np.testing.assert_array_equal(api.counts, table.counts)
        assert (api.documents, api.sources) == (table.documents, table.sources)
    done = run(tmp_path / "c", "--tokens", "1B")
    assert f"The inputs end before --tokens 1,000,000,000: {ALL:,} tokens" in done.output
    assert run(tmp_path / "d", "--tokens", "many").exit_code == 2
    done = run(tmp_path / "d", "--tokens", "1B", "--domain", f"a={folder}/in")
    assert done.exit_code == 2
    assert "exclude each other" in done.output
    assert run(tmp_path / "d", "--tokens", "0").exit_code == 2
