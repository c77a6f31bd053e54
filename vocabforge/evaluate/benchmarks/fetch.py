"""Fetching a published question file: checked by its hash before it has its name."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ...core.errors import VocabForgeError
from ...core.files import fsync_path
from ...corpus.regenerate_http import http_library
from .types import Source

MAX_BYTES = 64 << 20
"""More than any question file; what is longer is something else."""
_CONNECT_S, _READ_S = 10.0, 30.0
_WHOLE_S = 900.0  # a server that sends a byte now and then never lets a read time out


class NotFetched(Exception):
    """The file did not come; the message says why."""


def fetch(source: Source, path: Path, *, most: int = MAX_BYTES) -> None:
    """Fetch a published file to ``path``, which is made or replaced in one step, and only by the published bytes.

    Processes that fetch the same file at once do not meet: each writes a file of its own and renames it.

    Args:
        source: address and hash.
        path: where to; its folder is made if it is missing.
        most: bytes after which the rest is not asked for.

    Raises:
        NotFetched: no connection, no answer, another status than 200, cut short, too long, too slow, or of another
            hash.
        VocabForgeError: no HTTP client is installed, or the folder cannot be written to.
    """
    library = http_library()
    with _client(library, source.url) as client, _new_file(path) as handle:
        try:
            size, digest = _receive(client, source.url, handle, most)
        except library.TimeoutException as error:
            raise NotFetched(f"no answer in time ({type(error).__name__})") from error
        except (library.HTTPError, library.InvalidURL) as error:
            raise NotFetched(f"{type(error).__name__}: {error}") from error
        if digest != source.sha256:
            raise NotFetched(
                f"another file came ({size:,} bytes, sha256 {digest}; published: {source.sha256})"
            )


def _client(library: Any, url: str) -> Any:
    try:
        return library.Client(
            follow_redirects=True,
            verify=url.startswith("https:"),  # loading certificates takes a quarter of a second
            timeout=library.Timeout(_READ_S, connect=_CONNECT_S),
            headers={"Accept-Encoding": "identity"},  # the stored bytes are wanted, packed ones as they are
        )
    except (OSError, ValueError) as error:  # certificates or a proxy named wrongly in the environment
        raise NotFetched(f"{type(error).__name__}: {error}") from error


def _receive(client: Any, url: str, handle: IO[bytes], most: int) -> tuple[int, str]:
    """(bytes, SHA-256) of what the address gives, written to ``handle``."""
    digest = hashlib.sha256()
    size = 0
    end = time.monotonic() + _WHOLE_S
    with client.stream("GET", url) as reply:
        if reply.status_code != 200:
            reason = "".join(letter for letter in reply.reason_phrase if letter.isprintable())
            raise NotFetched(f"status {reply.status_code} {reason}".rstrip())
        for block in reply.iter_raw():
            size += len(block)
            if size > most:
                raise NotFetched(f"more than {most:,} bytes came")
            if time.monotonic() > end:
                raise NotFetched(f"no more than {size:,} bytes came in {_WHOLE_S:g} s")
            digest.update(block)
            handle.write(block)
    return size, digest.hexdigest()


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside ``path`` that takes its name when the block ends well, and is gone when it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        fsync_path(path.parent)
    except OSError as error:
        raise VocabForgeError(
            "the fetched question file cannot be written",
            got=error.strerror or error,
            source=path,
            remedy="set VOCABFORGE_CACHE to a folder that can be written to",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
