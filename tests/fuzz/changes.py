"""Small changes to one file of a copy, for the rows of a table of malformed inputs."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz.goods import replace

Change = Callable[[Path], None]
"""Spoils the file or folder at a path."""


def at(name: str, change: Callable[[bytes], bytes]) -> Change:
    """``change`` of the file ``name`` inside a folder, or of the file itself where the name is empty."""

    def spoil(path: Path) -> None:
        file = path / name if name else path
        replace(file, change(file.read_bytes()))

    return spoil


def whole(content: bytes | str, name: str = "") -> Change:
    """Another content."""
    return at(name, lambda _: content.encode() if isinstance(content, str) else content)


def swap(old: str, new: str | bytes, name: str = "") -> Change:
    """The first ``old`` becomes ``new``."""

    def change(data: bytes) -> bytes:
        if old.encode() not in data:
            raise AssertionError(f"{old!r} is not in the good example")
        return data.replace(old.encode(), new if isinstance(new, bytes) else new.encode(), 1)

    return at(name, change)


def more(text: str | bytes, name: str = "") -> Change:
    """Text behind the file's end."""
    return at(name, lambda data: data + (text if isinstance(text, bytes) else text.encode()))


def half(name: str = "") -> Change:
    """Cut short."""
    return at(name, lambda data: data[: len(data) // 2])


def put(key: str, value: Any, name: str = "") -> Change:
    """A value of a JSON file (``a.b.0``) becomes another."""

    def change(data: bytes) -> bytes:
        body = json.loads(data)
        *parents, leaf = key.split(".")
        node = body
        for one in parents:
            node = node[int(one) if isinstance(node, list) else one]
        node[int(leaf) if isinstance(node, list) else leaf] = value
        return json.dumps(body).encode()

    return at(name, change)


def twice(key: str, value: Any, name: str = "") -> Change:
    """A key of the outermost JSON object stands twice."""
    return at(
        name, lambda data: b"{" + f"{json.dumps(key)}: {json.dumps(value)}, ".encode() + data.lstrip()[1:]
    )


def without(key: str, name: str = "") -> Change:
    """A key of the outermost JSON object is missing."""
    return at(name, lambda data: json.dumps({k: v for k, v in json.loads(data).items() if k != key}).encode())


def row(number: int, key: str, value: Any, name: str = "") -> Change:
    """A value of one line of JSON lines."""

    def change(data: bytes) -> bytes:
        lines = data.splitlines()
        body = json.loads(lines[number])
        lines[number] = json.dumps({**body, key: value}).encode()
        return b"\n".join(lines) + b"\n"

    return at(name, change)


def header(edit: Callable[[dict[str, Any]], object], name: str) -> Change:
    """The header of a safetensors file, changed in place; the data behind it stay."""

    def change(data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        body = json.loads(data[8 : 8 + size])
        edit(body)
        return framed(json.dumps(body).encode(), data[8 + size :])

    return at(name, change)


def entry(tensor: str, field: str, value: Any, name: str) -> Change:
    """One field of one tensor in a safetensors header."""
    return header(lambda body: body[tensor].update({field: value}), name)


def raw_header(text: bytes, name: str) -> Change:
    """A safetensors header of any text."""

    def change(data: bytes) -> bytes:
        return framed(text, data[8 + struct.unpack("<Q", data[:8])[0] :])

    return at(name, change)


def length(value: int, name: str) -> Change:
    """What a safetensors file says of its header's length."""
    return at(name, lambda data: struct.pack("<Q", value) + data[8:])


def framed(text: bytes, rest: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text + rest


def values(byte: bytes, name: str, tensor: str) -> Change:
    """All bytes of one tensor."""

    def change(data: bytes) -> bytes:
        size = struct.unpack("<Q", data[:8])[0]
        start, stop = json.loads(data[8 : 8 + size])[tensor]["data_offsets"]
        at_ = 8 + size
        return data[: at_ + start] + byte * (stop - start) + data[at_ + stop :]

    return at(name, change)


def bomb(suffix: str, megabytes: int) -> bytes:
    """A packed file of a few hundred KiB at most that holds many megabytes of blanks."""
    block = b" " * (1 << 20)
    if suffix == ".gz":
        return gzip.compress(block * megabytes, 9)
    if suffix == ".xz":
        return lzma.compress(block * megabytes, preset=0)
    import zstandard

    return zstandard.compress(block * megabytes)


def deep(levels: int) -> str:
    """Brackets in brackets."""
    return "[" * levels + "]" * levels


class Runs:
    """Unpickled it would make a folder."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.mkdir, ("/tmp/vocabforge-fuzz-was-here",)


def hostile_pickle() -> bytes:
    return pickle.dumps(Runs(), protocol=2)
