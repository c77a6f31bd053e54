"""Rows that are kept as they come, and the log of figures across a kill and a resume."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from vocabforge.core.errors import DataError, VocabForgeError
from vocabforge.core.journal import LinePosition, MetricsLog, RowLog, read_jsonl_log


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


def test_a_resumed_run_repeats_no_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, keep_until=0)
    assert log.removed == frozenset()
    for step in range(1, 8):
        log.write(kind="train", step=step, loss=step)
    log.write(kind="heldout", step=6, loss=0)
    with open(path, "a", encoding="utf-8") as handle:
        handle.write('{"kind": "train", "step": 8, "lo')  # killed here; the newest checkpoint is of step 5
    log = MetricsLog(path, keep_until=5)
    assert log.removed == {("train", 6), ("train", 7), ("heldout", 6)}
    for step in range(6, 9):
        log.write(kind="train", step=step, loss=-step)
    rows = read_jsonl_log(path)
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row["loss"] for row in rows] == [1, 2, 3, 4, 5, -6, -7, -8]
    assert MetricsLog(path).removed == frozenset()
    assert read_jsonl_log(path) == rows, "without a step nothing is taken back"
    assert not list(tmp_path.glob(".*")), "a temporary file is left"


def test_other_rows_stay_and_only_rank_0_takes_back(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "metrics.jsonl"
    text = '{"note": 1}\n{"kind": "start", "step": 0}\n{"kind": "train", "step": 3}\n'
    path.write_text(text)
    monkeypatch.setenv("RANK", "1")
    assert MetricsLog(path, keep_until=0).removed == frozenset()
    assert path.read_text() == text
    monkeypatch.setenv("RANK", "0")
    assert MetricsLog(path, keep_until=0).removed == {("train", 3)}
    assert path.read_text() == '{"note": 1}\n{"kind": "start", "step": 0}\n'


def test_a_listener_is_given_every_row_as_written(tmp_path: Path) -> None:
    heard = []
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.listener = heard.append
    log.write(kind="train", step=1, loss=float("inf"))
    assert heard == [{"kind": "train", "step": 1, "loss": None}]


def test_a_log_cut_short_is_read_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    MetricsLog(path).write(step=1, loss=2.5)
    MetricsLog(path).write(step=2, loss=float("nan"), parts=[float("inf"), 1])
    with open(path, "a", encoding="utf-8") as handle:
        handle.write('{"step": 3, "lo')
    rows = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": None, "parts": [None, 1]}]
    assert read_jsonl_log(path) == rows
    MetricsLog(path).write(step=3)
    assert read_jsonl_log(path) == [*rows, {"step": 3}]


def test_a_broken_log_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\nrubbish\n{"a": 2}\n')
    with pytest.raises(DataError, match=r"metrics.jsonl:2"):
        read_jsonl_log(path)
    path.write_text("3\n")
    with pytest.raises(DataError, match="no JSON object"):
        read_jsonl_log(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_jsonl_log(tmp_path / "none")


def test_other_ranks_write_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    MetricsLog(tmp_path / "run" / "m.jsonl").write(a=1)
    assert not list(tmp_path.iterdir())
