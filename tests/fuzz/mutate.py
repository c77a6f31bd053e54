"""Ways to spoil a good file: at the level of bytes, of JSON's structure, of a safetensors header.

Every function draws from the generator that it is given, so a seed and a number name an input for good.
"""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

from tests.fuzz.mutate_gguf import gguf_name, gguf_number

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "0", "../..", "/dev/zero", "a\u0000b", "\ud800", "\u202e[bold]", "9" * 5000, [], {}, [None], [[]],
    [1, "x"], {"a": 1}, {"": {}}, [0] * 3000,
)  # fmt: skip
"""What a JSON value is replaced by."""


_NO_STRUCTURE = (
    ValueError, TypeError, AttributeError, LookupError, OverflowError, MemoryError, struct.error, RecursionError,
    yaml.YAMLError,
)  # fmt: skip


def spoil(data: bytes, form: str, draw: Random) -> tuple[str, bytes]:
    """One to three changes to a file.

    Args:
        data: the good file.
        form: ``json``, ``jsonl``, ``yaml``, ``safetensors``, ``gguf``, ``events`` (a streamed answer), ``metrics``
            (Prometheus' text), or anything else for plain bytes.
        draw: where chance comes from.

    Returns:
        the names of the changes, and the spoilt bytes.
    """
    ways = _WAYS.get(form, ())
    names = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        way = draw.choice(ways) if ways and draw.random() < 0.75 else draw.choice(BYTE_WAYS)
        try:
            data = way(data, draw)
        except _NO_STRUCTURE:  # a former change left nothing for this one
            way = draw.choice(BYTE_WAYS)
            data = way(data, draw)
        names.append(way.__name__)
    return "+".join(names), data


def truncate(data: bytes, draw: Random) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def flip(data: bytes, draw: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 4, 16))):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def splice(data: bytes, draw: Random) -> bytes:
    """Some bytes are doubled, removed or moved."""
    at, length, to = draw.randrange(len(data) + 1), draw.randrange(64), draw.randrange(len(data) + 1)
    piece, rest = data[at : at + length], data[:at] + data[at + length :]
    return draw.choice((data[:to] + piece + data[to:], rest, rest[:to] + piece + rest[to:]))


