"""One writer a folder."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from vocabforge.core.errors import UsageError
from vocabforge.core.lock import only_writer


def test_a_second_writer_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with (
        only_writer(folder),
        pytest.raises(UsageError, match="another process is working"),
        only_writer(folder),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    with only_writer(folder):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_holds_nothing(tmp_path, monkeypatch, number):
    def refuse(_handle: int, _how: int) -> None:
        raise OSError(number, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_writer(tmp_path / "out"), only_writer(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []
