"""Files at URLs (https, s3, gs, hf, ...) by fsspec."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import IO, Any

from ...core.errors import DataError, VocabForgeError

_URL = re.compile(r"(?!hub:)([a-z][a-z0-9+]+):/{1,2}(?=[^/])")  # Path removes one of two slashes


class RemotePath(PosixPath):
    """URL of a file, usable wherever a local path is read by :func:`open_bytes`."""

    def __str__(self) -> str:
        return _URL.sub(r"\1://", super().__str__(), count=1)

    def stat(self, **_: Any) -> os.stat_result:
        """Return the size; 0 if the server does not state it."""
        with _errors(self):
            system, name = _file_system(str(self))
            return os.stat_result((0, 0, 0, 0, 0, 0, system.info(name)["size"] or 0, 0, 0, 0))

    def is_file(self) -> bool:
        return True

    def resolve(self, strict: bool = False) -> RemotePath:
        return self


def input_path(name: Path | str) -> Path:
    """Return the path of a local or remote file."""
    return RemotePath(name) if _URL.match(str(name)) else Path(name)


def open_bytes(path: Path) -> IO[bytes]:
    """Open the stored bytes of a file.

    Raises:
        OSError: the file cannot be opened.
        VocabForgeError: fsspec needs another package for this kind of URL.
    """
    if not isinstance(path, RemotePath):
        return open(path, "rb")
    with _errors(path):
        system, name = _file_system(str(path))
        handle: IO[bytes] = system.open(name, "rb")
        return handle


def remote_files(url: RemotePath) -> list[RemotePath]:
    """Return the files in a remote folder, or those that match a glob, sorted."""
    with _errors(url):
        system, name = _file_system(str(url))
        names = system.glob(name) if glob.has_magic(name) else system.find(name)
        return [RemotePath(system.unstrip_protocol(name)) for name in sorted(names)]


def _file_system(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    system, name = url_to_fs(url)
    return system, str(name)


@contextlib.contextmanager
def _errors(url: RemotePath) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        package = re.search(r"\b(s3fs|gcsfs|adlfs|aiohttp)\b", str(error))
        name = package and {"aiohttp": "'fsspec[http]'"}.get(package[0], package[0])
        raise VocabForgeError(
            "this URL needs a package that is not installed",
            got=error,
            source=url,
            remedy=f"pip install {name}" if name else "install it, or copy the file to a local disk",
        ) from error
    except Exception as error:  # the libraries that fsspec uses raise their own kinds
        raise DataError(
            "the input cannot be read",
            got=f"{type(error).__name__}: {error}",
            source=url,
            remedy="check the URL, the network and the credentials",
        ) from error