def insert(data: bytes, draw: Random) -> bytes:
    """Bytes that text must not hold, and marks of text."""
    odd = (
        b"\x00", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r\n", b"\\ud800", b"\x1b[2J", b"NaN",
        b"1" * 5000, b"[" * 3000, b'{"a":' * 3000, b"-", b"e999", b"\"", b",", b"}", b"]", b"&a ", b"*a", b"\t",
    )  # fmt: skip
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(odd) + data[at:]


def rewrap(data: bytes, draw: Random) -> bytes:
    """The whole file in another dress."""
    text = data.decode("utf-8", "replace")
    return draw.choice(
        (
            b"",
            b"\n",
            b"\xef\xbb\xbf" + data,
            data.replace(b"\n", b"\r\n"),
            text.encode("utf-16"),
            b"[" + data + b"]",
            data + data,
            b"\x00" * len(data),
        )
    )


def swap(value: Any, draw: Random) -> Any:
    """A value at a random place becomes another, goes, or gets company."""
    places = _places(value)
    if not places:
        return draw.choice(ODD)
    holder, key = draw.choice(places)
    act = draw.random()
    if act < 0.7:
        holder[key] = copy.deepcopy(draw.choice(ODD))
    elif act < 0.8:
        del holder[key]
    elif act < 0.9 and isinstance(holder, dict):
        holder[f"{key}{draw.choice(('', 's', ' ', '.x'))}"] = holder.pop(key)
    elif isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
        holder[key] = draw.choice((-holder[key], holder[key] + 1, holder[key] * 10**6, str(holder[key])))
    else:
        holder[key] = [holder[key]]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    stack, seen = [value], set()
    while stack:
        one = stack.pop()
        if id(one) in seen:  # YAML's aliases: shared, or a ring
            continue
        seen.add(id(one))
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        found += [(one, key) for key in keys]
        stack += [one[key] for key in keys]
    return found


def json_value(data: bytes, draw: Random) -> bytes:
    return json.dumps(swap(json.loads(data), draw)).encode()


def json_twice(data: bytes, draw: Random) -> bytes:
    """A key of an object stands twice, the second time with another value."""
    value = json.loads(data)
    holders = [(holder, key) for holder, key in _places(value) if isinstance(holder, dict)]
    holder, key = draw.choice(holders)
    mark = "\u2603 a place of its own"
    held, holder[key] = holder[key], mark
    pair = f"{json.dumps(held)}, {json.dumps(key)}: {json.dumps(draw.choice(ODD))}"
    return json.dumps(value).replace(json.dumps(mark), pair).encode()


def json_deep(data: bytes, draw: Random) -> bytes:
    """A value nests thousands of levels."""
    value = json.loads(data)
    holder, key = draw.choice(_places(value))
    mark = "\u2603 a place of its own"
    holder[key] = mark
    levels = draw.choice((200, 900, 5000, 100_000))
    return json.dumps(value).replace(json.dumps(mark), "[" * levels + "]" * levels).encode()


def line_value(data: bytes, draw: Random) -> bytes:
    """One line of JSON lines has another value in it."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    lines[at] = draw.choice((json_value, json_value, json_twice, json_deep))(lines[at], draw)
    return b"\n".join(lines)


def line_order(data: bytes, draw: Random) -> bytes:
    """Lines are doubled, swapped, or left out."""
    lines = data.split(b"\n")
    at, to = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[at], lines[to] = lines[to], lines[at]
    return b"\n".join(draw.choice((lines, [*lines, lines[at]], lines[:at] + lines[at + 1 :])))


def event_value(data: bytes, draw: Random) -> bytes:
    """One event of a streamed answer has another value in it."""
    lines = data.split(b"\n")
    at = draw.choice([at for at, line in enumerate(lines) if line.startswith(b"data: {")])
    way = draw.choice((json_value, json_value, json_value, json_twice, json_deep))
    lines[at] = b"data: " + way(lines[at].removeprefix(b"data: "), draw)
    return b"\n".join(lines)


def metric_value(data: bytes, draw: Random) -> bytes:
    """A counter has another value, or another name or label."""
    lines = data.split(b"\n")
    at = draw.choice([at for at, line in enumerate(lines) if line and not line.startswith(b"#")])
    name, _, value = lines[at].rpartition(b" ")
    odd = (
        "NaN",
        "+Inf",
        "-Inf",
        "-1",
        "1e400",
        "1e308",
        "0x10",
        "",
        "x",
        "1_000",
        "9" * 400,
        "1.0 1700000000",
        "٣",
    )
    if draw.random() < 0.7:
        value = draw.choice(odd).encode()
    else:
        old, new = draw.choice((
            (b"_total", b""), (b"position=\"", b"position=\"" + b"9" * 5000), (b"position", b"place"), (b"{", b"{{"),
            (b"}", b""), (b"num_", b""), (b"_per_pos", b""), (b'"0"', b'"1"'),
        ))  # fmt: skip
        name = name.replace(old, new, 1)
    lines[at] = name + b" " + value
    return b"\n".join(lines)


def yaml_value(data: bytes, draw: Random) -> bytes:
    value = swap(yaml.safe_load(data), draw)
    try:
        return yaml.safe_dump(value).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(value).encode()


def yaml_text(data: bytes, draw: Random) -> bytes:
    """What YAML knows and a recipe should not hold."""
    odd = (
        "a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e]\n",
        "x: &x\n  y: *x\n",
        "x: !!python/object/apply:os.system [true]\n",
        "x: !!binary '####'\n",
        "x: 2026-99-99\n",
        "? [1, 2]\n: 3\n",
        "? {a: 1}\n: 3\n",
        "<<: 3\n",
        "<<: [*nobody]\n",
        "--- 1\n--- 2\n",
        "x: 0x" + "f" * 5000 + "\n",
        "x: 1:" + "59:" * 3000 + "59\n",
        "[" * 3000,
        "a:\n" * 2,
        "\t\n",
        "%YAML 9.9\n---\n",
        "1: 2\n",
        "null: 2\n",
    )
    return draw.choice((data + b"\n" + draw.choice(odd).encode(), draw.choice(odd).encode()))


def header_value(data: bytes, draw: Random) -> bytes:
    """The header of a safetensors file with another value in it."""
    header, rest = _taken_apart(data)
    places = [
        (h, k) for h, k in _places(header) if k in ("shape", "data_offsets", "dtype") or isinstance(h, list)
    ]
    holder, key = draw.choice(places)
    odd = (
        0,
        1,
        -1,
        2**31,
        2**62,
        2**63,
        2**64 - 1,
        10**40,
        0.5,
        True,
        "F32",
        "I64",
        "BOOL",
        "F8_E4M3",
        "x",
        [],
        [2**40, 2**40],
    )
    holder[key] = draw.choice(odd)
    return _put_together(header, rest)


def header_shape(data: bytes, draw: Random) -> bytes:
    """A tensor's shape is another of as many elements, or its dtype another of its width: a valid file."""
    header, rest = _taken_apart(data)
    entry = header[draw.choice([name for name in header if name != "__metadata__"])]
    same = {"F32": "I32", "I64": "F64", "I32": "F32", "BOOL": "U8", "F64": "I64", "U8": "BOOL", "F16": "BF16"}
    entry.update(draw.choice((
        {"shape": entry["shape"][::-1]}, {"shape": [1, *entry["shape"]]}, {"dtype": same.get(entry["dtype"], "U8")},
        {"shape": [_product(entry["shape"])]},
    )))  # fmt: skip
    return _put_together(header, rest)


def header_names(data: bytes, draw: Random) -> bytes:
    """A tensor is renamed, or is there twice by one name."""
    header, rest = _taken_apart(data)
    name = draw.choice([name for name in header if name != "__metadata__"])
    if draw.random() < 0.5:
        header[draw.choice(("", "x", name + "s", "__metadata__"))] = header.pop(name)
        return _put_together(header, rest)
    text = json.dumps(header)
    return _framed(f"{text[:-1]}, {json.dumps(name)}: {json.dumps(header[name])}}}".encode(), rest)


def header_length(data: bytes, draw: Random) -> bytes:
    """The header says that it is longer than the file, or than anything."""
    odd = (0, 1, 7, len(data), len(data) * 2, 2**24, 2**31, 2**40, 2**63, 2**64 - 1)
    return struct.pack("<Q", draw.choice(odd)) + data[8:]


def tensor_bytes(data: bytes, draw: Random) -> bytes:
    """The values behind the header: not finite, huge, negative, or all alike."""
    header, rest = _taken_apart(data)
    entry = header[draw.choice([name for name in header if name != "__metadata__"])]
    start, stop = entry["data_offsets"]
    fill = draw.choice((b"\xff", b"\x00", b"\x7f", b"\x80"))
    return _put_together(header, rest[:start] + fill * len(rest[start:stop]) + rest[stop:])


def _taken_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def _put_together(header: dict[str, Any], rest: bytes) -> bytes:
    return _framed(json.dumps(header).encode(), rest)


def _framed(header: bytes, rest: bytes) -> bytes:
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + rest


def _product(shape: list[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


Way = Callable[[bytes, Random], bytes]
BYTE_WAYS: tuple[Way, ...] = (truncate, flip, splice, insert, rewrap)
_WAYS: dict[str, tuple[Way, ...]] = {
    "json": (json_value, json_value, json_value, json_twice, json_deep),
    "jsonl": (line_value, line_value, line_order),
    "yaml": (yaml_value, yaml_value, yaml_value, yaml_text),
    "safetensors": (header_value, header_value, header_shape, header_names, header_length, tensor_bytes),
    "gguf": (gguf_number, gguf_number, gguf_name),
    "events": (event_value, event_value, line_order),
    "metrics": (metric_value, metric_value, line_order),
}
