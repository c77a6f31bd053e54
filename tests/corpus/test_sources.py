"""Documents from files: units, compression, what is skipped, what is an error."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import DATA, needs_data
from vocabforge.core.artifact import write_artifact
from vocabforge.core.errors import DataError, UsageError, VocabForgeError
from vocabforge.corpus.prepared.options import source_digests
from vocabforge.corpus.sources import bytes as reading
from vocabforge.corpus.sources.shards import plan_shards, read_shard, shard_digest
from vocabforge.corpus.sources.sources import Problems, SourceOptions, expand_paths, iter_documents, separated


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


@given(st.lists(st.text(alphabet="ab\n|", max_size=6), max_size=6), st.sampled_from(["|", "||", "\n|", "a"]))
def test_separated_equals_split(parts, separator):
    text = "|".join(parts)
    lines = enumerate(text.splitlines(keepends=True), start=1)
    assert [piece for _, piece in separated(lines, separator)] == [
        p.strip("\r\n") for p in text.split(separator)
    ]


def zst(data: bytes) -> bytes:
    """Two frames with a skippable one between them, as tools that pack in parts write."""
    library = pytest.importorskip("zstandard")
    half = len(data) // 2
    frames = [
        library.ZstdCompressor(write_checksum=checksum, write_content_size=size).compress(part)
        for part, checksum, size in ((data[:half], False, False), (data[half:], True, True))
    ]
    return frames[0] + b"\x5e\x2a\x4d\x18\x03\x00\x00\x00abc" + frames[1]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_compressed_json_lines(tmp_path, suffix):
    rows = [
        {"text": "é"},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    ]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    file = tmp_path / f"a.jsonl{suffix}"
    file.write_bytes({"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zst}[suffix](data))
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


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zst)])
def test_cut_and_damaged_archives(tmp_path, suffix, pack):
    whole = pack(b"".join(b"line %d\n" % number for number in range(9999)))
    file = tmp_path / f"a.txt{suffix}"
    for content in (whole[: len(whole) // 2], b"\x00" * 40):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"damaged or cut short(.|\n)*a.txt"):
            texts(file)


def test_zst_cut_at_every_byte(tmp_path, monkeypatch):
    """Only between frames a file may end."""
    lines = b"".join(b"%d %d\n" % (number, number * number % 997) for number in range(40))
    whole = zst(lines)
    file = tmp_path / "a.txt.zst"
    monkeypatch.setattr(reading, "BLOCK_BYTES", 64)
    good = {}
    for length in range(1, len(whole) + 1):
        file.write_bytes(whole[:length])
        try:
            good[length] = "".join(texts(file))
        except DataError as error:
            assert "damaged or cut short" in error.message  # noqa: PT017
    skipped = whole.index(b"\x5e\x2a\x4d\x18")
    half = lines[: len(lines) // 2].decode()
    assert good == {skipped: half, skipped + 11: half, len(whole): lines.decode()}
    read: list[int] = []
    list(iter_documents([file], SourceOptions(), on_bytes=read.append))
    assert sum(read) == len(whole)


@pytest.mark.parametrize(
    "content",
    [
        "",
        '[{"text": "a"}, {"te',
        '[{"text": "a"} {"text": "b"}]',
        '[{"text": "a"},]',
        '[{"text": "a"}] 7',
        '{"text": "a"} 7',
        "[" + "1" * 5000 + "]",
        "[" * 100_000,
    ],
    ids=range(8),
)
def test_broken_json_file(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(DataError, match="JSON file is not valid"):
        texts(file)


def test_folders_globs_and_files_read_once(tmp_path):
    folder = tmp_path / "in"
    for name in ("deep/a.jsonl.gz", "b.txt", "c.md", "d[1].txt", ".hidden.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")

    def names(*paths) -> list[str]:
        return [file.name for file in expand_paths(paths)]

    assert names(f"{tmp_path}/**/*.gz", folder / "d[1].txt", f"{folder}/*") == [
        "a.jsonl.gz",
        "d[1].txt",
        "b.txt",
    ]
    assert names(folder / "b.txt", folder) == ["b.txt", "d[1].txt", "a.jsonl.gz"]
    with pytest.raises(DataError, match=r"pattern matches no(.|\n)*\*\.xz"):
        expand_paths([f"{tmp_path}/**/*.xz"])


def test_half_characters_are_left_out(tmp_path):
    file = tmp_path / "a.jsonl"
    turns = [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "b"}]
    rows = [{"text": "a\ud83d"}, {"text": "\U0001f600"}, {"messages": turns}]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    problems = Problems()
    assert [d.text for d in iter_documents([file], SourceOptions(), problems=problems)] == ["\U0001f600"]
    assert [first.split(" ")[0] for first in problems.first] == [f"{file}:1:", f"{file}:3:"]


TURN = {"from": "human", "value": "q"}
GOOD, BAD = {"from": "gpt", "value": "good"}, {"from": "gpt", "value": "bad"}


@pytest.mark.parametrize(
    "row",
    [
        {"conversations": [TURN], "chosen": GOOD, "rejected": BAD},
        {"conversations": [TURN], "chosen": [GOOD], "rejected": [BAD]},
        {"conversations": [TURN, GOOD], "chosen": GOOD, "rejected": BAD},
        {"messages": [TURN, GOOD], "chosen": [TURN, GOOD], "rejected": [TURN, BAD], "prompt": "q"},
        {"chosen": [TURN, GOOD], "rejected": [TURN, BAD]},
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
        {"prompt": [TURN], "chosen": [GOOD], "rejected": [BAD]},
        {"conversations": {"from": ["human", "gpt"], "value": ["q", "good"]}},
        {"prompt": None, "response": None, "instruction": "q", "output": "good"},
    ],
)
def test_rows_as_tables_and_preference_data_hold_them(tmp_path, row):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row))
    (document,) = iter_documents([file], SourceOptions(strict=True))
    assert [(m["role"], m["content"]) for m in document.messages] == [("user", "q"), ("assistant", "good")]


# name, options, documents, of these conversations, rows left out
CORPUS = [
    ("chat/dpo_en_demo.json.xz", {}, 300, 300, 0),
    ("chat/dummy_conversation.json", {}, 500, 500, 0),
    ("chat/glaive_toolcall_en_demo.json", {}, 300, 300, 0),
    ("chat/kto_en_demo.json.xz", {}, 300, 300, 0),
    ("chat/reason_tool_use_demo_50.jsonl", {}, 50, 50, 0),
    ("chat/v1_sft_demo.jsonl", {}, 500, 500, 0),
    ("gsm8k/test.jsonl", {}, 1319, 1319, 0),
    ("human_eval/HumanEval.jsonl.gz", {}, 0, 0, 164),
    ("human_eval/HumanEval.jsonl.gz", {"text_field": "prompt"}, 164, 0, 0),
]


@needs_data
@pytest.mark.parametrize(("name", "options", "documents", "conversations", "left_out"), CORPUS)
def test_development_data(name, options, documents, conversations, left_out):
    problems = Problems(shown=0)
    found = list(iter_documents([DATA / name], SourceOptions(**options), problems=problems))
    assert len(found) == documents
    assert sum(document.messages is not None for document in found) == conversations
    assert problems.total == left_out


def test_unusable_paths(tmp_path):
    (tmp_path / "a.parquet.gz").write_text("x")
    with pytest.raises(DataError, match=r"no supported file(.|\n)*\.jsonl"):
        expand_paths([tmp_path])
    with pytest.raises(DataError, match="not supported"):
        expand_paths([tmp_path / "a.parquet.gz"])
    with pytest.raises(DataError, match="missing"):
        expand_paths([tmp_path / "b.txt"])
    with pytest.raises(UsageError, match="no input"):
        expand_paths([])
    with pytest.raises(UsageError, match="separator"):
        SourceOptions(separator="")


def test_the_manifest_in_a_folder_of_responses_is_no_text(tmp_path: Path) -> None:
    with write_artifact(tmp_path / "responses", "responses", {}) as folder:
        (folder / "responses.jsonl").write_text('{"text": "hello"}\n')
    assert [path.name for path in expand_paths([tmp_path / "responses"])] == ["responses.jsonl"]


def test_a_lost_connection_is_no_damaged_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise TimeoutError  # without errno, like that of a library behind a URL

    monkeypatch.setattr(reading, "open_bytes", lambda path: Lost())
    with pytest.raises(DataError, match="cannot be read"):
        list(reading.ByteSpan(Path("texts.txt.gz")).blocks())


def test_files_at_urls(tmp_path: Path) -> None:
    """Globs, shards, packed and table files give the documents of local copies; errors name the URL."""
    fsspec, pa = pytest.importorskip("fsspec"), pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = b"".join(b'{"text": "row %d"}\n' % number for number in range(40))
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"packed"))
    parquet.write_table(pa.table({"text": ["one", "two"]}), tmp_path / "c.parquet")
    with (
        pa.OSFile(str(tmp_path / "d.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, pa.schema({"text": "string"})) as w,
    ):
        w.write_table(pa.table({"text": ["three"]}))
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path), "/bucket", recursive=True)
    memory.pipe("/bucket/e.jsonl", b'{"text": "good"}\nbad\n')
    urls = ["memory://bucket/[a-d].*"]
    found = [document.text for document in iter_documents(urls, SourceOptions())]
    assert found == texts(tmp_path) == [*(f"row {n}" for n in range(40)), "packed", "one", "two", "three"]
    shards = plan_shards(urls, SourceOptions(), shard_bytes=100)
    parts = [[d.text for d in read_shard(shard, SourceOptions(), cut=None)] for shard in shards]
    assert len(shards) > 5
    assert [text for part in parts for text in part] == found
    assert shard_digest(shards[0]) == hashlib.sha256(lines[: shards[0].stop]).hexdigest()
    assert source_digests(["memory://bucket/c.parquet"]) == source_digests([tmp_path / "c.parquet"])
    with pytest.raises(DataError, match=r"not valid JSON(.|\n)*memory://bucket/e\.jsonl:2"):
        texts("memory://bucket/e.jsonl", strict=True)
    with pytest.raises(DataError, match=r"cannot be read(.|\n)*memory://bucket/none\.jsonl"):
        texts("memory://bucket/none.jsonl")
    with pytest.raises(DataError, match="holds no supported file"):
        texts("memory://bucket/*.xz")


def test_files_of_a_web_server_are_read_like_local_ones(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"text": "row %d"}\n' % n for n in range(40)))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"packed"))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            found = [text for name in ("a.jsonl", "b.txt.gz") for text in texts(f"{url}/{name}")]
            with pytest.raises(DataError, match=r"cannot be read(.|\n)*none\.jsonl(.|\n)*check the URL"):
                texts(f"{url}/none.jsonl")
        finally:
            server.shutdown()
    assert found == [text for name in ("a.jsonl", "b.txt.gz") for text in texts(tmp_path / name)]


def test_a_url_names_the_package_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(VocabForgeError, match=r"s3://bucket/a\.jsonl(.|\n)*pip install s3fs"):
        texts("s3://bucket/a.jsonl")


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\x1f\x8b"])
def test_a_server_may_send_its_first_bytes_one_by_one(start, tmp_path, monkeypatch) -> None:
    """A byte order mark is left out, and compressed data without the suffix is recognised, all the same."""

    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 1, 1) if self.tell() < 8 else size)

    monkeypatch.setattr(reading, "open_bytes", lambda _: Dribble(start + b'{"text": "a"}\n' * 3))
    blocks = reading.ByteSpan(tmp_path / "a.jsonl").blocks()
    if start == b"\x1f\x8b":
        with pytest.raises(DataError, match="lacks the suffix"):
            list(blocks)
    else:
        assert b"".join(block for _, block in blocks) == b'{"text": "a"}\n' * 3
