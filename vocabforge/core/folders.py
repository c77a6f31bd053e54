"""Putting a finished folder under its final name, and mending what killed runs left beside it.

Work in progress stands in hidden siblings of the final folder: ``.NAME.tmp-OWNER-N`` while it is filled,
and ``.NAME.old-OWNER-N`` for a folder that is being replaced. OWNER names the machine and the process, so
that the siblings of a living run are never touched, and those of a dead one are cleared by the next writer.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Literal

from .errors import UsageError

Role = Literal["tmp", "old"]
_TRIES = 20
_HIDDEN = re.compile(r"\.(.+)\.(?:tmp|old)-[0-9a-f]{8}-\d+-\d+")
_number = itertools.count()
_issued: set[str] = set()


def sibling(path: Path, role: Role) -> Path:
    """A new hidden name beside ``path`` that no other writer uses.

    Beside a hidden name it is one of the same final name: only those are ever looked for.
    """
    hidden = _HIDDEN.fullmatch(path.name)
    name = f".{hidden[1] if hidden else path.name}.{role}-{_machine()}-{os.getpid()}-{next(_number)}"
    _issued.add(name)
    return path.with_name(name)


def _machine() -> str:
    """Short name of the space in which our process number means something (host and container)."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:8]


def leftovers(path: Path, role: Role, *, abandoned: bool = False) -> list[Path]:
    """Hidden siblings of ``path``, oldest first; ``abandoned`` keeps those whose run is known to be dead."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{role}-([0-9a-f]{{8}})-(\d+)-\d+")
    found = []
    for name in _names(path.parent):
        match = pattern.fullmatch(name)
        if match and not (abandoned and _lives(name, match[1], int(match[2]))):
            with contextlib.suppress(FileNotFoundError):  # its run has just finished
                entry = path.with_name(name)
                found.append((entry.stat().st_mtime, entry))
    return [entry for _, entry in sorted(found)]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # absent or unreadable: then there is nothing to mend either
        return []


def _lives(name: str, machine: str, process: int) -> bool:
    if machine != _machine() or os.name == "nt":
        return True  # cannot be told from here
    if process == os.getpid():
        return name in _issued  # else left by an earlier process that had our number
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def is_vacant(path: Path) -> bool:
    """Nothing stands there, or an empty folder."""
    try:
        return not os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return not path.exists()


def mend(path: Path) -> None:
    """Put back a folder that a killed run moved aside and never replaced; remove what dead runs left."""
    aside = leftovers(path, "old", abandoned=True)
    if aside and is_vacant(path):
        with contextlib.suppress(OSError):
            os.rename(aside[-1], path)
    clear_up(path)
    if not is_vacant(path):
        for folder in leftovers(path, "old", abandoned=True):
            shutil.rmtree(folder, ignore_errors=True)


def clear_up(path: Path) -> None:
    """Remove what dead runs were writing beside the file or folder ``path``; what cannot be removed stays."""
    for stale in leftovers(path, "tmp", abandoned=True):
        if stale.is_dir() and not stale.is_symlink():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                stale.unlink()


def take_away(path: Path) -> None:
    """Remove a folder, under a hidden name first, so that no half of it is ever seen.

    Raises:
        OSError: it cannot be renamed.
    """
    aside = sibling(path, "tmp")
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def put_in_place(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Rename ``temporary`` to ``path``; with ``overwrite``, what stands there is moved aside, then removed.

    Of several writers the last one wins, and each folder is whole. When anything fails or interrupts, the
    former folder stands again.

    Raises:
        UsageError: something stands there and ``overwrite`` is off.
        OSError: the renaming failed.
    """
    asides: list[Path] = []
    try:
        for _ in range(_TRIES):
            if overwrite and not is_vacant(path):
                asides.append(sibling(path, "old"))
                with contextlib.suppress(FileNotFoundError):  # another writer was quicker
                    os.rename(path, asides[-1])
            try:
                os.rename(temporary, path)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not overwrite:
                    break
        raise UsageError(
            "the output was made by another run meanwhile",
            got=path,
            expected="no folder of this name",
            remedy="choose another --output, or pass --overwrite to replace it",
        )
    except BaseException:
        _put_back(asides, path)
        raise
    finally:
        if not is_vacant(path):
            for aside in asides:
                shutil.rmtree(aside, ignore_errors=True)


def _put_back(asides: list[Path], path: Path) -> None:
    for aside in reversed(asides):
        if aside.exists() and is_vacant(path):
            with contextlib.suppress(OSError):
                os.rename(aside, path)
