"""Folder locks: one writer per folder."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import UsageError
from .files import disk_errors

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}  # the last two differ on macOS


def lock_file(folder: Path) -> Path:
    """Return the hidden file next to ``folder`` that its writer locks."""
    return folder.parent / f".{folder.name}.lock"


@contextlib.contextmanager
def only_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock ``folder``, which need not exist, for this process. The lock of a killed process is released.

    The lock file is removed at the end. Without support for file locks in the operating system or the
    file system, nothing is locked.

    Args:
        wait: wait for the lock instead of raising an error.

    Raises:
        UsageError: another running process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = lock_file(folder)
    how = fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with disk_errors(path):
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, how)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                break
            os.close(handle)
            raise UsageError(
                "another process is working in this folder",
                got=folder,
                remedy="wait for it, stop it, or choose another output folder",
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == path.stat().st_ino:
                break
        os.close(handle)  # the previous holder has just removed it
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)
