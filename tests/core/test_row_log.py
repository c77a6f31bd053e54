"""Rows that are kept as they come."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.core.journal import LinePosition, RowLog


def line(row: Any) -> bytes:
    return (json.dumps(row) + "\n").encode()


def held(path: Path) -> tuple[list[Any], int]:
    rows: list[Any] = []
    log = RowLog(path)
    damaged = log.read(lambda row, place: rows.append(row["n"]))
    log.close()
    return rows, damaged


def test_rows_come_back_from_their_places(tmp_path: Path) -> None:
    log = RowLog(tmp_path / "rows")
    places = [log.add(line({"n": number * "a"})) for number in range(4)]
    assert places[:2] == [LinePosition(0, 10), LinePosition(10, 11)]
    assert [log.get(place)["n"] for place in places] == ["", "a", "aa", "aaa"]
    log.close()
    log.close()
    assert held(tmp_path / "rows") == (["", "a", "aa", "aaa"], 0)


def test_cut_at_any_byte_the_whole_lines_are_left_and_it_goes_on(tmp_path: Path) -> None:
    whole = line({"n": 1}) + line({"n": 2})
    for cut in range(len(whole) + 1):
        path = tmp_path / str(cut)
        path.write_bytes(whole[:cut])
        kept, damaged = held(path)
        assert (kept, damaged) == ([1, 2][: whole[:cut].count(b"\n")], 0)
        log = RowLog(path)
        log.read(lambda row, place: None)
        assert log.get(log.add(line({"n": 3}))) == {"n": 3}
        log.close()
        assert held(path) == ([*kept, 3], 0)


def test_damaged_lines_are_counted_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(line({"n": 1}) + b"\0\0\n" + b'"x"\n' + b"[" * 10**5 + b"\n" + line({"n": 2}))
    assert held(path) == ([1, 2], 3)
    log = RowLog(path)

    def refuse(row: Any, place: LinePosition) -> None:
        raise DataError("no row of mine")

    assert log.read(refuse) == 5
    log.clear()
    assert log.add(line({"n": 9})) == LinePosition(0, 9)
    log.close()
    assert held(path) == ([9], 0)


def test_a_row_behind_one_that_failed_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    full = iter([False, True])

    def write(file: int, data: bytes) -> int:
        if next(full, None):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:3])

    log = RowLog(tmp_path / "rows")
    first = log.add(line({"n": 1}))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        with pytest.raises(VocabForgeError, match="cannot write"):
            log.add(line({"n": 2}))
    third = log.add(line({"n": 3}))
    assert [log.get(place)["n"] for place in (first, third)] == [1, 3]
    log.close()
    assert held(tmp_path / "rows") == ([1, 3], 0)
