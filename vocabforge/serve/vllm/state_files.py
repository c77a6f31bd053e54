"""HTTP service of the files that ``HiddenStatesConnector`` writes, for clients on other machines.

``GET /NAME`` waits for a file that is being written and sends it; ``Range: bytes=N-`` resumes, and ``ETag`` is the
file's SHA-256. ``DELETE /NAME`` removes it. 404: removed or expired. 507: not written, its share of the disk is full.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from ...core.files import sha256_file
from ...train.capture.config import STATES_PROTOCOL

_WAIT_S = 10.0  # vLLM answers before the file is complete
_EXPIRE_S = 300.0  # after the last request; files of killed clients
_NAMED = re.compile("(chat)?cmpl-")  # vLLM's names of requests
_LOCAL = ("127.0.0.1", "localhost")


class StateFiles(ThreadingHTTPServer):
    """Serves the files that :meth:`add` wrote into ``folder``, and no others.

    Args:
        address: ``HOST:PORT`` to listen at.
        limit_bytes: maximum size of all files in ``folder``.
        key: required as a bearer token.

    Raises:
        ValueError: no host and port, or other machines could read the states without a key.
        OSError: the address is in use.
    """

    request_queue_size = 128

    def __init__(self, address: str, folder: Path, *, limit_bytes: int, key: str | None) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"states_address is HOST:PORT, such as 127.0.0.1:8100, not {address}")
        if not key and host not in _LOCAL:
            raise ValueError(f"states at {address} need a key: set VLLM_API_KEY, or listen at 127.0.0.1")
        self.folder, self._limit, self.key = folder, limit_bytes, key
        self.digests: dict[str, str] = {}  # "" for a file that was not written
        self._writing = 0  # bytes of files that are not complete
        self._changed = threading.Condition()
        super().__init__((host, int(port)), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def add(self, file: Path, size: int, save: Callable[[], None]) -> None:
        """Offer the file that ``save`` writes, if there is room for its ``size``."""
        with self._changed:
            room = self._writing + self._expire() + size <= self._limit
            self._writing += size
        digest = ""
        try:
            if room:
                save()
                digest = sha256_file(file)
        finally:
            with self._changed:
                self._writing -= size
                self.digests[file.name] = digest
                self._changed.notify_all()

    def wait(self, name: str) -> str | None:
        """Return the digest of a file, None if it does not come."""
        with self._changed:
            self._changed.wait_for(lambda: name in self.digests, _WAIT_S)
            return self.digests.get(name)

    def remove(self, name: str) -> bool:
        """Delete a file; return whether it was offered."""
        with self._changed:
            if self.digests.pop(name, None) is None:
                return False
            (self.folder / name).unlink(missing_ok=True)
            return True

    def _expire(self) -> int:
        """Remove states that nobody has requested for a while; return the size of the rest.

        States of a former server are known by vLLM's prefix. Other files, such as weights, are not ours.
        """
        size, oldest = 0, time.time() - _EXPIRE_S
        for file in self.folder.glob("*.safetensors*"):
            with contextlib.suppress(FileNotFoundError):
                facts = file.stat()
                ours = file.name in self.digests or _NAMED.match(file.name)
                if ours and facts.st_mtime < oldest:
                    self.digests.pop(file.name, None)
                    file.unlink()
                elif file.suffix == ".safetensors":  # others are being written
                    size += facts.st_size
        return size

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up: they resume."""


class _Handler(BaseHTTPRequestHandler):
    server: StateFiles
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the states follow their head at once, not 40 ms later
    timeout = 60.0

    def version_string(self) -> str:
        return STATES_PROTOCOL

    def do_GET(self) -> None:
        if (name := self._name()) is None:
            return
        digest, path = self.server.wait(name), self.server.folder / name
        if digest == "":
            self.server.remove(name)
            self._reply(507, "no room for these states (states_gb), or the disk is full")
        elif digest is None or not path.is_file():
            self._reply(404, "expired, removed or never written")
        else:
            with path.open("rb") as file:
                os.utime(path)
                self._send(file, digest)

    def _send(self, file: BinaryIO, digest: str) -> None:
        size = os.fstat(file.fileno()).st_size
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = min(int(asked[1]), size) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.send_header("ETag", f'"{digest}"')
        self.send_header("Content-Length", str(size - first))
        self.end_headers()
        self.connection.sendfile(file, first)

    def do_DELETE(self) -> None:
        if (name := self._name()) is not None:
            self._reply(200 if self.server.remove(name) else 404, "")

    def _name(self) -> str | None:
        """Return the requested name; answer requests without the key."""
        given, key = self.headers.get("Authorization", ""), self.server.key
        if key and not hmac.compare_digest(given.encode(), f"Bearer {key}".encode()):
            self._reply(401, "the key of VLLM_API_KEY is needed")
            return None
        return self.path[1:]

    def _reply(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing: vLLM's own log names the requests."""
