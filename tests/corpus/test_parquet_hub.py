"""Parquet files and (through local folders) Hub data sets: rows, shards, what is wrong said clearly."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.corpus.sources import arrow
from vocabforge.corpus.sources.shards import plan_shards, read_shard, shard_digest
from vocabforge.corpus.sources.sources import Problems, SourceOptions, iter_documents

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def documents(path, problems=None, **options):
    return list(iter_documents([path], SourceOptions(**options), problems=problems))


def from_shards(path, shard_bytes, **options):
    given = SourceOptions(**options)
    shards = plan_shards([path], given, shard_bytes=shard_bytes)
    return [list(read_shard(shard, given, cut=None)) for shard in shards], shards


def table(folder: Path, columns, name="a.parquet", **options) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / name, **options)
    return folder / name


TURNS = [
    [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}],
    None,
    [{"from": "human", "value": "r"}, {"from": "gpt", "value": "b"}],
]


@pytest.mark.parametrize("row_group_size", [1, 2, 100])
def test_rows_of_every_kind(tmp_path, row_group_size):
    columns = {
        "conversations": TURNS,
        "text": [None, "plain", None],
        "prompt": pa.nulls(3, pa.string()),
        "image": [b"\xff", b"\xfe", None],
    }
    file = table(tmp_path, columns, row_group_size=row_group_size)
    problems = Problems()
    found = documents(file, problems)
    assert problems.summary() == "Not read: image in 2 rows"
    with pytest.raises(DataError, match=r"keys that are not read(.|\n)*image(.|\n)*a.parquet:1"):
        documents(file, strict=True)
    assert [d.plain_text() for d in found] == ["q\na", "plain", "r\nb"]
    assert [d.line for d in found] == [1, 2, 3]
    assert found[0].messages == [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def test_text_field_reads_that_column_alone(tmp_path, monkeypatch):
    columns = {"body": ["a", None, "c"], "text": ["x", "y", "z"], "talk": TURNS}
    file = table(tmp_path, columns)
    rows = []
    monkeypatch.setattr(arrow, "row_document", lambda row, *_: rows.append(row))
    documents(file, text_field="body")
    assert rows == [{"body": "a"}, {"body": None}, {"body": "c"}]
    monkeypatch.undo()
    problems = Problems()
    assert [d.text for d in documents(file, problems, text_field="body")] == ["a", "c"]
    assert problems.first == [f"{file}:2: the row has no field 'body' (fields: none)"]
    assert [d.plain_text() for d in documents(file, problems, text_field="talk")] == ["q\na", "r\nb"]
    with pytest.raises(DataError, match=r"no such column(.|\n)*columns: body, text, talk"):
        documents(file, text_field="boddy")
    with pytest.raises(DataError, match="no column of text"):
        documents(table(tmp_path, {"n": [1, 2]}, name="n.parquet"))


@pytest.mark.parametrize("sample", [None, 0.5])
@pytest.mark.parametrize("shard_bytes", [1, 300, 1 << 20])
def test_shards_of_row_groups(tmp_path, sample, shard_bytes):
    file = table(tmp_path, {"text": [f"text {n}" for n in range(50)]}, row_group_size=3)
    groups, shards = from_shards(file, shard_bytes, sample=sample)
    found = [document for group in groups for document in group]
    assert found == documents(file, sample=sample)
    assert len(found) == 50 if sample is None else 10 < len(found) < 40
    assert len(shards) == {1: 17, 1 << 20: 1}.get(shard_bytes, len(shards))
    assert sum(shard.stored_bytes for shard in shards) == file.stat().st_size
    read: list[int] = []
    for shard in shards:
        list(read_shard(shard, SourceOptions(), cut=None, on_bytes=read.append))
    assert sum(read) == file.stat().st_size


def test_digest_sees_a_change_in_its_own_row_groups_only(tmp_path):
    rows = [f"text {n}" for n in range(6)]
    file = table(tmp_path, {"text": rows}, row_group_size=2, use_dictionary=False, compression="none")
    _, shards = from_shards(file, 1)
    before = [shard_digest(shard) for shard in shards]
    data = file.read_bytes()
    file.write_bytes(data.replace(b"text 3", b"text X", 1))
    after = [shard_digest(shard) for shard in shards]
    assert [old == new for old, new in zip(before, after)] == [True, False, True]


def test_rows_that_are_not_utf8(tmp_path):
    text = pa.array([b"a", b"\xff", b"c"]).cast(pa.binary()).view(pa.string())
    problems = Problems()
    file = table(tmp_path, {"text": text})
    assert [d.text for d in documents(file, problems)] == ["a", "c"]
    assert problems.first == [f"{file}:2: the row is not valid UTF-8"]


def test_damaged_files(tmp_path):
    file = table(tmp_path, {"text": [f"text {n}" * 9 for n in range(500)]})
    whole = file.read_bytes()
    for data in (whole[: len(whole) // 2], b"x" * 40, b"", whole[:4] + b"\xff" * 900 + whole[904:]):
        file.write_bytes(data)
        with pytest.raises(DataError, match=r"damaged or not Parquet(.|\n)*a\.parquet"):
            documents(file)


@pytest.mark.parametrize("package", ["pyarrow.parquet", "datasets", "pyarrow"])
def test_missing_packages_are_named(tmp_path, monkeypatch, package):
    (tmp_path / "a.txt.zst").write_bytes(b"")
    inputs = {
        "pyarrow.parquet": table(tmp_path, {"text": ["a"]}),
        "datasets": f"hub:{tmp_path}/nowhere",
        "pyarrow": tmp_path / "a.txt.zst",
    }
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(VocabForgeError, match=f"pip install {package.partition('.')[0]}\\b(?!\\.)"):
        documents(inputs[package])


@pytest.fixture
def hub_folder(tmp_path):
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    for shard in range(3):
        texts = [f"text {shard} {row}" for row in range(20)]
        columns = {"text": texts, "n": list(range(20)), "image": [b"\xff"] * 20}
        table(folder, columns, name=f"train-{shard}.parquet")
    table(folder, {"text": ["held out"]}, name="test-0.parquet")
    return folder


@pytest.mark.parametrize("sample", [None, 0.5])
def test_hub_data_sets_in_shards(hub_folder, sample):
    source = f"hub:{hub_folder}"
    groups, shards = from_shards(source, 1, sample=sample)
    assert [(s.source, s.kind, s.start, s.stop) for s in shards] == [
        (source, "hub", index, index + 1) for index in range(3)
    ]
    found = [document for group in groups for document in group]
    assert found == documents(source, sample=sample)
    assert 15 < len(found) < 45 if sample else len(found) == 60
    if sample:
        rows = [{d.text.split()[2] for d in group} for group in groups]
        assert rows[0] != rows[1] != rows[2]
    if sample is None:
        assert (found[21].text, found[21].line) == ("text 1 1", "shard 1, row 2")
        assert len({shard_digest(shard) for shard in shards}) == 3
    assert [d.text for d in documents(f"hub:{hub_folder}::test")] == ["held out"]


def test_a_hub_shard_without_any_text_is_skipped_row_by_row(tmp_path):
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    for shard, text in enumerate(["some text", None]):
        rows = "".join(json.dumps({"text": text, "n": n}) + "\n" for n in range(3))
        (folder / f"train-{shard}.jsonl").write_text(rows)
    problems = Problems()
    assert len(documents(f"hub:{folder}", problems=problems)) == 3
    assert problems.total == 3


def test_hub_digest_follows_the_files(hub_folder, tmp_path):
    from vocabforge.corpus.sources import hub

    (shard, *_) = plan_shards([f"hub:{hub_folder}"], SourceOptions(), shard_bytes=1)
    before = shard_digest(shard)
    table(hub_folder, {"text": ["other"]}, name="train-0.parquet")
    hub._files.cache_clear()  # another process would not have it
    assert shard_digest(shard) != before


@pytest.mark.parametrize("ending", ["::nosplit", ":noconfig"], ids=["no such split", "no such configuration"])
def test_hub_names_that_are_wrong(hub_folder, ending):
    with pytest.raises(DataError, match=r"cannot be read(.|\n)*(Available)(.|\n)*hub:"):
        documents(f"hub:{hub_folder}{ending}")


def test_hub_without_network(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(*_, **given):
        assert given == {"split": "train", "revision": None, "streaming": True}  # never trust_remote_code
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r"ConnectionError: Couldn't(.|\n)*local copy"):
        documents("hub:nobody/nothing-at-all")
