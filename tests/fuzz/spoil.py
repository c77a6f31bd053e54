"""Ways to spoil a good file: its bytes, or the values that it holds as JSON, YAML, a header or a list of counters.

Every change by chance draws from the generator that it is given, so a seed and a number name an input for good.
"""

from __future__ import annotations

import copy
import json
import re
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

Change = Callable[[bytes, str], bytes]
"""Spoils the bytes of a file with that suffix."""

_VERBATIM = "\u2603"


def verbatim(text: str) -> str:
    """Return a value that :func:`dumps` writes as this text, without quotes."""
    return _VERBATIM + text


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**62, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "x", "0", "F64", "I64", "../..", "/dev/zero", "a\u0000b", "\ud800", "\u202e[bold]", "9" * 5000,
    [], {}, [None], [[]], [1, "x"], [2**40, 2**40], {"a": 1}, {"": {}}, [0] * 3000,
    *(verbatim(deep(levels)) for levels in (200, 900, 5000, 100_000)),
)  # fmt: skip
ODD_BYTES = (
    b"\x00", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\\ud800", b"\x1b[2J", b"NaN",
    b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b"-", b"e999", b'"', b",", b"}", b"]", b"&a ", b"*a", b"\t",
)  # fmt: skip
ODD_YAML = (
    "a: &a [1,1,1]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\n", "x: &x\n  y: *x\n", "x: 2026-99-99\n", "<<: 3\n",
    "x: !!python/object/apply:os.system [true]\n", "x: !!binary '####'\n", "? [1, 2]\n: 3\n", "? {a: 1}\n: 3\n",
    "<<: [*nobody]\n", "--- 1\n--- 2\n", f"x: 0x{'f' * 5000}\n", "x: 1:" + "59:" * 3000 + "59\n", "[" * 3000,
    "a:\n" * 2, "\t\n", "%YAML 9.9\n---\n", "1: 2\n", "null: 2\n",
)  # fmt: skip
ODD_COUNTERS = ("NaN", "+Inf", "-1", "1e400", "0x10", "", "x", "1_000", "9" * 400, "1.0 1700000000", "٣")


def dumps(value: Any) -> str:
    return re.sub(r'"\\u2603((?:[^"\\]|\\.)*)"', lambda found: json.loads(f'"{found[1]}"'), json.dumps(value))


def opened(data: bytes, suffix: str) -> tuple[Any, Callable[[Any], bytes]]:
    """Return what a file holds as a value that can be changed, and how to make a file of it again."""
    if suffix == ".json":
        return json.loads(data), lambda value: dumps(value).encode()
    if suffix == ".yaml":
        return yaml.safe_load(data), lambda value: yaml.safe_dump(value).encode("utf-8", "surrogatepass")
    if suffix == ".safetensors":
        end = 8 + struct.unpack("<Q", data[:8])[0]

        def framed(value: Any) -> bytes:
            header = dumps(value).encode()
            return struct.pack("<Q", len(header)) + header + data[end:]

        return json.loads(data[8:end]), framed
    if suffix == ".metrics":
        texts = [text for text in data.decode().splitlines() if text and not text.startswith("#")]
        counters = dict(text.rsplit(" ", 1) for text in texts)
        return counters, lambda value: "".join(f"{name} {value[name]}\n" for name in value).encode()
    mark = b"data: " if suffix == ".events" else b""
    lines = data.splitlines()
    numbers = [at for at, line in enumerate(lines) if line.startswith(mark + b"{")]

    def closed(value: Any) -> bytes:
        fresh = dict.fromkeys(numbers, b"") | dict(
            zip(numbers, (mark + dumps(row).encode() for row in value))
        )
        return b"".join(fresh.get(at, line) + b"\n" for at, line in enumerate(lines))

    return [json.loads(lines[at].removeprefix(mark)) for at in numbers], closed


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Return every place of a nested value, as the list or dict and the index or key in it."""
    found: list[tuple[Any, Any]] = []
    stack, seen = [value], set()
    while stack:
        node = stack.pop()
        if id(node) not in seen:  # YAML's aliases: shared, or a ring
            seen.add(id(node))
            keys = [*node] if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
            found += [(node, key) for key in keys]
            stack += [node[key] for key in keys]
    return found


# Changes by chance.


def change_value(data: bytes, suffix: str, draw: Random) -> bytes:
    """Replace a value at a random place, remove it, rename its key, give it twice, or make it a bit wrong."""
    tree, close = opened(data, suffix)
    holder, key = draw.choice(places_of(tree))
    old, odd = holder[key], copy.deepcopy(draw.choice(ODD))
    act = draw.choice(("odd", "odd", "odd", "odd", "gone", "renamed", "twice", "near"))
    if act == "gone":
        del holder[key]
    elif act == "renamed" and isinstance(holder, dict):
        holder[f"{key}{draw.choice(('', 's', ' ', '.x'))}"] = holder.pop(key)
    elif act == "twice" and isinstance(holder, dict):
        holder[key] = verbatim(f"{dumps(old)}, {json.dumps(key)}: {json.dumps(odd)}")
    elif act == "near":
        number = isinstance(old, (int, float)) and not isinstance(old, bool)
        holder[key] = draw.choice((-old, old + 1, old * 10**6, str(old)) if number else ([old], str(old)))
    else:
        holder[key] = draw.choice(ODD_COUNTERS) if suffix == ".metrics" else odd
    return close(tree)


def change_order(data: bytes, suffix: str, draw: Random) -> bytes:
    """Swap two lines, repeat one or leave one out."""
    lines = data.split(b"\n")
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[at], lines[to] = lines[to], lines[at]
    return b"\n".join(draw.choice((lines, [*lines, lines[at]], lines[:at] + lines[at + 1 :])))


def add_yaml(data: bytes, suffix: str, draw: Random) -> bytes:
    return draw.choice((data + b"\n", b"")) + draw.choice(ODD_YAML).encode()


def change_tensor(data: bytes, suffix: str, draw: Random) -> bytes:
    """Change the length of the header, or a tensor: other values, or a shape or dtype that takes as many bytes."""
    header, close = opened(data, suffix)
    name = draw.choice([name for name in header if name != "__metadata__"])
    act, shape, dtype = draw.randrange(4), header[name]["shape"], header[name]["dtype"]
    if act == 0:
        length = draw.choice((0, 7, len(data), 2**24, 2**31, 2**40, 2**63, 2**64 - 1))
        return struct.pack("<Q", length) + data[8:]
    if act == 1:
        return fill(name, draw.choice((b"\xff", b"\x00", b"\x7f", b"\x80")))(data, suffix)
    if act == 2:
        header[name]["shape"] = draw.choice((shape[::-1], [1, *shape]))
    else:
        same = {"F32": "I32", "I64": "F64", "I32": "F32", "BOOL": "U8", "F64": "I64", "F16": "BF16"}
        header[name]["dtype"] = same.get(dtype, "U8")
    return close(header)


def change_gguf(data: bytes, suffix: str, draw: Random) -> bytes:
    """Change a count of the header, or a number, length or letter at a name: of a setting, a text or a tensor."""
    name = draw.choice([*re.finditer(rb"[a-z][a-z0-9_.]{3,}", data[: 1 << 16])])
    # Before a name its length; behind it the type of a value and the value, or the sizes, type and place of a tensor.
    near = [name.start() - 8, *(name.end() + skip for skip in (0, 4, 8, 12, 20))]
    at, size = draw.choice((4, 8, 16, name.start(), *near, *near)), draw.choice((1, 4, 4, 8))
    number = draw.choice(
        (0, 1, 2, 3, 8, 9, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1, 0x7FC00000)
    )
    return data[:at] + (number % 2 ** (8 * size)).to_bytes(size, "little") + data[at + size :]


def change_bytes(data: bytes, suffix: str, draw: Random) -> bytes:
    """Cut, change, remove or repeat some bytes, insert odd ones, or put the file into another encoding."""
    at, to, size = draw.randrange(len(data) + 1), draw.randrange(len(data) + 1), draw.randrange(64)
    odd, text = draw.choice(ODD_BYTES), data.decode("utf-8", "replace")
    wrapped = (b"", b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"), data + data, text.encode("utf-16"))
    changed = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    removed, repeated = data[:at] + data[at + size :], data[:to] + data[at : at + size] + data[to:]
    inserted = data[:at] + odd + data[at:]
    return draw.choice((data[:at], changed, changed, removed, repeated, inserted, draw.choice(wrapped)))


Way = Callable[[bytes, str, Random], bytes]
WAYS: dict[str, tuple[Way, ...]] = {
    ".json": (change_value,),
    ".jsonl": (change_value, change_value, change_order),
    ".events": (change_value, change_value, change_order),
    ".metrics": (change_value, change_value, change_order),
    ".yaml": (change_value, change_value, add_yaml),
    ".safetensors": (change_value, change_tensor),
    ".gguf": (change_gguf,),
}
_NOTHING_LEFT = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError, MemoryError, RecursionError),
    *(struct.error, yaml.YAMLError),
)


def spoil(data: bytes, suffix: str, draw: Random) -> tuple[str, bytes]:
    """Make one to three changes to a good file; returns their names and the spoilt bytes."""
    names = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        way = draw.choice(WAYS[suffix]) if suffix in WAYS and draw.random() < 0.75 else change_bytes
        try:
            data = way(data, suffix, draw)
        except _NOTHING_LEFT:  # an earlier change left nothing that this one could change
            way = change_bytes
            data = way(data, suffix, draw)
        names.append(way.__name__)
    return "+".join(names), data


# Named changes, for the rows of a table.


def put(path: str, value: Any) -> Change:
    """Change the value at a path (``a/b/0``); of lines and events the first part is a number."""

    def change(data: bytes, suffix: str) -> bytes:
        tree, close = opened(data, suffix)
        node, *keys = tree, *path.split("/")
        for key in keys[:-1]:
            node = node[int(key) if isinstance(node, list) else key]
        node[int(keys[-1]) if isinstance(node, list) else keys[-1]] = value
        return close(tree)

    return change


def swap(old: str, new: str) -> Change:
    """Replace the first ``old`` of a text."""

    def change(data: bytes, suffix: str) -> bytes:
        if old.encode() not in data:
            raise AssertionError(f"{old!r} is not in the good example")
        return data.replace(old.encode(), new.encode(), 1)

    return change


def more(text: str) -> Change:
    return lambda data, suffix: data + text.encode()


def fill(tensor: str, byte: bytes) -> Change:
    """Make all bytes of a tensor this one."""

    def change(data: bytes, suffix: str) -> bytes:
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        start, stop = opened(data, suffix)[0][tensor]["data_offsets"]
        return data[: begin + start] + byte * (stop - start) + data[begin + stop :]

    return change
