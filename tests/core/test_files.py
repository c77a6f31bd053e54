"""Atomic writes, disk errors, JSON reading."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from vocabforge.core import files
from vocabforge.core.errors import DataError, UsageError, VocabForgeError
from vocabforge.core.files import atomic_write, atomic_write_json, check_run_folder, disk_errors, read_json


def test_atomic_write_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "new" / "x.txt"
    atomic_write(target, "ä")
    atomic_write(target, b"second")
    assert target.read_bytes() == b"second"
    assert [p.name for p in target.parent.iterdir()] == ["x.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_write_keeps_the_former_content(tmp_path, monkeypatch, step: str) -> None:
    target = tmp_path / "x"
    atomic_write(target, "old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(VocabForgeError, match="No space left on device") as caught:
        atomic_write(target, "new")
    assert str(target) in str(caught.value)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "may write"),
        (errno.EROFS, "writable file system"),
        (errno.EIO, "check the path"),
    ],
)
def test_disk_errors_say_what_to_do(number: int, remedy: str) -> None:
    with pytest.raises(VocabForgeError, match=remedy), disk_errors(Path("x")):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_never_holds_nan(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic_write_json(tmp_path / "x.json", {"a": number})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1', "line 1, column 8"),
        (b"", "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"\xff", "not UTF-8"),
        (b"1" * 10_000, "cannot be parsed"),
        (b"[" * 200_000, "cannot be parsed"),
    ],
)
def test_bad_json_is_an_error_of_ours(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        read_json(tmp_path / "x.json", "thing")
    assert "x.json" in str(caught.value)


def test_what_atomic_write_json_escapes_it_reads_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xe9")
    atomic_write_json(tmp_path / "x.json", {"name": name})
    assert json.loads((tmp_path / "x.json").read_bytes()) == {"name": name}


def test_a_run_folder_is_looked_at_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "run").mkdir()
    for good in (tmp_path / "run", tmp_path / "new" / "deep"):
        check_run_folder(good)
    for bad in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(UsageError, match="not a folder"):
            check_run_folder(bad)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "run"]
