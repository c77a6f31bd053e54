"""Documents from files: units, compression, what is skipped, what is an error."""

from __future__ import annotations

import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import DATA, needs_data
from vocabforge.core.errors import DataError, UsageError
from vocabforge.corpus.reading import separated
from vocabforge.corpus.sources import Problems, SourceOptions, expand_paths, iter_documents


def texts(path, **options) -> list[str]:
    return [document.plain_text() for document in iter_documents([path], SourceOptions(**options))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a\r\nb\n\n\nc\n"]),
        ({"text_unit": "line"}, ["a", "b", "c"]),
        ({"text_unit": "paragraph"}, ["a\r\nb", "c"]),
        ({"separator": "b"}, ["a", "c"]),
        ({"separator": "\n\n"}, ["a\r\nb", "c"]),
    ],
)
def test_units(tmp_path, options, expected):
    file = tmp_path / "a.txt"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb\n\n\nc\n")
    assert texts(file, **options) == expected


def test_lines_of_documents(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n<|e|>\ntwo\nmore<|e|>three\n")
    rows = [(d.plain_text(), d.line) for d in iter_documents([file], SourceOptions(separator="<|e|>"))]
    assert rows == [("one", 1), ("two\nmore", 3), ("three", 4)]


@given(st.lists(st.text(alphabet="ab\n|", max_size=6), max_size=6), st.sampled_from(["|", "||", "\n|", "a"]))
def test_separated_equals_split(parts, separator):
    text = "|".join(parts)
    lines = enumerate(text.splitlines(keepends=True), start=1)
    assert [piece for _, piece in separated(lines, separator)] == [
        p.strip("\r\n") for p in text.split(separator)
    ]


@needs_data
def test_tinystories():
    file = DATA / "corpus" / "tinystories_train_head_2MiB.txt.xz"
    rows = texts(file, separator="<|endoftext|>")
    whole = lzma.decompress(file.read_bytes()).decode("utf-8")
    assert len(rows) > 2000
    assert rows == [piece.strip("\r\n") for piece in whole.split("<|endoftext|>") if piece.strip()]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_compressed_json_lines(tmp_path, suffix):
    rows = [
        {"text": "é"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    file = tmp_path / f"a.jsonl{suffix}"
    file.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](data))
    read: list[int] = []
    documents = list(iter_documents([file], SourceOptions(), on_bytes=read.append))
    assert [document.plain_text() for document in documents] == ["é", "a\nb"]
    assert documents[1].messages is not None
    assert sum(read) == file.stat().st_size


@pytest.mark.parametrize("content", ['[{"text": "a"}, {"text": "b"}]', '{"text": "a"}\n{"text": "b"}\n'])
def test_json_files_as_lists_or_lines(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_text(content)
    assert texts(file) == ["a", "b"]


def test_text_field(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"body": "a"}\n{"body": [{"role": "user", "content": "b"}]}\n{"text": "c"}\n')
    problems = Problems()
    documents = list(iter_documents([file], SourceOptions(text_field="body"), problems=problems))
    assert [document.plain_text() for document in documents] == ["a", "b"]
    assert problems.first == [f"{file}:3: the row has no field 'body' (fields: text)"]


def test_unreadable_lines_are_counted_and_named(tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    bad = [
        b'{"text": "a"}',
        b'{"text": ',
        b'{"text": "\xff"}',
        b"7",
        b'{"x": 1}',
        b'{"messages": []}',
        b"{",
        b"{",
    ]
    file.write_bytes(b"\n".join([*bad, b'{"text": "z"}']))
    problems = Problems()
    documents = list(iter_documents([file], SourceOptions(), problems=problems))
    assert [(document.text, document.line) for document in documents] == [("a", 1), ("z", 9)]
    assert problems.total == 7
    assert problems.kinds["the line is not valid JSON"] == 3
    assert "3 x the line is not valid JSON" in (problems.summary() or "")
    said = capsys.readouterr().err
    assert f"{file}:2: the line is not valid JSON" in said
    assert f"{file}:3: the line is not valid UTF-8" in said
    assert said.count("Skipped") == problems.shown + 1


@pytest.mark.parametrize(
    ("line", "message"), [(b"{", "not valid JSON"), (b'{"text": "\xff"}', "not valid UTF-8")]
)
def test_strict_fails_at_the_first(tmp_path, line, message):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"text": "a"}\n' + line)
    with pytest.raises(DataError, match=f"{message}(.|\n)*a.jsonl:2"):
        texts(file, strict=True)


def test_invalid_utf8_in_text_loses_that_line_only(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\n\xff\xfe\nthree")
    assert texts(file) == ["one\nthree"]
    with pytest.raises(DataError, match=r"a.txt:2"):
        texts(file, strict=True)


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_cut_and_damaged_archives(tmp_path, suffix, pack):
    whole = pack(b"".join(b"line %d\n" % number for number in range(9999)))
    file = tmp_path / f"a.txt{suffix}"
    for content in (whole[: len(whole) // 2], b"\x00" * 40):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"damaged or cut short(.|\n)*a.txt"):
            texts(file)


def test_broken_json_file(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('[{"text": "a"}, {"te')
    with pytest.raises(DataError, match="JSON file is not valid"):
        texts(file)


def test_vanished_file(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("a")
    second.write_text("b")
    documents = iter_documents([tmp_path], SourceOptions())
    assert next(documents).text == "a"
    second.unlink()
    with pytest.raises(DataError, match=r"cannot be read(.|\n)*b.txt"):
        next(documents)


def test_folders_are_searched_and_files_read_once(tmp_path):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("in/b.txt", "in/deep/a.jsonl.gz", "in/.hidden.txt", "in/c.md"):
        (tmp_path / name).write_text("x")
    found = expand_paths([tmp_path / "in" / "b.txt", tmp_path / "in"])
    assert [file.name for file in found] == ["b.txt", "a.jsonl.gz"]


def test_unusable_paths(tmp_path):
    (tmp_path / "a.parquet").write_text("x")
    with pytest.raises(DataError, match=r"no supported file(.|\n)*\.jsonl"):
        expand_paths([tmp_path])
    with pytest.raises(DataError, match="not supported"):
        expand_paths([tmp_path / "a.parquet"])
    with pytest.raises(DataError, match="missing"):
        expand_paths([tmp_path / "b.txt"])
    with pytest.raises(UsageError, match="no input"):
        expand_paths([])
    with pytest.raises(UsageError, match="separator"):
        SourceOptions(separator="")
