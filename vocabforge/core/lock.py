"""One writer a folder."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from .errors import UsageError
from .files import disk_errors

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}  # the last two differ on macOS


@contextlib.contextmanager
def only_writer(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold ``folder`` for this process; it need not exist. A killed process lets go by itself.

    The lock is a hidden file beside the folder, removed at the end. Where the system, or the folder's file system,
    knows no file locks, nothing is held.

    Args:
        wait: until it is free, in place of the error.

    Raises:
        UsageError: another living process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    path = folder.parent / f".{folder.name}.lock"
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
        os.close(handle)  # its former holder has just removed it
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(handle)
