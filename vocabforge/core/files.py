"""Atomic writes and hashes: a file under its final name is always complete."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError

from .errors import ArtifactError, DataError, UsageError, VocabForgeError
from .folders import clear_up, sibling

_MISFITS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SafetensorError,
)
_CHUNK = 1 << 20
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_REMEDIES = {
    errno.ENOSPC: "free disk space or choose another --output",
    errno.EDQUOT: "free disk quota or choose another --output",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f) or choose another --output",
    errno.EACCES: "choose an --output that you may write to",
    errno.EPERM: "choose an --output that you may write to",
    errno.EROFS: "choose an --output on a writable file system",
    errno.ENAMETOOLONG: "choose a shorter --output",
}


def check_regular(path: Path) -> None:
    """Reject anything but a regular file; reading a pipe could block, and some devices never end.

    Raises:
        OSError: the path is a pipe, device, socket or folder, or does not exist.
    """
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, "not a plain file", str(path))


def sha256_file(path: Path) -> str:
    """Return the hex SHA-256 of a file.

    Raises:
        OSError: the file is missing, unreadable or not a regular file.
    """
    check_regular(path)
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fsync_path(path: Path) -> None:
    """Flush a file or folder to disk; flushing a folder makes renames in it survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # unsupported on some network file systems
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert write errors, including those of safetensors, into one clear error naming ``path``."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output exited; not a disk error
        raise
    except OSError as error:
        raise _disk_error(error.strerror or error, error.errno, error.filename or path) from error
    except SafetensorError as error:
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise _disk_error(os.strerror(int(number[1])), int(number[1]), path) from error


def _disk_error(got: object, number: int | None, source: object) -> VocabForgeError:
    remedy = _REMEDIES.get(number or 0, "check the path and the disk")
    return VocabForgeError("cannot write to the disk", got=got, source=source, remedy=remedy)


def check_run_folder(path: Path) -> None:
    """Check before any work is done that the output folder of a run can be created and written to.

    Raises:
        UsageError: the path is a file, is not writable or cannot be created.
        VocabForgeError: a parent folder is not searchable.
    """
    with disk_errors(path):  # a parent folder may not be searchable
        check_writable(path if path.exists() else Path(os.path.realpath(path)).parent, path)


def check_output_file(path: Path) -> None:
    """Check before any work is done that the output file can be written.

    Raises:
        UsageError: the path is a folder, or its parent is not writable.
    """
    if path.is_dir():
        raise UsageError("the output is a folder", got=path, expected="a file", remedy="name a file in it")
    check_writable(path.resolve().parent, path)


def check_apart(output: Path, inputs: Iterable[tuple[str, Path | None]]) -> None:
    """Refuse to replace an output folder that is, or contains, one of its own inputs.

    Args:
        inputs: options and their paths; None for options that are not given.

    Raises:
        UsageError: names the conflicting option.
    """
    final = Path(os.path.realpath(output))
    for option, path in inputs:
        real = None if path is None else Path(os.path.realpath(path))
        if real is not None and (real == final or final in real.parents):
            raise UsageError(
                "the output would replace what it is made from",
                got=f"--output {output}, and {option} {path}",
                expected="a separate folder",
                remedy="choose another folder; nothing was changed",
            )


def check_writable(folder: Path, path: Path) -> None:
    """Check that ``folder``, which will contain the output ``path``, is writable or can be created.

    Raises:
        UsageError: names the folder that is not writable.
    """
    parent = next(place for place in (folder, *folder.parents) if place.exists())
    try:  # permission bits are not enough: root passes them everywhere but cannot write in /proc
        os.rmdir(tempfile.mkdtemp(prefix=".vocabforge-", dir=parent))
    except OSError as error:
        raise UsageError(
            "the output's folder cannot be written to",
            got=f"{parent} ({error.strerror if parent.is_dir() else 'not a folder'})",
            source=path,
            remedy="choose another --output",
        ) from error


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write ``data`` to a temporary sibling, flush it and rename it to ``path``.

    Temporary files of killed runs are removed.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_up(path)
        temporary = sibling(path, "tmp")
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
    """Write indented JSON atomically; NaN and infinity are rejected because they are not valid JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:  # Python decodes file names that are not UTF-8 to lone surrogates
        data = json.dumps(value, indent=2, allow_nan=False).encode("ascii")
    atomic_write(path, data + b"\n")


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Parse JSON like ``json.loads``, but reject duplicate keys with different values.

    Args:
        finite: also reject NaN and infinity, which are not valid JSON but written by some programs.

    Raises:
        ValueError: invalid JSON (``JSONDecodeError``), not UTF-8, or a rejected key or number.
        RecursionError: thousands of nested levels.
    """
    if not finite:
        return json.loads(text, object_pairs_hook=_one_value_a_key)
    return json.loads(
        text, object_pairs_hook=_one_value_a_key, parse_constant=_refuse_number, parse_float=_finite_number
    )


def _one_value_a_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        for key, value in pairs:
            if by_key[key] != value:
                raise ValueError(f"the key {key[:80]!r} is given twice, with different values")
    return by_key


def _finite_number(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text[:80]} is not a finite number")


def read_json(path: Path, what: str = "file", *, finite: bool = True) -> Any:
    """Read a JSON file.

    Args:
        finite: False for files of other programs, which may contain NaN and infinity; see :func:`parse_json`.

    Raises:
        DataError: the file is missing, unreadable, not a regular file, not UTF-8 or not JSON (with line and
            column).
    """
    try:
        check_regular(path)
        return parse_json(path.read_text("utf-8"), finite=finite)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(f"the {what} is missing", expected=path, remedy="check the path") from error
    except OSError as error:
        raise DataError(
            f"the {what} cannot be read",
            got=error.strerror or error,
            source=path,
            remedy="check the path, its permissions and the disk",
        ) from error
    except (ValueError, RecursionError) as error:
        problem, got = "cannot be parsed", str(error)  # e.g. thousands of digits or nested brackets
        if isinstance(error, UnicodeDecodeError):
            problem = "is not UTF-8 text"
        elif isinstance(error, json.JSONDecodeError):
            problem = "is not valid JSON"
            got = (
                f"{error.msg} at line {error.lineno}, column {error.colno}" if error.doc else "an empty file"
            )
        remedy = "the file may be damaged or truncated; create or download it again"
        raise DataError(f"the {what} {problem}", got=got, source=path, remedy=remedy) from error


@contextlib.contextmanager
def form_errors(
    message: str, source: object, *, remedy: str | None = None, kind: type[VocabForgeError] = ArtifactError
) -> Iterator[None]:
    """Convert errors caused by unexpected data (a missing key, a string instead of a number) into one error.

    A valid hash does not exclude them: the file may come from another program.
    """
    try:
        yield
    except _MISFITS as error:
        got = f"no {error}" if type(error) is KeyError else f"{type(error).__name__}: {error}"
        raise kind(message, got=got, source=source, remedy=remedy) from error
