"""Atomic writes and hashes: a file under its final name is always whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import DataError, VocabForgeError

_CHUNK = 1 << 20


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fsync_path(path: Path) -> None:
    """Flush a file or a folder to the disk (folders: so that a rename survives a power cut)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's write errors into one clear error naming ``path``."""
    try:
        yield
    except OSError as error:
        remedies = {
            errno.ENOSPC: "free disk space or choose another --output",
            errno.EDQUOT: "free disk quota or choose another --output",
            errno.EACCES: "choose an --output that you may write to",
            errno.EROFS: "choose an --output on a writable file system",
        }
        raise VocabForgeError(
            "cannot write to the disk",
            got=error.strerror or error,
            source=error.filename or path,
            remedy=remedies.get(error.errno or 0, "check the path and the disk"),
        ) from error


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write ``data`` to a temporary sibling, flush it, and rename it to ``path``."""
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        try:
            with open(temporary, "wb") as handle:
                handle.write(payload)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_path(path.parent)


def atomic_write_json(path: Path, value: Any) -> None:
    """``atomic_write`` of indented JSON; NaN and infinity are refused (they are not JSON)."""
    atomic_write(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, what: str = "file") -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is missing, not UTF-8, or not JSON (with line and column).
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(f"the {what} is missing", expected=path, remedy="check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"the {what} is not UTF-8 text", got=error, source=path) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"the {what} is not valid JSON",
            got=f"{error.msg} at line {error.lineno}, column {error.colno}",
            source=path,
            remedy="the file may be truncated; make or fetch it again",
        ) from error
