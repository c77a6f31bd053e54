"""A corpus in shards: together exactly the whole, for every kind of file and any size of shard."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabforge.core.errors import DataError, UsageError
from vocabforge.corpus.sources import bytes as reading
from vocabforge.corpus.sources import sources
from vocabforge.corpus.sources.shards import plan_shards, read_shard, shard_digest
from vocabforge.corpus.sources.sources import Problems, SourceOptions, iter_documents


class BeforeSpace:
    """Allows a cut before a space between letters, but not near a line's start or before `` x y``.

    Where the text ends or begins nearby it sees nothing forbidden: only the margin keeps that from being wrong.
    """

    margin = 4
    places = re.compile(r"(?<!\n\w)(?<=[^\W\d_]) (?=[^\W\d_]|\Z)(?!x y)")

    def first(self, text, start=0):
        found = self.places.search(text, max(1, start))
        return found.start() if found else None


CUT = BeforeSpace()


def in_shards(paths, options=None, *, shard_bytes, cut=CUT, problems=None, **more):
    options = options or SourceOptions()
    problems = problems or Problems(shown=0)
    shards = plan_shards(paths, options, shard_bytes=shard_bytes, **more)
    return [list(read_shard(s, options, cut=cut, problems=problems)) for s in shards], shards


def whole(paths, options=None, problems=None):
    problems = problems or Problems(shown=0)
    return list(iter_documents(paths, options or SourceOptions(), problems=problems))


def flat(groups):
    return [document for group in groups for document in group]


def shrink(patch):
    """Sizes at which a few bytes have all the borders that gigabytes have."""
    patch.setattr(reading, "BLOCK_BYTES", 7)
    patch.setattr(sources, "PIECE_CHARACTERS", 5)
    patch.setattr(sources, "_STEP", 4)
    patch.setattr("vocabforge.corpus.sources.shards._WINDOW", 4)
    patch.setattr("vocabforge.corpus.sources.shards._SHORT_LINE", 6)


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch)


WORDS = ["a", "be", "é", "語", "🙂", " ", "  ", "\n", "\r\n", "\n\n", " \n", "\u2028", "x y z", " "]
WORDS += ["ab cd ef", "\ufeff"]
LETTERS = ["ab cd", " ", "é x y", "語 be", "long line ", "🙂"]
BLANK = [" ", "\n", "\t\n", "\u2003"]


def random_texts(count):
    """(random source, text, whether it has a byte order mark): long, short, without newlines, blank."""
    for seed in range(count):
        draw = random.Random(seed)
        words = draw.choice([WORDS, WORDS, LETTERS, [*LETTERS, "\n"], BLANK])
        text = "".join(draw.choices(words, k=draw.choice([0, 3, 20, 80]))).lstrip("\ufeff")
        yield draw, text, draw.random() < 0.3


def write(folder: Path, name: str, data: bytes) -> Path:
    file = folder / name
    file.write_bytes(data)
    return file


def check_pieces(documents, text):
    """Joined they are the text, one begins, and every cut is one that the rule allows in the whole text."""
    assert "".join(d.text for d in documents) == (text if text.strip() else "")
    assert [d.begins for d in documents] == [True] * bool(documents) + [False] * (len(documents) - 1)
    at = 0
    for document in documents[:-1]:
        at += len(document.text)
        assert at == 0 or CUT.first(text, at) == at


def test_a_text_in_pieces_is_the_text(tmp_path, small):
    for _, text, bom in random_texts(400):
        file = write(tmp_path, "a.txt", bom * b"\xef\xbb\xbf" + text.encode())
        groups, (shard,) = in_shards([file], shard_bytes=1)
        check_pieces(flat(groups), text)
        assert (shard.start, shard.stop, shard.stored_bytes) == (0, None, file.stat().st_size)


def test_lines_that_are_not_utf8_are_left_out_alike(tmp_path, small):
    for draw, text, _ in random_texts(300):
        data = text.encode()
        for _ in range(draw.randint(0, 2)):
            at = draw.randint(0, len(data))
            data = data[:at] + draw.choice([b"\xff", b"\xc3", b"\x80\n", b"\n\xff\n"]) + data[at:]
        lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
        file = write(tmp_path, "a.txt", data)
        problems = Problems(shown=0)
        documents = flat(in_shards([file], shard_bytes=draw.randint(1, 90), problems=problems)[0])
        check_pieces(documents, b"".join(line for line in lines if _valid(line)).decode())
        assert problems.total == sum(not _valid(line) for line in lines)


def test_blank_and_bad_beginnings(tmp_path, small):
    file = write(tmp_path, "a.txt", b" \n" * 50)
    assert flat(in_shards([file], shard_bytes=10)[0]) == []
    for data, text in (
        (b" \n" * 50 + b"x", " \n" * 50 + "x"),
        (b"\xff\n" * 20 + b"ab cd\n" * 9, "ab cd\n" * 9),
    ):
        check_pieces(flat(in_shards([write(tmp_path, "a.txt", data)], shard_bytes=10)[0]), text)


def _valid(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


UNITS = [
    SourceOptions(text_unit="line"),
    SourceOptions(text_unit="paragraph"),
    SourceOptions(separator="\n\n"),
    SourceOptions(text_unit="line", sample=0.5, seed=3),
    SourceOptions(text_unit="paragraph", sample=0.5, seed=4),
    SourceOptions(separator="e", sample=0.5),
]


@pytest.mark.parametrize("options", UNITS)
def test_units_are_the_same_in_shards(tmp_path, small, monkeypatch, options):
    for draw, text, bom in random_texts(120):
        data = bom * b"\xef\xbb\xbf" + text.encode() + draw.choice([b"", b"", b"bad \xff\nx"])
        file = write(tmp_path, "a.txt", data)
        problems, alike = Problems(shown=0), Problems(shown=0)
        groups, _ = in_shards([file], options, shard_bytes=draw.randint(1, 90), problems=problems)
        monkeypatch.setattr(reading, "BLOCK_BYTES", draw.choice([3, 5, 1 << 20]))
        assert [d.text for d in flat(groups)] == [d.text for d in whole([file], options, alike)]
        assert problems.kinds == alike.kinds
        if options == UNITS[0]:
            lines = [
                line.decode() for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if _valid(line)
            ]
            assert [d.text for d in flat(groups)] == [line.rstrip("\r") for line in lines if line.strip()]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(st.one_of(st.text(max_size=9), st.none()), max_size=12),
    shard_bytes=st.integers(1, 90),
    newline=st.booleans(),
    sample=st.sampled_from([None, 0.5]),
)
def test_json_lines_are_the_same_in_shards(tmp_path_factory, rows, shard_bytes, newline, sample):
    data = "\r\n".join("" if row is None else json.dumps({"text": row}, ensure_ascii=False) for row in rows)
    file = write(
        tmp_path_factory.mktemp("t"), "a.jsonl", data.encode("utf-8", "surrogatepass") + b"\n" * newline
    )
    options = SourceOptions(sample=sample)
    groups, shards = in_shards([file], options, shard_bytes=shard_bytes)
    assert [d.text for d in flat(groups)] == [d.text for d in whole([file], options)]
    assert sum(s.stored_bytes for s in shards) == file.stat().st_size


def test_bytes_read_add_up_and_digests_are_of_the_stored_bytes(tmp_path):
    plain = write(tmp_path, "a.jsonl", b'{"text": "a"}\n' * 40)
    packed = write(tmp_path, "b.txt.gz", gzip.compress(b"a b c\n" * 9))
    for shard in plan_shards([plain, packed], SourceOptions(), shard_bytes=100):
        read: list[int] = []
        list(read_shard(shard, SourceOptions(), cut=CUT, on_bytes=read.append))
        assert sum(read) == shard.stored_bytes
        stored = Path(shard.source).read_bytes()[shard.start : shard.stop]
        assert shard_digest(shard) == hashlib.sha256(stored).hexdigest()


def test_a_file_that_has_become_shorter(tmp_path):
    file = write(tmp_path, "a.jsonl", b'{"text": "a"}\n' * 40)
    first = plan_shards([file], SourceOptions(), shard_bytes=100)[0]
    file.write_bytes(b'{"text": "a"}\n')
    for use in (lambda: list(read_shard(first, SourceOptions(), cut=CUT)), lambda: shard_digest(first)):
        with pytest.raises(DataError, match="become shorter"):
            use()


def test_domains_own_their_files_and_each_is_read_once(tmp_path):
    for name in "abc":
        write(tmp_path, f"{name}.txt", b"x")
    write(tmp_path, "d.jsonl", b'{"text": "x"}')
    shards = plan_shards(
        [tmp_path / "c.txt", str(tmp_path / "[ab].txt")],
        SourceOptions(),
        domains={"one": [str(tmp_path / "a*")], "two": [str(tmp_path)]},
        shard_bytes=100,
    )
    assert [(Path(s.source).name, s.kind, s.domain) for s in shards] == [
        ("c.txt", "text", "two"),
        ("a.txt", "text", "one"),
        ("b.txt", "text", "two"),
        ("d.jsonl", "lines", "two"),
    ]
    only = plan_shards([], SourceOptions(), domains={"x": [str(tmp_path)]}, shard_bytes=9)
    assert {s.domain for s in only} == {"x"}
    with pytest.raises(UsageError, match="no input"):
        plan_shards([], SourceOptions(), shard_bytes=9)
    with pytest.raises(UsageError, match="shard_bytes"):
        plan_shards([tmp_path], SourceOptions(), shard_bytes=0)


def test_the_sample_is_of_documents_and_moves_with_the_file(tmp_path):
    lines = b"".join(b"line %d\n" % number for number in range(2000))
    file = write(tmp_path, "a.txt", lines)
    (tmp_path / "else").mkdir()
    elsewhere = write(tmp_path / "else", "a.txt", lines)
    drawn = [
        [d.text for d in whole([path], SourceOptions(text_unit="line", sample=0.25, seed=seed))]
        for path, seed in ((file, 0), (elsewhere, 0), (file, 1))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 400 < len(drawn[0]) < 600
    kept = [
        bool(whole([write(tmp_path, f"{number}.txt", b"a b c")], SourceOptions(sample=0.5)))
        for number in range(60)
    ]
    assert 15 < sum(kept) < 45
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="out of range"):
            SourceOptions(sample=share)


def test_texts_that_cannot_be_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "DOCUMENT_LIMIT", 1 << 21)
    file = write(tmp_path, "a.txt", b"x" * (3 << 20))
    remedy = r"no place where it may be cut(.|\n)*a\.txt(.|\n)*--text-unit line"
    for cut in (None, CUT):
        with pytest.raises(DataError, match=remedy):
            in_shards([file], shard_bytes=1 << 30, cut=cut)
    assert len(whole([file])[0].text) == 3 << 20


def test_a_line_longer_than_may_be_held(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "DOCUMENT_LIMIT", 100)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 16)
    rows = ["a", "b" * 200, "c", "d" * 200]
    file = write(tmp_path, "a.jsonl", "\n".join(json.dumps({"text": row}) for row in rows).encode())
    problems = Problems()
    assert [d.text for d in whole([file], problems=problems)] == ["a", "c"]
    assert problems.first == [f"{file}:{line}: the line is longer than 0 MiB" for line in (2, 4)]


def test_memory_is_bounded(tmp_path):
    """48 MiB of text in one document, read in pieces: a few blocks are held at a time."""
    file = tmp_path / "a.txt"
    with open(file, "wb") as handle:
        for _ in range(48):
            handle.write(("eine Zeile über nichts\n" * 44000).encode()[: 1 << 20].rsplit(b"\n", 1)[0] + b"\n")
    shards = plan_shards([file], SourceOptions(), shard_bytes=1 << 30)
    tracemalloc.start()
    total = sum(len(d.text) for d in read_shard(shards[0], SourceOptions(), cut=CUT))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 44 << 20
    assert peak < 20 << 20
