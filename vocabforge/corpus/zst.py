"""Reading Zstandard files, with the check for a cut file that the library leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from .extras import import_extra

_CHUNK = 1 << 17
_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50  # and the 15 numbers behind it


class ZstFile:
    """The content of a ``.zst`` file of one or more frames, read forward in bounded memory.

    The library ends in silence where the input ends, be it within a frame. So the frames' block headers are
    followed beside it (RFC 8878, sections 3.1.1 and 3.1.2).

    Raises:
        EOFError: the file is damaged or cut short (while reading).
    """

    def __init__(self, path: Path, stored: IO[bytes]) -> None:
        self._library = import_extra("zstandard", "reading .zst files", path)
        self._handle = self._library.ZstdDecompressor().stream_reader(
            _Watched(stored), read_size=_CHUNK, read_across_frames=True
        )

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes of content, none at the end."""
        try:
            return self._handle.read(size)
        except self._library.ZstdError as error:
            raise EOFError(str(error)) from error


class _Watched:
    """Stored bytes on their way to the library; complains when they end within a frame."""

    def __init__(self, stored: IO[bytes]) -> None:
        self._stored = stored
        self._frames = _Frames()

    def read(self, size: int) -> bytes:
        data = self._stored.read(size)
        self._frames.feed(data)
        if not data and not self._frames.whole:
            raise EOFError("the file ends within a frame")
        return data


class _Frames:
    """Follows frame and block headers through stored bytes that come in pieces."""

    def __init__(self) -> None:
        self._held = b""
        self._skip = 0
        self._inside = False
        self._checksum = 0

    @property
    def whole(self) -> bool:
        """Whether the bytes so far end between two frames."""
        return not self._inside and not self._held and not self._skip

    def feed(self, data: bytes) -> None:
        data = self._held + data
        at = self._skip
        while at < len(data) and (step := self._step(data[at : at + 8])) is not None:
            at += step
        self._skip = max(0, at - len(data))
        self._held = data[at:]

    def _step(self, head: bytes) -> int | None:
        """Length of the header at hand and what it announces, None when more bytes are needed."""
        if self._inside:
            return self._block(head)
        if len(head) < 5:
            return None
        magic = int.from_bytes(head[:4], "little")
        if magic & ~0xF == _SKIPPABLE:
            return 8 + int.from_bytes(head[4:8], "little") if len(head) == 8 else None
        if magic != _MAGIC:
            raise EOFError("unknown frame")
        flags = head[4]
        single = flags >> 5 & 1
        content = (single, 2, 4, 8)[flags >> 6]
        self._inside, self._checksum = True, 4 * (flags >> 2 & 1)
        return 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + content

    def _block(self, head: bytes) -> int | None:
        if len(head) < 3:
            return None
        header = int.from_bytes(head[:3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        self._inside = not last
        return 3 + (1 if kind == 1 else size) + (self._checksum if last else 0)
