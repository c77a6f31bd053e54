"""Rename finished folders to their final names, and recover from killed runs.

Work in progress uses hidden siblings of the final folder: ``.NAME.tmp-OWNER-N`` while it is filled, and
``.NAME.old-OWNER-N`` for a folder that is being replaced. OWNER identifies the machine and the process.
Siblings of a running process are never touched; those of a dead one are removed by the next writer.
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
    """Return a new hidden sibling of ``path`` that no other writer uses.

    For a path that is itself a hidden sibling, the name is derived from the final name, so that
    :func:`leftovers` finds it.
    """
    hidden = _HIDDEN.fullmatch(path.name)
    name = f".{hidden[1] if hidden else path.name}.{role}-{_machine()}-{os.getpid()}-{next(_number)}"
    _issued.add(name)
    return path.with_name(name)


def _machine() -> str:
    """Return a short hash of the PID namespace (host and container)."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return hashlib.sha256(f"{platform.node()} {space}".encode()).hexdigest()[:8]


def leftovers(path: Path, role: Role, *, abandoned: bool = False) -> list[Path]:
    """Return hidden siblings of ``path``, oldest first; ``abandoned`` keeps only those of dead processes."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.{role}-([0-9a-f]{{8}})-(\d+)-\d+")
    dated = []
    for name in _names(path.parent):
        match = pattern.fullmatch(name)
        if match and not (abandoned and _lives(name, match[1], int(match[2]))):
            with contextlib.suppress(FileNotFoundError):  # its run may just have finished
                entry = path.with_name(name)
                dated.append((entry.stat().st_mtime, entry))
    return [entry for _, entry in sorted(dated)]


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # absent or unreadable: nothing to recover
        return []


def _lives(name: str, machine: str, process: int) -> bool:
    if machine != _machine() or os.name == "nt":
        return True  # unknown: assume it is alive
    if process == os.getpid():
        return name in _issued  # otherwise from an earlier process with the same PID
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def is_vacant(path: Path) -> bool:
    """Return whether the path does not exist or is an empty folder."""
    try:
        return not os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return not path.exists()


def mend(path: Path) -> None:
    """Restore a folder that a killed run moved aside without replacing it, and remove leftovers."""
    aside = leftovers(path, "old", abandoned=True)
    if aside and is_vacant(path):
        with contextlib.suppress(OSError):
            os.rename(aside[-1], path)
    clear_up(path)
    if not is_vacant(path):
        for folder in leftovers(path, "old", abandoned=True):
            shutil.rmtree(folder, ignore_errors=True)


def clear_up(path: Path) -> None:
    """Remove temporary siblings of ``path`` left by dead runs; ignore those that cannot be removed."""
    for stale in leftovers(path, "tmp", abandoned=True):
        if stale.is_dir() and not stale.is_symlink():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                stale.unlink()


def take_away(path: Path) -> None:
    """Rename a folder to a hidden name, then delete it: readers never see a partly deleted folder.

    Raises:
        OSError: the folder cannot be renamed.
    """
    aside = sibling(path, "tmp")
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def put_in_place(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Rename ``temporary`` to ``path``; with ``overwrite``, move an existing folder aside, then delete it.

    With concurrent writers the last one wins and every folder is complete. After an error or interrupt the
    previous folder is restored.

    Raises:
        UsageError: ``path`` exists and ``overwrite`` is off.
        OSError: the rename failed.
    """
    asides: list[Path] = []
    try:
        for _ in range(_TRIES):
            if overwrite and not is_vacant(path):
                asides.append(sibling(path, "old"))
                with contextlib.suppress(FileNotFoundError):  # another writer was faster
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
            expected="no folder with this name",
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
